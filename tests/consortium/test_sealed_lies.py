"""A member lies in sealed exchanges: it is named and the sum is right without it, or nothing is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lying import QUICK, Twist, other_body, shared, unreadable_boxes, wrong_shares
from peers_in_memory import Size, World

from coterie.errors import SecureSumError
from coterie.peer.exchange.sealed.bodies import pack_reveal, unpack_reveal
from coterie.peer.exchange.sealed.collecting import LeftOut, judged
from coterie.peer.network.messages import Body, Head, SealAnswer, SealStep
from coterie.peer.network.serving import Handler
from coterie.peer.process import Peer
from coterie.protocol.ledger import Bound
from coterie.protocol.plausible import norm
from coterie.protocol.secure_sum import FixedPoint, PairwiseCollector, PairwiseMember, Plan
from coterie.testing import run_virtually

SIZE = Size(peers=5, rounds=3, samples=6)
LIAR = 4


class Twisted(World):
    """Peer 4 answers one step of every secure sum with something else."""

    def __init__(self, folder: Path, step: str, twist: Twist, size: Size = SIZE) -> None:
        super().__init__("gossip-fedavg", folder, size, pace=QUICK)
        self.step, self.twist = step, twist

    def handler(self, peer: Peer) -> Handler:
        return _Handler(peer, self) if peer.number == LIAR else peer


class _Handler:
    def __init__(self, peer: Peer, world: Twisted) -> None:
        self.peer, self.world = peer, world

    def admit(self, caller: str, head: Head, size: int) -> Any:
        return self.peer.admit(caller, head, size)

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        answer, content = await self.peer.take(caller, head, body)
        if isinstance(head, SealStep) and head.step == self.world.step and isinstance(answer, SealAnswer):
            return self.world.twist(answer, content)
        return answer, content


def beyond(answer: SealAnswer, body: bytes) -> tuple[SealAnswer, bytes]:
    return answer.model_copy(update={"exponent": 64}), body


def without_a_box(parts: dict[str, bytes]) -> None:
    del parts[min(name for name in parts if name.startswith("box-"))]


def without_a_promise(parts: dict[str, bytes]) -> None:
    del parts[min(name for name in parts if name.startswith("said-"))]


def short_promise(parts: dict[str, bytes]) -> None:
    parts["said-4"] = parts["said-4"][:-1]


def something_else(parts: dict[str, bytes]) -> None:
    parts["more-4"] = b""


def false_promises(parts: dict[str, bytes]) -> None:
    for name in parts:
        if name.startswith("said-"):
            parts[name] = bytes(len(parts[name]))


def one_unreadable_box(parts: dict[str, bytes]) -> None:
    name = min(name for name in parts if name.startswith("box-"))
    parts[name] = bytes(len(parts[name]))


def false_seed(parts: dict[str, bytes]) -> None:
    parts["seed"] = bytes(32)


def fewer_shares(body: bytes) -> bytes:
    reveal = unpack_reveal(body)
    return pack_reveal(replace(reveal, seeds=dict(list(reveal.seeds.items())[1:])))


# Named in the first round, and left out for as long as sums count.
NAMED_IN = 1


@pytest.mark.parametrize(
    ("step", "twist", "words"),
    [
        ("measure", beyond, "its values are within 2^64, and this peer's own within 2^"),
        ("advertise", other_body(lambda body: bytes(len(body))), "not a valid X25519 key"),
        ("advertise", other_body(lambda body: body[:32] * 2 + body[64:]), "two of its keys are equal"),
        ("advertise", other_body(lambda body: body[:40]), "public keys of a member have a wrong length"),
        ("share", shared(without_a_box), "it did not send shares to all others"),
        ("share", shared(without_a_promise), "it did not commit itself"),
        ("share", shared(short_promise), "a commitment to shares has a wrong length"),
        ("share", shared(something_else), "neither a share nor a promise"),
        ("share", shared(unreadable_boxes), "its shares are of no use to several members"),
        ("share", shared(false_promises), "its shares are of no use to several members"),
        ("share", other_body(lambda body: b"junk"), ""),
        ("mask", other_body(lambda body: body[:-4]), "a masked vector has"),
        ("unmask", other_body(lambda body: b"junk"), ""),
        ("unmask", other_body(wrong_shares), "it gave a wrong share of member "),
        ("unmask", other_body(fewer_shares), "it did not give one share of each member's secret"),
    ],
)
def test_a_member_that_lies_is_named_and_left_out_and_the_sum_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step: str, twist: Twist, words: str
) -> None:
    world = Twisted(tmp_path, step, twist)
    ends = run_virtually(world.play_with([]))
    honest = [world.peers_by_number[number] for number in range(LIAR)]
    assert all(ends[peer.number] is None for peer in honest)
    for peer in honest:
        assert (peer.metrics.sealed_sums, peer.metrics.sealed_failures) == (SIZE.rounds, 0)
        assert peer.metrics.implausible == {"peer-4": NAMED_IN}
        assert norm(peer.state.params) < 100
    named = [text for text in caplog.messages if text.startswith("what peer-4 sent is refused: ")]
    assert len(named) == 4 * NAMED_IN
    assert all(words in text for text in named)
    assert caplog.messages.count("peer-4 is left out of sealed sums for 10 rounds") == 4


def test_a_liar_whose_vector_is_in_the_sum_costs_no_later_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sums with and without it would tell its model, if it came back before the first one is forgotten."""
    rounds = 13
    world = Twisted(tmp_path, "unmask", other_body(wrong_shares), Size(peers=5, rounds=rounds, samples=6))
    run_virtually(world.play_with([]))
    for number in range(LIAR):
        metrics = world.peers_by_number[number].metrics
        assert (metrics.sealed_sums, metrics.sealed_failures) == (rounds, 0)
        assert metrics.implausible == {"peer-4": 2}
    for left_out in (10, 20):
        assert caplog.messages.count(f"peer-4 is left out of sealed sums for {left_out} rounds") == 4


