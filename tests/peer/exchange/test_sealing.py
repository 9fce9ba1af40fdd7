"""Sealed exchanges between peers: the sums are right, survive drop-outs, and nothing else can be read."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from peers_in_memory import Size, World, simulated
from quantised import quantised_sum
from torch import Tensor

from coterie.catalogue import algorithms
from coterie.errors import RefusedError, UnreachableError
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.sealed.bodies import unpack, unpack_claim, unpack_reveal, unpack_words
from coterie.peer.exchange.sealed.sealing import Sealing
from coterie.peer.network.messages import Body, Head, SealAnswer, SealStep, TreeShape, decode_tree, shape_of
from coterie.peer.network.serving import Handler
from coterie.peer.process import Peer
from coterie.protocol import Tree
from coterie.protocol.ledger import Bound
from coterie.protocol.secure_sum import FixedPoint, Plan, Words, magnitude_exponent
from coterie.protocol.secure_sum.masks import keystream
from coterie.protocol.secure_sum.member import STEPS
from coterie.protocol.secure_sum.shamir import combine
from coterie.testing import MemoryNetwork, run_virtually

ALL_STEPS = ("measure", *STEPS)


@pytest.fixture(autouse=True)
def same_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and masks follow from a seed, so that what a test sees is the same every time."""
    rng = random.Random(7)
    monkeypatch.setattr(secrets, "token_bytes", rng.randbytes)
    monkeypatch.setattr(secrets, "token_hex", lambda n: rng.randbytes(n).hex())
    monkeypatch.setattr(secrets, "randbelow", rng.randrange)


class Query(NamedTuple):
    """One peer asks for one sum."""

    collector: int
    at: Position


@dataclass
class Truth:
    """What everyone put into the sums, and what came out: known to the test only."""

    vectors: dict[tuple[int, Position], Tensor] = field(default_factory=dict)
    wanted: dict[Query, list[int]] = field(default_factory=dict)
    sums: dict[Query, tuple[Tensor, int] | None] = field(default_factory=dict)

    def expected(self, query: Query, members: Iterable[int], measured: Iterable[int] | None = None) -> Tensor:
        """measured: those whose range the encoding is for."""
        members = list(members)
        encoding = self.encoding(query.at, members if measured is None else measured)
        return quantised_sum([self.vectors[n, query.at] for n in members], encoding)

    def encoding(self, at: Position, members: Iterable[int]) -> FixedPoint:
        return FixedPoint.within(max(magnitude_exponent(self.vectors[n, at]) for n in members))


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> Truth:
    known = Truth()
    open_, collect = Sealing.open, Sealing.collect

    def watched_open(self: Sealing, at: Position, vector: Tensor, *more: Any) -> None:
        known.vectors[self.party.number, at] = vector
        open_(self, at, vector, *more)

    async def watched_collect(
        self: Sealing, members: list[int], at: Position, *more: Any
    ) -> tuple[Tensor, int] | None:
        query = Query(self.party.number, at)
        known.wanted[query] = members
        known.sums[query] = await collect(self, members, at, *more)
        return known.sums[query]

    monkeypatch.setattr(Sealing, "open", watched_open)
    monkeypatch.setattr(Sealing, "collect", watched_collect)
    return known


def world(folder: Path, name: str = "random-gossip", *, group: int, peers: int = 5, rounds: int = 2) -> World:
    """Everyone sums over a group of so many of the others, whatever their sums give away together."""
    size, bound = Size(peers, rounds, samples=6), Bound(opened=1.0)
    return World(algorithms[name](peers=group), folder, size, bound=bound)


# --- the sums ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ppdl", "random-gossip"])
def test_sums_are_quantised_sums_bit_for_bit(name: str, truth: Truth, tmp_path: Path) -> None:
    peers = world(tmp_path, name, group=3, rounds=3)
    run_virtually(peers.play())
    assert len(truth.sums) == 15
    for query, found in truth.sums.items():
        assert found is not None
        members = truth.wanted[query]
        assert len(members) == found[1] == 3
        assert torch.equal(found[0], truth.expected(query, members))


def test_models_are_those_of_the_simulator_bit_for_bit(tmp_path: Path) -> None:
    peers = world(tmp_path, group=3, rounds=3)
    run_virtually(peers.play())
    expected, *_ = simulated(peers)  # sealing = "quantised"; "masked" gives the same bits
    for number, peer in peers.peers_by_number.items():
        for leaf, value in peer.algorithm.personal(peer.state).items():
            assert torch.equal(value[0], expected[leaf][number])


