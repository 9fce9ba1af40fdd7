"""Row "collector asks pairs of changing groups": no single model is opened beyond the agreed bound."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lying import QUICK, Liars
from peers_in_memory import Size, World, simulated, simulation_of

import coterie
from coterie.catalogue import algorithms
from coterie.errors import ConfigError, DamagedRunError, RefusedError, SecureSumError
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.sealed.party import Party
from coterie.peer.exchange.sealed.sealing import Allowed
from coterie.peer.exchange.sealed.vouching import MOST_IN_A_ROUND, Vouching
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Claim, Had, Head, Voucher
from coterie.peer.process import Peer
from coterie.peer.trust.cards import card_of
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import Roster
from coterie.peer.trust.settings import PeerSettings
from coterie.protocol import Exchange, Links
from coterie.protocol.ledger import Bound, Ledger, Sum, opened_shares
from coterie.simulation.checkpoint import load_checkpoint, save_checkpoint
from coterie.testing import run_virtually, topology_for
from coterie.topology import Churn, MessageLoss

STILL = Bound(alike=1.0)  # models stand still
SEALED = ("gossip-fedavg", "dbe", "ppdl", "ppdl-var", "random-gossip", "oracle", "kin")


def sums(*groups: str) -> list[Sum]:
    return [Sum(round, frozenset(map(ord, group))) for round, group in enumerate(groups)]


def opened(groups: Sequence[str], alike: float = 1.0) -> dict[str, float]:
    return {chr(m): share for m, share in opened_shares(sums(*groups), alike).items()}


# --- the measure ---------------------------------------------------------------------------------


@pytest.mark.parametrize("alike", [1.0, 0.9, 0.5])
def test_one_sum_opens_an_equal_share_of_each(alike: float) -> None:
    assert opened(["abcd"], alike) == pytest.approx(dict.fromkeys("abcd", alike / 4))


def test_by_hand_where_models_stand_still() -> None:
    assert opened(["abcd", "bcd"])["a"] == pytest.approx(1)  # the difference is a
    assert opened(["abcd", "bcd"])["b"] == pytest.approx(1 / 3)
    assert opened(["abc", "abd"]) == pytest.approx({"a": 0.4, "b": 0.4, "c": 0.6, "d": 0.6})
    assert opened(["abc"] * 9) == pytest.approx(dict.fromkeys("abc", 1 / 3))
    lines = ["abc", "ade", "afg", "bdf", "beg", "cdg", "cef"]  # the Fano plane: two have one member in common
    assert opened(lines) == pytest.approx(dict.fromkeys("abcdefg", 1))
    assert opened(["abcdefg", "bcd", "efg"])["a"] == pytest.approx(1)


def test_disjoint_groups_in_one_exchange_open_more_than_each_of_them() -> None:
    """abc, def and ghi before, now abd and efg: 7/9 of c, d and g, and 2/3 with one of the two.

    What stays hidden of these three alternates along c, ab, d, ef, g, hi. That vector has the squared length
    4.5, of which each of the three has 1. With abd alone it ends at ef, and has 3.
    """
    before = [Sum(0, one.members) for one in sums("abc", "def", "ghi")]

    def now(*groups: str) -> dict[str, float]:
        asked = [Sum(1, frozenset(map(ord, group))) for group in groups]
        return {chr(m): share for m, share in opened_shares([*before, *asked], 1.0).items()}

    assert max(now("abd").values()) == pytest.approx(2 / 3)
    assert max(now("efg").values()) == pytest.approx(2 / 3)
    both = now("abd", "efg")
    assert [both[m] for m in "cdg"] == pytest.approx([7 / 9] * 3)
    ledger = Ledger(STILL)
    for one in before:
        ledger.note(9, 0, one.members)
    assert not ledger.refusal(9, 1, map(ord, "abd"))
    assert not ledger.refusal(9, 1, map(ord, "efg"))
    ledger.note(9, 1, map(ord, "abd"))
    assert ledger.refusal(9, 1, map(ord, "efg")), "if its members knew of the other one"


def test_by_hand_where_models_drift() -> None:
    """C = [[4, 3k], [3k, 3]], of which the first diagonal element of the inverse is 3 / (12 - 9 k^2)."""
    for k in (0.5, 0.9, 0.99):
        assert opened(["abcd", "bcd"], k)["a"] == pytest.approx(k * 3 / (12 - 9 * k * k))


@pytest.mark.parametrize("alike", [1.0, 0.9, 0.6])
def test_it_is_what_least_squares_finds(alike: float) -> None:
    """Of 200,000 worlds, the share of the variance of what stays that a regression on the sums explains."""
    rng, worlds = np.random.default_rng(5), 200_000
    groups = ["abcde", "abc", "acde", "bcd", "abcde"]
    staying = rng.normal(size=(worlds, 5)) * alike**0.5
    seen = np.stack(
        [
            (staying + rng.normal(size=staying.shape) * (1 - alike) ** 0.5)[
                :, [ord(m) - 97 for m in group]
            ].sum(1)
            for group in groups
        ],
        1,
    )
    weights, *_ = np.linalg.lstsq(seen, staying, rcond=None)
    explained = 1 - (staying - seen @ weights).var(0) / staying.var(0)
    assert list(opened(groups, alike).values()) == pytest.approx(explained.tolist(), abs=0.01)


# --- the ledger ----------------------------------------------------------------------------------


def test_the_smallest_group_is_three() -> None:
    assert "the smallest group is 3" in Ledger().refusal(0, 0, [1, 2])
    assert not Ledger().refusal(0, 0, [1, 2, 3])


def test_what_would_open_a_model_is_refused_until_the_sums_are_old() -> None:
    ledger = Ledger(STILL)
    ledger.note(9, 0, [1, 2, 3, 4])
    said = ledger.refusal(9, 1, [2, 3, 4])
    assert said == (
        "with the 1 sums of the last 10 rounds it would open 100% of the model of member 1, and 75% is agreed"
    )
    assert not ledger.refusal(8, 1, [2, 3, 4]), "of another collector"
    assert not ledger.refusal(9, 1, [1, 2, 3, 4])
    assert ledger.refusal(9, 9, [2, 3, 4])
    assert not ledger.refusal(9, 10, [2, 3, 4])


def test_one_group_again_and_again_is_never_refused() -> None:
    ledger = Ledger(Bound(opened=0.34))
    for round in range(30):
        assert not ledger.refusal(9, round, [1, 2, 3])
        ledger.note(9, round, [1, 2, 3])


def test_it_goes_on_from_its_tensors() -> None:
    ledger, again = Ledger(STILL), Ledger(STILL)
    assert ledger.tensors() == {}
    ledger.note(9, 4, [1, 2, 3, 4])
    ledger.note(5, 3, [1, 2, 3])
    again.recall(ledger.tensors())
    assert again.refusal(9, 5, [2, 3, 4]) == ledger.refusal(9, 5, [2, 3, 4]) != ""
    again.recall({})
    assert not again.refusal(9, 5, [2, 3, 4])
    for broken in (
        {"heads": torch.zeros(2, 3, dtype=torch.long)},
        {"heads": torch.zeros(2, 2, dtype=torch.long), "members": torch.zeros(2)},
        {"heads": torch.tensor([[1, 2, 5]]), "members": torch.zeros(2)},
        {"heads": torch.tensor([[1, 2, -2], [1, 2, 4]]), "members": torch.zeros(2)},
    ):
        with pytest.raises(DamagedRunError, match="sealed sums"):
            again.recall(broken)


# --- the same numbers everywhere -----------------------------------------------------------------


@pytest.mark.parametrize("faults", [False, True], ids=["healthy", "faulty"])
@pytest.mark.parametrize("name", SEALED)
def test_real_peers_and_the_simulator_open_the_same_sums(name: str, faults: bool, tmp_path: Path) -> None:
    """Six rounds of small groups: some sums are refused, the same ones, and models agree."""
    size = Size(peers=6, rounds=6, samples=6)
    made = algorithms[name]()
    topology = topology_for(made, size.peers)
    if faults:
        topology = MessageLoss(Churn(topology, 0.1, seed=1), 0.1, seed=2)
    world = World(made, tmp_path, size, topology=topology, bound=Bound(opened=0.6))
    run_virtually(world.play())
    expected, *_ = simulated(world)
    for number, peer in world.peers_by_number.items():
        for leaf, value in peer.algorithm.personal(peer.state).items():
            torch.testing.assert_close(value[0], expected[leaf][number], rtol=1e-4, atol=1e-5)
    refused = sum(peer.metrics.sealed_failures for peer in world.peers_by_number.values())
    overdrawn = sum(peer.metrics.overdrawn.total() for peer in world.peers_by_number.values())
    assert overdrawn == 0, "an honest collector asks for nothing that members would refuse"
    if name in ("ppdl", "ppdl-var", "random-gossip"):
        assert refused > 0
    if name == "gossip-fedavg" and not faults:
        assert refused == 0


def test_a_resumed_simulation_remembers_its_sums(tmp_path: Path) -> None:
    world = World("random-gossip", tmp_path, Size(peers=5, rounds=6, samples=6), bound=Bound(opened=0.6))
    whole, before, after = (simulation_of(world) for _ in range(3))
    for _ in range(world.rounds):
        whole.step(evaluate=False)
    for _ in range(3):
        before.step(evaluate=False)
    save_checkpoint(tmp_path / "checkpoint", before, {})
    load_checkpoint(tmp_path / "checkpoint", after)
    noted = after.blocks[0].node.ledger.tensors()
    assert noted.keys() == {"heads", "members"}
    for _ in range(3):
        after.step(evaluate=False)
    for name, value in whole.personal().items():
        assert torch.equal(after.personal()[name], value)
    assert len(whole.blocks[0].node.ledger.tensors()["heads"]) < 5 * 6, "some were refused"


# --- a collector that lies -----------------------------------------------------------------------


class Greedy(World):
    """The last peer asks in each round for the group that it likes, and its own ledger lets it.

    A round may also have several groups. tells: whether its claims say what it had.
    """

    def __init__(
        self,
        folder: Path,
        peers: int,
        groups: Sequence[Sequence[Sequence[int]]],
        bound: Bound,
        tells: bool = True,
    ) -> None:
        size = Size(peers, len(groups), samples=6)
        made = algorithms["random-gossip"](peers=max(len(group) for asked in groups for group in asked))
        super().__init__(made, folder, size, bound=bound, pace=QUICK)
        self.groups, self.liar, self.tells = groups, peers - 1, tells
        self.got: list[Sum] = []

    def _peer(self, number: int) -> Peer:
        peer = super()._peer(number)
        if number != self.liar:
            return peer
        ledger = (Ledger if self.tells else Silent)(Bound(opened=1.0))
        collecting = peer.sealing.collecting
        collecting.party = replace(collecting.party, ledger=ledger)
        plain = peer.post.exchange

        async def sum_over(group: Sequence[int], at: Position) -> None:
            until = asyncio.get_running_loop().time() + QUICK.deadline
            try:
                await collecting.sum(list(group), at, until, peer.sealing._offer.vector, len(group))
            except SecureSumError:
                return
            self.got.append(Sum(at.round, frozenset(group)))

        async def exchange(exchange: Exchange, at: Position, *, repeated: bool) -> Any:
            """The question goes to the groups, and so does the demand for their sums."""
            asked = self.groups[at.round]
            everyone = torch.tensor(sorted({number for group in asked for number in group}))
            wanted = Links(torch.zeros_like(everyone), everyone)
            if not exchange.sealed:
                return await plain(_with(exchange, to=wanted), at, repeated=repeated)
            collect = peer.sealing.collect

            async def all_of_them(*args: Any) -> None:
                await asyncio.gather(*(sum_over(group, at) for group in asked))

            peer.sealing.collect = all_of_them  # type: ignore[method-assign,assignment]
            try:
                return await plain(_with(exchange, expect=wanted), at, repeated=repeated)
            finally:
                peer.sealing.collect = collect  # type: ignore[method-assign]

        peer.post.exchange = exchange  # type: ignore[method-assign]
        return peer


class Silent(Ledger):
    """Of a collector that says nothing of what it had."""

    def had(self, collector: int, round: int) -> list[Sum]:
        return []


def _with(exchange: Exchange, **changes: Any) -> Exchange:
    return replace(exchange, **changes)


def most_opened(had: Sequence[Sum], alike: float) -> float:
    """Of any model, within any ten rounds."""
    windows = [[one for one in had if last - 10 < one.round <= last] for last in range(20)]
    return max(max(opened_shares(window, alike).values()) for window in windows if window)


def asked(groups: Sequence[Sequence[Sequence[int]]]) -> list[Sum]:
    return [Sum(round, frozenset(group)) for round, several in enumerate(groups) for group in several]


def test_a_collector_that_asks_pairs_of_changing_groups_is_refused_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """sum{0,1,2,3} - sum{0,1,2} = 3, and again, until drift no longer hides it."""
    groups = [[[0, 1, 2, 3]], [[0, 1, 2]]] * 3
    assert most_opened(asked(groups), 0.9) > 0.75
    world = Greedy(tmp_path, 5, groups, Bound())
    ends = run_virtually(world.play_with([]))
    assert set(ends.values()) == {None}
    assert 0 < len(world.got) < len(groups)
    assert most_opened(world.got, 0.9) <= 0.75
    for member in (0, 1, 2):
        peer = world.peers_by_number[member]
        assert peer.metrics.overdrawn.keys() == {"peer-4"}
    said = [text for text in caplog.messages if "peer-4 gets no sum: with the" in text]
    assert said
    assert all("of the model of member 3, and 75% is agreed" in text for text in said)


# 0 = sum{0..6} - sum{4,5,6} - sum{1,2,3}, and nobody of the last group was in the second.
WITHOUT_THEM = [[[0, 1, 2, 3, 4, 5, 6]], [[4, 5, 6]], [[1, 2, 3]]]


def test_members_know_of_sums_without_them_however_quick_the_rounds_are(tmp_path: Path) -> None:
    """All rounds are over before the second heartbeat: what members know they do not have from those."""
    assert most_opened(asked(WITHOUT_THEM), 1.0) == pytest.approx(1)
    world = Greedy(tmp_path, 8, WITHOUT_THEM, STILL)
    run_virtually(world.play())
    assert sum(report.seconds for report in world.reports[0]) < QUICK.heartbeat
    assert world.got == asked(WITHOUT_THEM[:2])
    assert all(world.peers_by_number[n].metrics.overdrawn == {"peer-7": 1} for n in (1, 2, 3))


def test_a_collector_that_hides_what_it_had_gets_nothing_more_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Greedy(tmp_path, 8, WITHOUT_THEM, STILL, tells=False)
    run_virtually(world.play())
    assert world.got == asked(WITHOUT_THEM[:1])
    said = (
        "round 1: peer-7 does not say that it had the sum over peer-0, peer-1, peer-2, peer-3, peer-4, peer-5"
    )
    assert [text for text in caplog.messages if text.startswith(said)]


@pytest.mark.parametrize("tells", [True, False])
def test_of_disjoint_groups_in_one_exchange_one_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tells: bool
) -> None:
    """Six others, of whom four must vouch for a sum: there are no four for the second."""
    pairs = [[0, 1, 2], [3, 4, 5]]
    world = Greedy(tmp_path, 7, [pairs, pairs, pairs], Bound(opened=1.0), tells)
    ends = run_virtually(world.play_with([]))
    assert set(ends.values()) == {None}
    for round in range(3):
        assert sum(one.round == round for one in world.got) <= 1
    assert any("peer-6 wants a second sum in one exchange, over peer-" in text for text in caplog.messages)
    overdrawn = [world.peers_by_number[n].metrics.overdrawn for n in range(6)]
    assert {name for counts in overdrawn for name in counts} == {"peer-6"}


def test_a_collector_that_was_restarted_is_told_of_its_sums(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Peer 0 forgets everything before its last round, and has that sum all the same: it may."""
    world = World("random-gossip", tmp_path, Size(6, 4, 6), pace=QUICK, bound=Bound(opened=1.0))
    plain = world._peer

    def made(number: int) -> Peer:
        peer = plain(number)
        exchange = peer.post.exchange

        async def forgetful(what: Exchange, at: Position, *, repeated: bool) -> Any:
            if number == 0 and at == (3, 1):
                peer.node.ledger._sums.clear()
            return await exchange(what, at, repeated=repeated)

        peer.post.exchange = forgetful  # type: ignore[method-assign]
        return peer

    world._peer = made  # type: ignore[method-assign]
    run_virtually(world.play())
    first = world.peers_by_number[0]
    assert (first.metrics.sealed_sums, first.metrics.sealed_failures) == (4, 0)
    assert [one.round for one in first.node.ledger.had(0, 3)] == [0, 1, 2, 3]
    assert any("round 3: peer-0 does not say that it had the sum over" in text for text in caplog.messages)