def test_a_sum_that_a_liar_spoils_is_repeated_in_the_same_round(tmp_path: Path) -> None:
    """All honest members are in the repeated sum: the models are those of a run without the liar."""
    world = Twisted(tmp_path / "lies", "share", shared(unreadable_boxes))
    run_virtually(world.play_with([]))
    silent = Twisted(tmp_path / "silent", "measure", beyond)
    run_virtually(silent.play_with([]))
    for number in range(LIAR):
        for name, value in world.peers_by_number[number].state.params.items():
            assert torch.equal(value, silent.peers_by_number[number].state.params[name])


def test_who_gave_out_shares_of_another_seed_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It shows when the masks are lifted, too late for another sum in this exchange; then it is left out."""
    world = Twisted(tmp_path, "share", shared(false_seed))
    run_virtually(world.play_with([]))
    for number in range(LIAR):
        metrics = world.peers_by_number[number].metrics
        assert (metrics.sealed_sums, metrics.sealed_failures) == (2, 1)
        assert metrics.implausible == {"peer-4": NAMED_IN}
    assert any("are not those of the seed that it promised" in text for text in caplog.messages)


def test_where_one_word_stands_against_another_both_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of the two lies, and nobody else can tell which. With five in a sum, three are left, and enough."""
    world = Twisted(tmp_path, "share", shared(one_unreadable_box), Size(peers=6, rounds=1, samples=6))
    run_virtually(world.play_with([]))
    for number in (1, 2, 3, 5):
        metrics = world.peers_by_number[number].metrics
        assert (metrics.sealed_sums, metrics.sealed_failures) == (1, 0)
        assert metrics.implausible == {"peer-0": 1, "peer-4": 1}
    said = "member 0 says that the shares of member 4 are of no use; one of them lies"
    assert any(said in text for text in caplog.messages)


@pytest.mark.parametrize(
    ("complaints", "guilty"),
    [
        ({}, set()),
        ({1: (4,), 2: (4,), 3: (4,)}, {4}),
        ({4: (1, 2, 3)}, {4}),
        ({1: (4,)}, {1, 4}),
        ({1: (4,), 2: (4,), 4: (1, 2)}, {4}),
        ({1: (4,), 2: (3,)}, {1, 2, 3, 4}),
        ({5: (1, 2), 1: (4,), 2: (4,)}, {4, 5}),
    ],
)
def test_who_is_guilty(complaints: dict[int, tuple[int, ...]], guilty: set[int]) -> None:
    assert set(judged(complaints)) == guilty


def test_nonsense_complaints_name_the_plaintiff(tmp_path: Path) -> None:
    def twist(answer: SealAnswer, body: bytes) -> tuple[SealAnswer, bytes]:
        return answer.model_copy(update={"accused": (77,)}), b""

    world = Twisted(tmp_path, "mask", twist)
    run_virtually(world.play_with([]))
    metrics = world.peers_by_number[0].metrics
    assert metrics.sealed_sums == SIZE.rounds
    assert metrics.implausible.keys() == {"peer-4"}


def test_the_time_of_being_left_out_doubles() -> None:
    left_out, absent, round = LeftOut(3), [], 0
    for _ in range(9):
        rounds = left_out.lied(7, round)
        assert left_out.lied(7, round) == 0, "one lie of a round counts"
        assert [left_out.now(7, r) for r in (round + 1, round + rounds, round + rounds + 1)] == [
            True,
            True,
            False,
        ]
        assert not left_out.now(8, round + 1)
        absent.append(rounds)
        round += rounds + 1
    assert absent == [3, 6, 12, 24, 48, 64, 64, 64, 64]
    assert [LeftOut(100).lied(7, 0), LeftOut(1).lied(7, 0)] == [100, 1]