# --- drop-outs -----------------------------------------------------------------------------------


@dataclass
class Doomed:
    """A handler that is killed when one collector asks it for one step."""

    handler: Handler
    number: int
    world: World
    step: str
    collector: str = "peer-0"

    def admit(self, caller: str, head: Head, size: int) -> Awaitable[None] | None:
        return self.handler.admit(caller, head, size)

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        if isinstance(head, SealStep) and head.step == self.step and caller == self.collector:
            self.world.network.detach(f"peer-{self.number}")
            self.world.tasks[self.number].cancel()
            raise UnreachableError("went away")
        return await self.handler.take(caller, head, body)


def play_with_deaths(peers: World, step: str, victims: Iterable[int]) -> None:
    """All to the end, while the victims are killed when peer 0 asks them for this step in the first round."""

    def handler(peer: Peer) -> Handler:
        return Doomed(peer, peer.number, peers, step) if peer.number in victims else peer

    async def play() -> None:
        peers.handler = handler  # type: ignore[method-assign]
        for number in range(peers.nodes):
            peers.start(number)
        ends = await asyncio.gather(*peers.tasks.values(), return_exceptions=True)
        for number, end in enumerate(ends):
            assert isinstance(end, asyncio.CancelledError) if number in victims else end is None

    run_virtually(play())


@pytest.mark.parametrize("step", ALL_STEPS)
def test_a_member_that_is_killed_is_recovered_above_the_threshold(
    step: str, truth: Truth, tmp_path: Path
) -> None:
    peers = world(tmp_path, group=4)
    play_with_deaths(peers, step, [4])
    first = Query(0, Position(0, 1))
    found = truth.sums[first]
    assert found is not None
    members = [1, 2, 3, 4] if step == "unmask" else [1, 2, 3]  # after mask, its vector is in the sum
    measured = [1, 2, 3] if step == "measure" else [1, 2, 3, 4]
    assert found[1] == len(members)
    assert torch.equal(found[0], truth.expected(first, members, measured))
    for query, other in truth.sums.items():  # those who were at another step, and all in the next round
        if query.collector != 4:
            assert other is not None
            assert _is_a_sum(truth, query, other)


def _is_a_sum(truth: Truth, query: Query, found: tuple[Tensor, int]) -> bool:
    everyone = [n for n in range(5) if n != query.collector]
    groups = [group for size in (3, 4) for group in itertools.combinations(everyone, size)]
    there = [group for group in groups if all((n, query.at) in truth.vectors for n in group)]
    return any(
        len(group) == found[1] and torch.equal(truth.expected(query, group, measured), found[0])
        for group in there
        for measured in there
        if set(group) <= set(measured)
    )


BELOW = {
    "measure": "only 2 of 4 members answered, and the threshold is 3: nothing is revealed",
    "advertise": "only 2 of 4 members are left after step advertise, and the threshold is 3",
    "share": "only 2 of 4 members are left after step share, and the threshold is 3",
    "mask": "only 2 of 4 members are left after step mask, and the threshold is 3",
    "unmask": "only 2 of 4 members are left after step unmask, and the threshold is 3",
}