def test_what_one_member_alone_says_is_not_believed(tmp_path: Path) -> None:
    """Peer 4 says of everyone that it had other sums, and vouches for nobody: the other three are enough."""

    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        if isinstance(head, Voucher):
            return head.model_copy(update={"missing": (Had(members=(1, 2, 3), rounds=(0,)),)}), body
        return head, body

    world = Liars("gossip-fedavg", tmp_path, Size(5, 3, 6), lies={4: lie})
    run_virtually(world.play())
    for peer in world.honest:
        assert (peer.metrics.sealed_sums, peer.metrics.sealed_failures) == (3, 0)
        assert {len(one.members) for one in peer.node.ledger.had(peer.number, 2)} == {4}


def claim(members: Sequence[int], round: int = 3, slot: int = 1, session: str = "ab", **more: Any) -> Claim:
    return Claim(
        sender="peer-9", round=round, slot=slot, session=session * 16, members=tuple(members), **more
    )


def vouching(number: int = 0, others: Sequence[int] = (1, 2, 3, 9)) -> Vouching:
    names = {n: SimpleNamespace(name=f"peer-{n}") for n in others}
    membership: Any = SimpleNamespace(roster=lambda: names)
    made: Any = None
    return Vouching(
        Party(f"peer-{number}", number, made, membership, Signal(), Metrics(), ledger=Ledger(STILL))
    )


