"""Row "collector asks pairs of changing groups": no single model is opened beyond the agreed bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lying import QUICK
from peers_in_memory import Size, World, simulated, simulation_of
from pydantic import ValidationError

import coterie
from coterie.catalogue import algorithms
from coterie.errors import ConfigError, DamagedRunError
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.sealing import Allowed
from coterie.peer.network.messages import SumNotice
from coterie.peer.notices import Notices
from coterie.peer.process import Peer
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
    """The last peer asks in each round for the group that it likes, and its own ledger lets it."""

    def __init__(self, folder: Path, peers: int, groups: Sequence[Sequence[int]], bound: Bound) -> None:
        size = Size(peers, len(groups), samples=6)
        made = algorithms["random-gossip"](peers=max(map(len, groups)))
        super().__init__(made, folder, size, bound=bound, pace=QUICK, busy=4.0)
        self.groups, self.liar = groups, peers - 1

    def _peer(self, number: int) -> Peer:
        peer = super()._peer(number)
        if number != self.liar:
            return peer
        peer.sealing.collecting.ledger = Ledger(Bound(opened=1.0))
        plain = peer.post.exchange

        async def exchange(exchange: Exchange, at: Position, *, repeated: bool) -> Any:
            """The question goes to the group, and so does the demand for its sum."""
            group = torch.tensor(self.groups[at.round])
            wanted = Links(torch.zeros_like(group), group)
            if exchange.sealed:
                return await plain(_with(exchange, expect=wanted), at, repeated=repeated)
            return await plain(_with(exchange, to=wanted), at, repeated=repeated)

        peer.post.exchange = exchange  # type: ignore[method-assign]
        return peer


def _with(exchange: Exchange, **changes: Any) -> Exchange:
    return replace(exchange, **changes)


def most_opened(had: Sequence[Sum], alike: float) -> float:
    """Of any model, within any ten rounds."""
    windows = [[one for one in had if last - 10 < one.round <= last] for last in range(20)]
    return max(max(opened_shares(window, alike).values()) for window in windows if window)


def asked(groups: Sequence[Sequence[int]]) -> list[Sum]:
    return [Sum(round, frozenset(group)) for round, group in enumerate(groups)]


def test_a_collector_that_asks_pairs_of_changing_groups_is_refused_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """sum{0,1,2,3} - sum{0,1,2} = 3, and again, until drift no longer hides it."""
    groups = [[0, 1, 2, 3], [0, 1, 2]] * 3
    assert most_opened(asked(groups), 0.9) > 0.75
    world = Greedy(tmp_path, 5, groups, Bound())
    ends = run_virtually(world.play_with([]))
    assert set(ends.values()) == {None}
    liar = world.peers_by_number[4]
    assert 0 < liar.metrics.sealed_sums < len(groups)
    for member in (0, 1, 2):
        peer = world.peers_by_number[member]
        assert peer.metrics.overdrawn.keys() == {"peer-4"}
        assert most_opened(peer.node.ledger._sums[4], 0.9) <= 0.75
    said = [text for text in caplog.messages if "peer-4 gets no sum: with the" in text]
    assert said
    assert all("of the model of member 3, and 75% is agreed" in text for text in said)


def test_members_tell_each_other_of_sums_without_them(tmp_path: Path) -> None:
    """0 = sum{0..6} - sum{4,5,6} - sum{1,2,3}, and nobody of the last group was in the second."""
    groups = [[0, 1, 2, 3, 4, 5, 6], [4, 5, 6], [1, 2, 3]]
    assert most_opened(asked(groups), 1.0) == pytest.approx(1)
    world = Greedy(tmp_path, 8, groups, STILL)
    run_virtually(world.play())
    liar = world.peers_by_number[7]
    assert (liar.metrics.sealed_sums, liar.metrics.sealed_failures) == (2, 1)
    assert all(world.peers_by_number[n].metrics.overdrawn == {"peer-7": 1} for n in (1, 2, 3))


def notice(members: Sequence[int], round: int = 3, collector: int = 9, slot: int = 1) -> SumNotice:
    return SumNotice(collector=collector, round=round, slot=slot, members=tuple(members))


def test_what_one_member_alone_says_is_not_believed() -> None:
    ledger = Ledger(STILL)
    notices = Notices(0, ledger, lambda: 4)
    ledger.note(9, 2, [0, 1, 2, 3, 4])
    for teller in (1, 1, 7, 9):  # again, no member, the collector itself
        notices.told(teller, [notice([1, 2, 3, 4])])
    assert not ledger.refusal(9, 4, [0, 1, 2, 3, 4])
    notices.told(2, [notice([1, 2, 3, 4])])
    assert "of the model of member 0" in ledger.refusal(9, 4, [0, 1, 2, 3, 4])


def test_notices_are_bounded_and_expire() -> None:
    ledger, now = Ledger(STILL), [12]
    notices = Notices(0, ledger, lambda: now[0])
    with pytest.raises(ValidationError):
        notice([1, 2, 3], -1)
    for far in (2, 14, 10**9):
        for teller in (1, 2):
            notices.told(teller, [notice([1, 2, 3], far)])
    assert ledger.tensors() == {}
    for collector in range(10, 900):
        notices.told(1, [notice([1, 2, 3], 12, collector)])
    assert len(notices._tellers) <= 400 + 1
    notices.took_part(9, Position(12, 1), [0, 1, 2], False)
    for collector in range(10, 200):
        notices.took_part(collector, Position(12, 1), range(40), True)
    told = notices.to_tell()
    assert told[0].members == (0, 1, 2), "what nobody else can know comes first"
    assert len(told) <= 100
    assert sum(len(one.members) for one in told) <= 3000
    now[0] = 30
    assert notices.to_tell() == ()
    assert not notices._tellers


def test_two_sums_in_one_exchange_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Members of disjoint groups cannot know of each other before both have answered. Then it shows."""
    ledger = Ledger(STILL)
    notices = Notices(0, ledger, lambda: 4, lambda number: f"peer-{number}")
    notices.took_part(9, Position(3, 1), [0, 1, 2], False)
    for teller in (4, 5):
        notices.told(teller, [notice([4, 5, 6])])
    said = "round 3: peer-9 had two sums in one exchange, over peer-0, peer-1, peer-2 and over peer-4, peer-5"
    assert [text for text in caplog.messages if text.startswith(said)] == [
        f"{said}, peer-6; its account has both"
    ]


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