def test_sums_that_never_open_are_a_warning_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Three of five are silent about their range in every round: no sum of four can be had."""

    class Mute(Twisted):
        def handler(self, peer: Peer) -> Handler:
            return _Handler(peer, self) if peer.number >= 2 else peer

    world = Mute(tmp_path, "measure", beyond, Size(peers=5, rounds=6, samples=6))
    run_virtually(world.play_with([]))
    said = [text for text in caplog.messages if "this peer learns nothing from the others" in text]
    assert len(said) == 2 * 5, "after three and after six, at all five"
    assert "round 2: the last 3 sealed sums could not be opened, in all 0 of 3 were" in said[0]


def test_a_wrong_share_names_whoever_gave_it() -> None:
    """Four members and a threshold of three: any one wrong share of any member's seed or key."""
    plan = Plan(b"s" * 16, (0, 1, 2, 3), 3, FixedPoint())
    for liar in plan.members:
        members = {number: PairwiseMember(number, torch.ones(5), plan) for number in plan.members}
        collector = PairwiseCollector(plan)
        roster = collector.roster({n: member.advertise() for n, member in members.items()})
        boxes = collector.route(
            {n: member.share(roster) for n, member in members.items()},
            {n: member.promise() for n, member in members.items()},
        )
        masked = {n: member.mask(boxes[n], collector.promised(n)) for n, member in members.items()}
        silent = (liar + 2) % 4
        del masked[silent]
        survivors = collector.survivors(masked)
        reveals = {n: collector.checked(n, members[n].unmask(survivors)) for n in survivors}
        assert torch.allclose(collector.total(reveals), torch.full((5,), 3.0).double(), atol=1e-4)
        true, victim = reveals[liar], (liar + 1) % 4
        for wrong in (
            replace(true, seeds={**true.seeds, victim: true.seeds[victim] + 1}),
            replace(true, keys={silent: true.keys[silent] + 1}),
            replace(true, keys={}),
        ):
            with pytest.raises(SecureSumError) as refusal:
                collector.checked(liar, wrong)
            assert refusal.value.accused == {liar}


def test_a_number_that_no_members_can_have_is_refused() -> None:
    """A masked vector may hold any 32 bits, whatever its range: the sum of four tells."""
    plan = Plan(b"s" * 16, (0, 1, 2, 3), 3, FixedPoint.within(2))
    members = {number: PairwiseMember(number, torch.ones(5), plan) for number in plan.members}
    members[3]._vector[2] += 4 * 2**22  # four times the range
    collector = PairwiseCollector(plan)
    roster = collector.roster({n: member.advertise() for n, member in members.items()})
    boxes = collector.route(
        {n: member.share(roster) for n, member in members.items()},
        {n: member.promise() for n, member in members.items()},
    )
    masked = {n: member.mask(boxes[n], collector.promised(n)) for n, member in members.items()}
    survivors = collector.survivors(masked)
    with pytest.raises(SecureSumError, match=r"the sum is larger than that of 4 members within 2\^2"):
        collector.total({n: members[n].unmask(survivors) for n in survivors})


def test_a_range_beyond_the_agreed_one_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Peers have some 2^4 as samples times weights; one says 2^8, and 64 are agreed."""
    twist = lambda answer, body: (answer.model_copy(update={"exponent": 8}), body)  # noqa: E731
    world = Twisted(tmp_path, "measure", twist)
    world.bound = Bound(largest=64.0)
    run_virtually(world.play_with([]))
    for number in range(LIAR):
        metrics = world.peers_by_number[number].metrics
        assert metrics.sealed_sums == SIZE.rounds
        assert metrics.implausible == {"peer-4": NAMED_IN}
    assert any("values within 2^8 are beyond the agreed 64" in text for text in caplog.messages)
    assert Bound(largest=64.0).beyond(6) == Bound().beyond(64) == ""


@pytest.mark.parametrize("factor", [2000, 60])
def test_a_sum_that_cannot_be_honest_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, factor: int
) -> None:
    """One member's model times so much stays within the range, and shows in the opened sum over four."""
    world = World("gossip-fedavg", tmp_path, SIZE, pace=QUICK)
    plain = world._peer

    def made(number: int) -> Peer:
        peer = plain(number)
        if number == LIAR:
            give = peer.sealing.open

            def swollen(at: Any, vector: Any, *more: Any) -> None:
                vector = vector.clone()
                vector[:-1] *= factor  # the last is the number of samples
                give(at, vector, *more)

            peer.sealing.open = swollen  # type: ignore[method-assign]
        return peer

    world._peer = made  # type: ignore[method-assign]
    run_virtually(world.play_with([]))
    for number in range(LIAR):
        peer = world.peers_by_number[number]
        assert peer.metrics.sealed_implausible == SIZE.rounds
        assert norm(peer.state.params) < 100
    assert any("is not used: its norm is" in text and "peer-4" in text for text in caplog.messages)