@pytest.mark.parametrize("step", ALL_STEPS)
def test_below_the_threshold_there_is_an_error_and_the_peer_goes_on(
    step: str, truth: Truth, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = world(tmp_path, group=4)
    with caplog.at_level(logging.WARNING, "coterie.peer"):
        play_with_deaths(peers, step, [3, 4])
    assert truth.sums[Query(0, Position(0, 1))] is None
    assert f"round 0: no sealed sum: {BELOW[step]}" in caplog.text
    for number in (0, 1, 2):
        peer = peers.peers_by_number[number]
        assert [report.round for report in peers.reports[number]] == [0, 1]  # with an empty inbox
        assert peer.metrics.sealed_failures + peer.metrics.sealed_sums == 2
    assert peers.peers_by_number[0].metrics.sealed_failures == 2  # and two of four in the next round


def test_a_member_that_is_silent_does_not_use_up_the_time_of_the_others(
    truth: Truth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives, but does not answer: as if its training took longer than an exchange."""
    peers = world(tmp_path, group=4, rounds=1)
    take = Sealing.admit

    async def slow(self: Sealing, number: int, head: SealStep, size: int) -> None:
        if self.party.number == 4:
            await asyncio.sleep(1000)
        await take(self, number, head, size)

    monkeypatch.setattr(Sealing, "admit", slow)
    run_virtually(peers.play())
    query = Query(0, Position(0, 1))
    found = truth.sums[query]
    assert found is not None
    assert torch.equal(found[0], truth.expected(query, [1, 2, 3]))


# --- what can be read ----------------------------------------------------------------------------


@dataclass
class Overheard:
    """What one peer received, by session of a secure sum: heads and bodies."""

    asked: dict[str, list[tuple[SealStep, bytes]]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[str, dict[str, dict[int, bytes]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    heads: dict[str, SealStep] = field(default_factory=dict)
    everything: list[bytes] = field(default_factory=list)

    @classmethod
    def by(cls, number: int, network: MemoryNetwork) -> Overheard:
        heard, open_ = cls(), {}
        for sender, receiver, head, body in network.seen:
            if isinstance(head, SealStep):
                open_[sender, receiver] = head
            if isinstance(head, SealStep) and sender == f"peer-{number}":
                heard.heads[head.session] = head
            if receiver != f"peer-{number}":
                continue
            heard.everything.append(body)
            if isinstance(head, SealStep):
                heard.asked[head.session].append((head, body))
            elif isinstance(head, SealAnswer):
                step = open_[receiver, sender]
                heard.answers[step.session][step.step][int(sender.rpartition("-")[2])] = body
        return heard


def play_and_record(folder: Path, rounds: int = 3) -> World:
    peers = world(folder, "ppdl", group=3, rounds=rounds)
    peers.network.recording = True
    run_virtually(peers.play())
    return peers


def distance(words: NDArray[Any], target: NDArray[Any]) -> float:
    """Mean distance on the ring of 2^32, as a part of the largest: 0.5 for random words."""
    apart = (words.astype(np.int64) - target.astype(np.int64)) % 2**32
    return float(np.minimum(apart, 2**32 - apart).mean() / 2**31)


def combinations(words: Mapping[int, Words]) -> Iterator[tuple[tuple[int, ...], Words]]:
    """Every sum of the vectors with factors -1, 0 and 1, except nothing at all."""
    for factors in itertools.product((-1, 0, 1), repeat=len(words)):
        if any(factors):
            parts = (np.int64(f) * v.astype(np.int64) for f, v in zip(factors, words.values(), strict=True))
            yield factors, (np.sum(list(parts), axis=0) % 2**32).astype(np.uint32)


def targets(encoded: Mapping[int, Words]) -> dict[tuple[int, ...], Words]:
    """What must stay hidden: single vectors, differences, sums of some."""
    full = (1,) * len(encoded)
    return {factors: value for factors, value in combinations(encoded) if abs(sum(factors)) != len(full)}


def lifted(reveals: Mapping[int, bytes], masked: Mapping[int, Words], head: SealStep) -> dict[int, Words]:
    """The masked vectors without their self-masks, whose seeds the collector learns."""
    plan = Plan(bytes.fromhex(head.session), head.members, head.threshold, FixedPoint.within(head.exponent))
    shares = {plan.point(n): unpack_reveal(body) for n, body in reveals.items()}
    seeds = {
        n: combine({point: reveal.seeds[n] for point, reveal in shares.items()}, plan.threshold)
        for n in masked
    }
    return {n: words - keystream(seeds[n], len(words)) for n, words in masked.items()}


def test_a_collector_reads_the_sum_and_nothing_else(truth: Truth, tmp_path: Path) -> None:
    peers = play_and_record(tmp_path)
    sessions = 0
    for number in range(5):
        heard = Overheard.by(number, peers.network)
        for session, steps in heard.answers.items():
            head = heard.heads[session]
            at, sessions = Position(head.round, head.slot), sessions + 1
            encoding = FixedPoint.within(head.exponent)
            encoded = {n: encoding.encode(truth.vectors[n, at]) for n in head.members}
            length = len(encoded[head.members[0]])
            masked = {n: unpack_words(body, length) for n, body in sorted(steps["mask"].items())}
            without_self_masks = lifted(steps["unmask"], masked, head)
            hidden = targets(encoded)
            for view in (masked, without_self_masks):
                for factors, words in combinations(view):
                    if view is without_self_masks and abs(sum(factors)) == 3:
                        continue  # that is the sum
                    for target in hidden.values():
                        assert distance(words, target) > 0.2
            total = without_self_masks[head.members[0]].copy()
            for other in head.members[1:]:
                total += without_self_masks[other]
            expected = truth.expected(Query(number, at), head.members)
            assert torch.equal(encoding.decode(total, 3), expected), "the test cannot even see the sum"
    assert sessions == 15


def test_what_arrives_looks_random(truth: Truth, tmp_path: Path) -> None:
    """Masked vectors, also without their self-masks: the bytes are uniform by chi-square."""
    peers = play_and_record(tmp_path)
    collected: dict[str, list[Words]] = {"masked": [], "lifted": [], "true": []}
    for number in range(5):
        heard = Overheard.by(number, peers.network)
        for session, steps in heard.answers.items():
            head = heard.heads[session]
            at = Position(head.round, head.slot)
            length = len(truth.vectors[head.members[0], at])
            masked = {n: unpack_words(body, length) for n, body in steps["mask"].items()}
            collected["masked"] += masked.values()
            collected["lifted"] += lifted(steps["unmask"], masked, head).values()
            encoding = FixedPoint.within(head.exponent)
            collected["true"] += [encoding.encode(truth.vectors[n, at]) for n in head.members]
    for shift in (0, 8, 16, 24):
        assert chi_square(collected["masked"], shift) < 370  # 255 degrees of freedom: p = 3e-6
        assert chi_square(collected["lifted"], shift) < 370
    assert chi_square(collected["true"], 24) > 10_000


def chi_square(words: list[Words], shift: int) -> float:
    values = (np.concatenate(words) >> np.uint32(shift)) & np.uint32(255)
    expected = len(values) / 256
    return float(((np.bincount(values, minlength=256) - expected) ** 2).sum() / expected)


def test_no_vector_of_another_is_in_anything_that_a_peer_receives(truth: Truth, tmp_path: Path) -> None:
    """In both roles and all sessions of the run, in any form in which a vector is written anywhere."""
    peers = play_and_record(tmp_path)
    for number in range(5):
        heard = Overheard.by(number, peers.network)
        assert len(heard.everything) > 100
        for (other, _), vector in truth.vectors.items():
            if other != number:
                for written in forms(vector):
                    assert not any(written in body for body in heard.everything)


def forms(vector: Tensor) -> Iterator[bytes]:
    """Pieces of a vector as real numbers and as integers, little- and big-endian."""
    for exponent in range(-2, 12):
        encoded = FixedPoint.within(exponent).encode(vector)
        if len(np.unique(encoded[:4])) > 1:  # a clipped vector is a constant
            yield from (encoded[:4].astype(kind).tobytes() for kind in ("<u4", ">u4"))
    values = vector[:4].numpy()
    yield from (values.astype(kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8"))


def test_a_plain_exchange_could_be_read_and_a_sealed_one_cannot(tmp_path: Path) -> None:
    """The same reader finds four models in the one and none in the other."""
    plain = World("d-psgd", tmp_path / "plain", Size(5, 1, samples=6))
    plain.network.recording = True
    run_virtually(plain.play())
    params = plain.peers_by_number[0].state.params
    assert len(models_in(Overheard.by(0, plain.network), shape_of(params))) == 4
    sealed = play_and_record(tmp_path / "sealed", rounds=1)
    for number in range(5):
        heard = Overheard.by(number, sealed.network)
        payload = {"weighted": params, "samples": {"n": torch.ones(1)}}
        assert models_in(heard, shape_of(params)) == models_in(heard, shape_of(payload)) == []
        assert not any(b"data_offsets" in body for body in heard.everything)


def models_in(heard: Overheard, like: TreeShape) -> list[Tree]:
    found = []
    for body in heard.everything:
        with contextlib.suppress(RefusedError):
            found.append(decode_tree(body, like))
    return found


def test_a_member_receives_keys_and_boxes_and_no_vector(truth: Truth, tmp_path: Path) -> None:
    """As a member of other peers' sums: nothing of the others' vectors, not even masked."""
    peers = play_and_record(tmp_path)
    for number in range(5):
        heard = Overheard.by(number, peers.network)
        assert heard.asked
        for steps in heard.asked.values():
            assert [head.step for head, _ in steps] == list(ALL_STEPS)
            for head, body in steps:
                others = set(head.members) - {number}
                if head.step in ("measure", "advertise"):
                    assert body == b""
                elif head.step == "share":
                    assert all(len(card) == 64 for card in unpack(body).values())
                elif head.step == "mask":
                    assert set(unpack(body)) == others
                    assert all(len(box) == 2 * 32 + 12 + 2 * 66 + 16 for box in unpack(body).values())
                else:
                    assert unpack_claim(body)[0].members == tuple(sorted(head.members))