def test_a_member_vouches_for_one_sum_in_an_exchange_and_says_what_it_knows() -> None:
    member = vouching()
    for _ in range(2):
        assert not member.answer(9, claim([1, 2, 3]), now=3).missing
    for other in (claim([1, 2, 3], session="cd"), claim([1, 2])):
        with pytest.raises(RefusedError, match="one exchange has one secure sum"):
            member.answer(9, other, now=3)
    assert not member.answer(8, claim([1, 2, 3], session="cd"), now=3).missing, "of another collector"
    had = Had(members=(1, 2, 3), rounds=(3,))
    assert member.answer(9, claim([0, 1, 2], round=4), now=3).missing == (had,)
    assert not member.answer(9, claim([0, 1, 2], round=4, had=(had,)), now=3).missing
    assert not member.answer(9, claim([0, 1, 2], round=14), now=14).missing, "by now it is too long ago"


def test_what_is_remembered_is_bounded_and_expires() -> None:
    member = vouching()
    for far in (2, 14, 10**9):
        with pytest.raises(RefusedError, match="this peer is in round 12"):
            member.answer(9, claim([1, 2, 3], far), now=12)
    for slot in range(MOST_IN_A_ROUND):
        member.answer(9, claim([1, 2, 3], 12, slot), now=12)
    with pytest.raises(RefusedError, match="more than 8 sums in round 12"):
        member.answer(9, claim([1, 2, 3], 12, 99), now=12)
    for round in range(13, 60):
        had = Had(members=(1, 2, 3), rounds=tuple(range(round - 9, round)))
        member.answer(9, claim([1, 2, 3], round, had=(had,)), now=round)
    assert len(member._signed) <= STILL.rounds
    assert len(member.party.ledger.had(9, 59)) <= STILL.rounds
    many = tuple(Had(members=(n,), rounds=(59,)) for n in range(81))
    with pytest.raises(SecureSumError, match="81 sums in 10 rounds"):
        vouching(0, [1, 2, 9]).check(9, claim([1, 2, 3], 59, had=many), {1: b"", 2: b""})


