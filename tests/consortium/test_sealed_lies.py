"""A member lies in sealed exchanges: it is named and the sum is right without it, or nothing is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lying import QUICK
from peers_in_memory import Size, World

from coterie.errors import SecureSumError
from coterie.peer.exchange.seal_bodies import pack, pack_reveal, unpack, unpack_reveal
from coterie.peer.network.messages import Body, Head, SealAnswer, SealStep
from coterie.peer.network.serving import Handler
from coterie.peer.process import Peer
from coterie.protocol.plausible import norm
from coterie.protocol.secure_sum import FixedPoint, PairwiseCollector, PairwiseMember, Plan
from coterie.testing import run_virtually

SIZE = Size(peers=5, rounds=3, samples=6)
LIAR = 4
Twist = Callable[[SealAnswer, bytes], tuple[SealAnswer, bytes]]


class Twisted(World):
    """Peer 4 answers one step of every secure sum with something else."""

    def __init__(self, folder: Path, step: str, twist: Twist) -> None:
        super().__init__("gossip-fedavg", folder, SIZE, pace=QUICK)
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


def other_body(change: Callable[[bytes], bytes]) -> Twist:
    return lambda answer, body: (answer, change(body))


def fewer_boxes(body: bytes) -> bytes:
    boxes = unpack(body)
    boxes.pop(min(boxes))
    return pack(boxes)


def wrong_shares(body: bytes) -> bytes:
    reveal = unpack_reveal(body)
    return pack_reveal(replace(reveal, seeds={number: share ^ 1 for number, share in reveal.seeds.items()}))


@pytest.mark.parametrize(
    ("step", "twist", "words"),
    [
        ("measure", beyond, "its values are within 2^64, and this peer's own within 2^"),
        ("advertise", other_body(lambda body: bytes(len(body))), "not a valid X25519 key"),
        ("advertise", other_body(lambda body: body[:40]), "public keys of a member have a wrong length"),
        ("share", other_body(fewer_boxes), "it did not send shares to all others"),
        ("share", other_body(lambda body: b"junk"), ""),
        ("mask", other_body(lambda body: body[:-4]), "a masked vector has"),
        ("unmask", other_body(lambda body: b"junk"), ""),
    ],
)
def test_a_member_whose_answer_makes_no_sense_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step: str, twist: Twist, words: str
) -> None:
    world = Twisted(tmp_path, step, twist)
    ends = run_virtually(world.play_with([]))
    honest = [world.peers_by_number[number] for number in range(LIAR)]
    assert all(ends[peer.number] is None for peer in honest)
    for peer in honest:
        assert (peer.metrics.sealed_sums, peer.metrics.sealed_failures) == (SIZE.rounds, 0)
        assert peer.metrics.implausible == {"peer-4": SIZE.rounds}
        assert norm(peer.state.params) < 100
    named = [text for text in caplog.messages if text.startswith("what peer-4 sent is refused: ")]
    assert len(named) == 4 * SIZE.rounds
    assert all(words in text for text in named)


def test_a_wrong_share_opens_no_nonsense(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = Twisted(tmp_path, "unmask", other_body(wrong_shares))
    run_virtually(world.play_with([]))
    for number in range(LIAR):
        peer = world.peers_by_number[number]
        assert (peer.metrics.sealed_sums, peer.metrics.sealed_failures) == (0, SIZE.rounds)
        assert norm(peer.state.params) < 100
    assert any("no sealed sum: " in text and "wrong" in text for text in caplog.messages)


def test_a_wrong_share_is_noticed_whoever_gave_it() -> None:
    """Four members and a threshold of three: any one wrong share of any member's seed."""
    plan = Plan(b"s" * 16, (0, 1, 2, 3), 3, FixedPoint())
    for liar in plan.members:
        members = {number: PairwiseMember(number, torch.ones(5), plan) for number in plan.members}
        collector = PairwiseCollector(plan)
        roster = collector.roster({n: member.advertise() for n, member in members.items()})
        boxes = collector.route({n: member.share(roster) for n, member in members.items()})
        survivors = collector.survivors({n: member.mask(boxes[n]) for n, member in members.items()})
        reveals = {n: member.unmask(survivors) for n, member in members.items()}
        assert torch.allclose(collector.total(reveals), torch.full((5,), 4.0).double(), atol=1e-4)
        victim = (liar + 1) % 4
        seeds = {**reveals[liar].seeds, victim: reveals[liar].seeds[victim] + 1}
        with pytest.raises(SecureSumError, match="wrong"):
            collector.total({**reveals, liar: replace(reveals[liar], seeds=seeds)})


def test_a_sum_that_cannot_be_honest_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One member's model times 2,000 stays within the range, and shows in the opened sum."""
    world = World("gossip-fedavg", tmp_path, SIZE, pace=QUICK)
    plain = world._peer

    def made(number: int) -> Peer:
        peer = plain(number)
        if number == LIAR:
            give = peer.sealing.open

            def swollen(at: Any, vector: Any, collectors: Any) -> None:
                vector = vector.clone()
                vector[:-1] *= 2000  # the last is the number of samples
                give(at, vector, collectors)

            peer.sealing.open = swollen  # type: ignore[method-assign]
        return peer

    world._peer = made  # type: ignore[method-assign]
    run_virtually(world.play_with([]))
    for number in range(LIAR):
        peer = world.peers_by_number[number]
        assert peer.metrics.sealed_implausible == SIZE.rounds
        assert norm(peer.state.params) < 100
    assert any("is not used: its norm is" in text and "peer-4" in text for text in caplog.messages)
