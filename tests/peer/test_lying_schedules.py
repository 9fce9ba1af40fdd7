"""Deterministic schedules with a lying member: it has a valid key, and says other things than its code would.

What it says, and when, follows from the seed, as do delays, losses and copies of the network. Whatever it
does, the honest finish all rounds, with finite models, and nothing sealed can be opened. A failing schedule
is replayed by its seed:

    pytest "tests/peer/test_lying_schedules.py::test_lying_schedule[17]"
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from lying import Liars, Lie
from peers_in_memory import Size
from revealed_shares import revealed

from coterie.errors import CoterieError
from coterie.peer.network.messages import (
    Claim,
    Finding,
    Had,
    Head,
    Hello,
    Inquiry,
    Parcel,
    SealAnswer,
    SealStep,
    Voucher,
    Whereabouts,
    decode_head,
    encode_head,
)
from coterie.peer.process import Pace
from coterie.testing import Faults, run_virtually
from coterie.training import Training

ALGORITHMS = ("d-psgd", "gossip-fedavg", "ppdl", "random-gossip", "kin", "osgp", "dfedpgp", "fedavg")
FREE = ("d-psgd", "osgp", "dfedpgp")
PEERS, LIAR, ROUNDS, SAMPLES = 5, 3, 3, 6
PACE = Pace(deadline=4.0, join=12.0, heartbeat=1.0, suspect_after=3.0, linger=3.0)
LONGEST = 4000.0  # virtual seconds

H = TypeVar("H", bound=Any)


def changed(head: H, **changes: Any) -> H:
    return head.model_copy(update=changes)


def bent(rng: random.Random, body: bytes) -> bytes:
    """Other bytes of about the same length: some flipped, cut off, zeros, ones, or noise."""
    if not body:
        return body
    if rng.random() < 0.4:
        place = rng.randrange(len(body))
        return body[:place] + bytes([body[place] ^ 1 << rng.randrange(8)]) + body[place + 1 :]
    return rng.choice(
        [body[: rng.randrange(len(body))], bytes(len(body)), b"\xff" * len(body), rng.randbytes(32)]
    )


def about_itself(rng: random.Random, head: Hello) -> Hello:
    return rng.choice(
        [
            changed(head, round=rng.choice((-1, 2, 299, 10**9))),
            changed(head, slot=rng.choice((0, 7, 10**6))),
            changed(head, finished=True),
            changed(head, lend=True),
            changed(head, digest="1" * 64),
            changed(head, number=rng.randrange(PEERS)),
            changed(head, addresses={f"peer-{n}": Whereabouts(address="nowhere:1") for n in range(PEERS)}),
        ]
    )


def as_collector(rng: random.Random, head: SealStep) -> SealStep:
    return rng.choice(
        [
            changed(head, members=tuple(sorted(rng.sample(range(PEERS), 3)))),
            changed(head, members=head.members[:2], threshold=2),
            changed(head, threshold=rng.randrange(5)),
            changed(head, exponent=rng.choice((-64, 0, 64))),
            changed(head, session=rng.randbytes(16).hex()),
            changed(head, step=rng.choice(("measure", "advertise", "share", "mask", "unmask"))),
            changed(head, round=head.round + rng.choice((-1, 1, 10**6))),
        ]
    )


def as_member(rng: random.Random, head: SealAnswer) -> SealAnswer:
    accused = tuple(rng.sample((*range(PEERS), 77), 2))
    return changed(head, exponent=rng.choice((-64, 10, 64)), accused=rng.choice(((), accused)))


def about_sums(rng: random.Random, head: Claim) -> Claim:
    """It hides sums that it had, or claims another one, perhaps in the same exchange."""
    group = tuple(sorted(rng.sample([n for n in range(PEERS) if n != LIAR], 3)))
    return rng.choice(
        [
            changed(head, had=()),
            changed(head, members=group),
            changed(head, session=rng.randbytes(16).hex(), members=group),
            changed(head, round=max(0, head.round + rng.choice((-1, 1, 10**6)))),
        ]
    )


def about_others(rng: random.Random, head: Voucher) -> Voucher:
    """It vouches for nobody: it says that there were other sums."""
    false = Had(members=(0, 1, 2), rounds=(0,))
    return changed(head, missing=rng.choice(((), (false,), (false,) * 100)))


def liar(seed: int) -> Lie:
    """It lies in every second message or so: in the head, in the body, or in both."""
    rng = random.Random(f"lies-{seed}")
    often = rng.choice((0.1, 0.5, 0.9))
    heads: dict[type, Callable[[random.Random, Any], Head]] = {
        Hello: about_itself,
        SealStep: as_collector,
        SealAnswer: as_member,
        Claim: about_sums,
        Voucher: about_others,
        Parcel: lambda rng, head: changed(head, round=head.round + rng.choice((-2, 1, 10**6))),
        Inquiry: lambda rng, head: changed(head, round=rng.choice((0, 10**6))),
        Finding: lambda rng, head: changed(head, taken=rng.choice((True, False, None))),
    }

    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        if rng.random() < often and type(head) in heads:
            head = decode_head(encode_head(heads[type(head)](rng, head)))  # what is malformed goes no further
        return head, bent(rng, body) if rng.random() < often else body

    return lie


def play(seed: int, folder: Path) -> tuple[Liars, dict[int, CoterieError | None]]:
    rng = random.Random(f"lying-schedule-{seed}")
    name = rng.choice(ALGORITHMS)
    faults = Faults(
        delay=rng.choice((0.001, 0.02, 0.2)),
        lost_request=rng.choice((0.0, 0.05)),
        lost_answer=rng.choice((0.0, 0.05)),
        duplicated=rng.choice((0.0, 0.2)),
    )
    world = Liars(
        name,
        folder,
        Size(PEERS, ROUNDS, SAMPLES),
        lies={LIAR: liar(seed)},
        faults=faults,
        seed=seed,
        in_step=name not in FREE or rng.random() < 0.6,
        pace=PACE,
        training=Training(epochs=1, batch_size=SAMPLES, lr=0.1),
        busy=0.5,
        evaluates=lambda round: round == ROUNDS - 1,
    )
    world.network.recording = name in ("gossip-fedavg", "ppdl", "random-gossip", "kin")
    return world, run_virtually(world.play_for(LONGEST, []))


def check(seed: int, folder: Path) -> tuple[int, int]:
    """What must hold after a schedule; how many honest peers finished, of how many."""
    world, ends = play(seed, folder)
    for peer in world.honest:
        assert ends[peer.number] is None, f"{peer.name}: {ends[peer.number]!r}"
        assert peer.journal.round == world.rounds
        for value in peer.algorithm.personal(peer.state).values():
            assert bool(value.isfinite().all())
    honest = {peer.name for peer in world.honest}
    for seeds, keys, threshold in revealed(world).values():
        assert len(seeds & honest) < threshold or len(keys & honest) < threshold, "a value could be opened"
    return sum(ends[peer.number] is None for peer in world.honest), len(world.honest)


@pytest.mark.parametrize("seed", range(200))
def test_lying_schedule(seed: int, tmp_path: Path) -> None:
    finished, honest = check(seed, tmp_path)
    assert finished == honest


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(2, 52))
def test_many_lying_schedules(hundred: int, tmp_path: Path) -> None:
    """5,000: every honest peer finishes."""
    counts = [check(seed, tmp_path / str(seed)) for seed in range(100 * hundred, 100 * hundred + 100)]
    assert sum(finished for finished, _ in counts) == sum(honest for _, honest in counts)