def test_masks_are_lifted_if_more_than_half_have_signed(tmp_path: Path) -> None:
    """Five others; what the collector signs itself, or has of another claim, does not count."""
    identities = {n: Identity.create(tmp_path / str(n), f"peer-{n}") for n in (1, 2, 3, 4, 9)}
    member = vouching(0, list(identities))

    Identity.create(tmp_path / "0", "peer-0")
    roster = Roster.load(tmp_path / "0")
    for number, identity in identities.items():
        settings = PeerSettings(name=identity.name, number=number, listen=f"host:{1000 + number}")
        roster.add(card_of(identity, settings))
    member.party.verify = roster.verify
    right, other = claim([1, 2, 3]), claim([1, 2, 4])

    def proofs(of: Claim, *signers: int) -> dict[int, bytes]:
        return {n: identities[n].sign(of.statement()) for n in signers}

    assert member.check(9, right, proofs(right, 1, 2, 3)) == set()
    for too_few in (
        proofs(right, 1, 2),
        proofs(right, 1, 2, 9),
        {**proofs(right, 1, 2), 3: b""},
        {**proofs(right, 1, 2), **proofs(other, 3)},
        {**proofs(right, 1, 2), 3: proofs(right, 1)[1]},
        {**proofs(right, 1, 2), 0: b""},  # it has not signed this one itself
    ):
        with pytest.raises(SecureSumError, match="2 of 5 members vouch for this sum, and 3 must"):
            member.check(9, right, too_few)
    member.answer(9, right, now=3)
    assert member.check(9, right, {**proofs(right, 1, 2), 0: b""}) == set()
    had = Had(members=(1, 2), rounds=(2, 4, 1000))
    said = claim([1, 2, 3], had=(had,))
    assert member.check(9, said, proofs(said, 1, 2, 3)) == {Sum(2, frozenset({1, 2}))}, "those that count"


# --- which groups the algorithm allows -----------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "threshold", "text"),
    [
        ((1, 2, 3, 4), 4, ""),
        ((1, 2, 3, 7), 4, "this collector cannot ask [7] in this round"),
        ((1, 2, 3, 4), 3, "a threshold of 3, where the experiment has 4"),
        ((1, 2, 3, 4, 5, 6), 4, "a sum over 6, where the experiment has 5 at most"),
    ],
)
def test_a_member_answers_only_groups_that_the_algorithm_allows(
    members: tuple[int, ...], threshold: int, text: str
) -> None:
    allowed = Allowed(frozenset(range(1, 7)), 4, 5, whole=False)
    assert allowed.refusal(members, threshold) == text


def test_the_graph_says_whom_a_collector_may_ask(tmp_path: Path) -> None:
    """Full graph of five, neighbours' sums: all four others, of whom a majority must answer."""
    world = World("gossip-fedavg", tmp_path, Size(5, 1, 6))
    post = world._peer(0).post
    assert post._allowed(Exchange(sealed=True), 0, 4) == Allowed(frozenset({0, 1, 2, 3}), 3, 4, whole=True)
    asked = Exchange(sealed=True, to=Links(torch.tensor([0]), torch.tensor([4])), most=3)
    assert post._allowed(asked, 0, 4) == Allowed(frozenset({0, 1, 2, 3}), 3, 3, whole=False)


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (
            {"algorithm": "gossip-fedavg", "topology": "ring"},
            "at most 2 peers send to anyone, and a sealed sum",
        ),
        ({"algorithm": "gossip-fedavg", "topology": "full", "peers": 3}, "with at least 4 peers"),
        (
            {"algorithm": "ppdl", "settings": {"peers": 2}},
            "asks for sealed sums over 2, and the smallest group",
        ),
    ],
)
def test_an_experiment_whose_groups_are_too_small_gets_a_sentence(table: dict[str, Any], text: str) -> None:
    sections = {"peers": 6, "rounds": 1, **table}
    with pytest.raises(ConfigError, match=text):
        coterie.simulate(**sections, execution={"sealing": "quantised"})
    coterie.simulate(**sections)  # plainly, the simulator hides nothing
    coterie.simulate(**sections, execution={"sealing": "quantised"}, privacy={"smallest_group": 2})
