"""The table of lies, once more among real peers on loopback: files, threads, TLS and the clock on the wall.

Four honest peers and a member with a valid key that says other things than its own code would. The honest
finish all rounds, lose at most one deadline, and their logs name the liar. The peers in memory of the other
files show the same in many more variants; here nothing is simulated but the lie.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lying import Lie, Twist, other_body, shared, unreadable_boxes, wrong_shares
from real_peers import PATIENCE, Swarm, experiment, slow_model

from coterie.errors import RefusedError, UnreachableError
from coterie.experiments.real_peers.joining import Joining
from coterie.peer.network.messages import (
    Head,
    Hello,
    Inquiry,
    Parcel,
    SealAnswer,
    SealStep,
    Whereabouts,
    decode_tree,
    encode_tree,
    shape_of,
)
from coterie.peer.turn import own_thread
from coterie.protocol import Links, Tree
from coterie.protocol.ledger import Bound, Ledger
from coterie.protocol.plausible import norm
from coterie.protocol.trees import map_tree

PEERS, LIAR, ROUNDS = 5, 4, 5
NAME = f"peer-{LIAR}"
# A busy machine must not look like an absent peer; whoever waits for a lie in vain waits so long.
PACE = {"deadline": 40.0, "join_seconds": 60.0, "heartbeat": 0.3, "suspect_after": 20.0}


class Answers:
    """Which step of a sum the liar answers: heads of answers do not say it."""

    def __init__(self, step: str, twist: Twist) -> None:
        self.step, self.twist = step, twist


@dataclass
class Scene:
    """Five peers in this process, of which the last one lies. logs: of each, by its name."""

    folder: Path
    table: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    joinings: list[Joining] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.swarm = Swarm(self.folder, self.table, settings={**PACE, **self.settings})
        self.joinings = [self.swarm.join(number) for number in range(PEERS)]
        self.honest = self.joinings[:LIAR]
        for joining in self.joinings:
            joining.peer.work = own_thread()

    @property
    def liar(self) -> Joining:
        return self.joinings[LIAR]

    def lies(self, lie: Lie | Answers) -> None:
        """What it asks and what it answers goes through the lie, below its own audit."""
        transport, peer = self.liar.transport, self.liar.peer
        request, take = transport.request, peer.take

        async def asks(to: str, address: str, head: Head, body: bytes = b"", **more: Any) -> Any:
            said = (head, body) if isinstance(lie, Answers) else lie(head, body)
            return await request(to, address, *said, **more)

        async def answers(caller: str, head: Head, body: Any) -> Any:
            answer, content = await take(caller, head, body)
            if not isinstance(lie, Answers):
                return lie(answer, content)
            if isinstance(head, SealStep) and head.step == lie.step and isinstance(answer, SealAnswer):
                return lie.twist(answer, content)
            return answer, content

        transport.request = asks  # type: ignore[method-assign]
        peer.take = answers  # type: ignore[method-assign]

    def play(self, beside: Callable[[], Any] | None = None) -> None:
        """All to the end; the liar may end as it likes."""

        async def main() -> None:
            running = [asyncio.ensure_future(joining.take_part()) for joining in self.joinings]
            acting = asyncio.ensure_future(beside()) if beside is not None else None
            try:
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(*running[:LIAR])
                    if acting is not None:
                        await acting
            finally:
                for task in (*running, *([acting] if acting else [])):
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

        with self._listening():
            asyncio.run(main())
        deadline = {**PACE, **self.settings}["deadline"]
        for number, joining in enumerate(self.honest):
            rounds = self.swarm.records(number)
            assert joining.peer.journal.round == self.table["rounds"]
            assert [one["round"] for one in rounds] == list(range(self.table["rounds"])), "none is skipped"
            assert sum(one["seconds"] >= deadline for one in rounds) <= 1, "at most one deadline is lost"
            assert norm(joining.peer.state.params) < 100

    @contextmanager
    def _listening(self) -> Iterator[None]:
        scene = self

        class Ear(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                scene.said.append(record.getMessage())

        ear, log = Ear(), logging.getLogger("coterie.peer")
        log.addHandler(ear)
        try:
            yield
        finally:
            log.removeHandler(ear)

    def named(self, words: str) -> int:
        return sum(words in text for text in self.said)


def parcels(change: Callable[[Tree], Tree], of: Joining, since: int = 1) -> Lie:
    """Another payload, from some round on."""

    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        if not isinstance(head, Parcel) or not body or head.round < since:
            return head, body
        return head, encode_tree(change(decode_tree(body, shape_of(payload(of)))))

    return lie


def payload(of: Joining) -> Any:
    """What the peer of a push-sum or averaging method sends, by its state."""
    state = of.peer.state
    if not hasattr(state, "mass"):
        return state.params
    return {"values": state.params, "mass": {"mu": state.mass}}


def times(factor: float) -> Callable[[Tree], Tree]:
    return lambda tree: map_tree(lambda leaf: leaf * factor, tree)


def with_mass(mass: float) -> Callable[[Tree], Tree]:
    return lambda tree: {**tree, "mass": map_tree(lambda leaf: leaf * 0 + mass, tree["mass"])}  # type: ignore[dict-item,index]


def test_a_model_times_a_million(tmp_path: Path) -> None:
    """And after a restart without the liar they go on: nothing of it is on their disks."""
    scene = Scene(tmp_path, experiment(rounds=ROUNDS))
    scene.lies(parcels(times(1e6), scene.liar))
    scene.play()
    assert scene.named(f"what {NAME} sent is refused: its norm is") >= 4
    assert all(joining.peer.metrics.implausible.keys() == {NAME} for joining in scene.honest)
    for number in range(LIAR):
        again = scene.swarm.join(number).peer
        asyncio.run(again.load())
        assert norm(again.state.params) < 100


@pytest.mark.slow
def test_a_flipped_sign_with_the_guard(tmp_path: Path) -> None:
    scene = Scene(tmp_path, experiment(rounds=ROUNDS, robust="near"))
    scene.lies(parcels(times(-1.0), scene.liar, since=0))
    scene.play()
    assert scene.named(f"the models of {NAME} were more than 3 times as far from ours as the others'") == 4


@pytest.mark.slow
@pytest.mark.parametrize("mass", [1e9, -1.0])
def test_mass_that_cannot_be(tmp_path: Path, mass: float) -> None:
    scene = Scene(tmp_path, experiment("osgp", rounds=ROUNDS, topology="full"))
    scene.lies(parcels(with_mass(mass), scene.liar))
    scene.play()
    assert scene.named(f"what {NAME} sent is refused: ") >= 4
    for number, joining in enumerate(scene.honest):
        assert 0 < float(joining.peer.state.mass[0]) <= PEERS
        assert not list((scene.swarm.place(number) / "state").glob(f"in-*-{LIAR}.safetensors"))
        again = scene.swarm.join(number).peer
        asyncio.run(again.load())


@pytest.mark.slow
def test_one_who_says_that_it_is_far_ahead(tmp_path: Path) -> None:
    scene = Scene(tmp_path, experiment(rounds=30))

    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        far = isinstance(head, Hello) and head.round >= 1
        return (head.model_copy(update={"round": 29}) if far else head), body

    scene.lies(lie)
    scene.play()
    assert all(joining.peer.metrics.skipped == 0 for joining in scene.honest)


@pytest.mark.slow
def test_a_parcel_from_the_far_future_at_ones_own_pace(tmp_path: Path) -> None:
    table = experiment(rounds=ROUNDS, model=slow_model(tmp_path / "model", 0.02))
    scene = Scene(tmp_path / "peers", table, {"mode": "free"})

    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        return (head.model_copy(update={"round": 10**9}) if isinstance(head, Parcel) else head), body

    scene.lies(lie)
    scene.play()
    assert all(joining.peer.metrics.messages_in[NAME] == 0 for joining in scene.honest)
    assert all(joining.peer.metrics.refused["unexpected"] > 0 for joining in scene.honest)


# --- sealed --------------------------------------------------------------------------------------


SEALED: dict[str, tuple[str, Twist, str]] = {
    "wrong share": ("unmask", other_body(wrong_shares), "it gave a wrong share of member "),
    "range": (
        "measure",
        lambda answer, body: (answer.model_copy(update={"exponent": 64}), body),
        "its values are within 2^64, and this peer's own within 2^",
    ),
    "zero keys": ("advertise", other_body(lambda body: bytes(len(body))), "not a valid X25519 key"),
    "equal keys": (
        "advertise",
        other_body(lambda body: body[:32] * 2 + body[64:]),
        "its keys are not signed by it",
    ),
    "unreadable boxes": (
        "share",
        shared(unreadable_boxes),
        "its shares are of no use to several members",
    ),
    "short vector": ("mask", other_body(lambda body: body[:-4]), "a masked vector has"),
}


@pytest.mark.parametrize(
    "lie", [name if name == "wrong share" else pytest.param(name, marks=pytest.mark.slow) for name in SEALED]
)
def test_a_lie_in_a_sealed_sum(tmp_path: Path, lie: str) -> None:
    """Named in the first round, and left out afterwards; no sum fails."""
    step, twist, words = SEALED[lie]
    scene = Scene(tmp_path, experiment("gossip-fedavg", rounds=ROUNDS))
    scene.lies(Answers(step, twist))
    scene.play()
    for joining in scene.honest:
        metrics = joining.peer.metrics
        assert (metrics.sealed_sums, metrics.sealed_failures) == (ROUNDS, 0)
        assert metrics.implausible == {NAME: 1}
    assert scene.named(f"what {NAME} sent is refused: ") == scene.named(words) == LIAR
    assert scene.named(f"{NAME} is left out of sealed sums for 10 rounds") == LIAR


@pytest.mark.slow
def test_a_vector_times_a_thousand(tmp_path: Path) -> None:
    scene = Scene(tmp_path, experiment("gossip-fedavg", rounds=ROUNDS))
    give = scene.liar.peer.sealing.open

    def swollen(at: Any, vector: Any, *more: Any) -> None:
        vector = vector.clone()
        vector[:-1] *= 1000  # the last is the number of samples
        give(at, vector, *more)

    scene.liar.peer.sealing.open = swollen  # type: ignore[method-assign]
    scene.play()
    for joining in scene.honest:
        assert joining.peer.metrics.sealed_implausible == ROUNDS
    assert scene.named("is not used: its norm is") >= LIAR * ROUNDS


@pytest.mark.slow
def test_a_collector_that_asks_pairs_of_changing_groups(tmp_path: Path) -> None:
    """sum{0,1,2,3} - sum{0,1,2} = 3 where models stand still: it has the first, no more, and is named."""
    table = experiment(
        "random-gossip", rounds=4, settings={"peers": 4}, privacy={"alike": 1.0}, topology="full"
    )
    scene = Scene(tmp_path, table)
    peer = scene.liar.peer
    sealing, post = peer.sealing, peer.post
    sealing.collecting.party = replace(sealing.collecting.party, ledger=Ledger(Bound(opened=1.0)))
    plain = post.exchange

    async def exchange(what: Any, at: Any, *, repeated: bool) -> Any:
        group = torch.tensor([0, 1, 2, 3] if at.round % 2 == 0 else [0, 1, 2])
        links = Links(torch.zeros_like(group), group)
        changed = replace(what, expect=links) if what.sealed else replace(what, to=links)
        return await plain(changed, at, repeated=repeated)

    post.exchange = exchange  # type: ignore[method-assign]
    scene.play()
    assert (peer.metrics.sealed_sums, peer.metrics.sealed_failures) == (1, 3)
    assert scene.named(f"{NAME} gets no sum: with the") >= 3
    assert scene.named("100% of the model of member 3, and 75% is agreed") >= 3


# --- floods and forgeries ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_flood_of_inquiries(tmp_path: Path) -> None:
    """As many as it can ask; what is remembered of them is bounded, in memory and on disk."""
    table = experiment("osgp", rounds=ROUNDS, topology="full", model=slow_model(tmp_path / "model", 0.05))
    scene = Scene(tmp_path / "peers", table)
    victim, transport = scene.joinings[0], scene.liar.transport
    answered: list[str] = []

    async def flood() -> None:
        while not victim.peer.joined:
            await asyncio.sleep(0.02)
        address, slot = scene.swarm._settings(0).listen, 0
        with suppress(UnreachableError):  # it has finished
            while True:
                slot += 1
                head = Inquiry(sender=NAME, round=slot % ROUNDS, slot=slot)
                try:
                    await transport.request("peer-0", address, head, timeout=30)
                    answered.append("answered")
                except RefusedError as error:
                    answered.append(error.reason)

    scene.play(flood)
    counts = Counter(answered)
    assert counts.keys() == {"answered", "busy"}
    assert counts["answered"] <= 32 * (ROUNDS + 1), "32 in a round"
    assert scene.named(f"refused {NAME}: busy") <= 5
    checkpoint = scene.swarm.place(0) / "state" / "checkpoint.safetensors"
    other = scene.swarm.place(1) / "state" / "checkpoint.safetensors"
    assert checkpoint.stat().st_size < other.stat().st_size + 100_000


@pytest.mark.slow
def test_forged_addresses_are_not_dialled(tmp_path: Path) -> None:
    scene = Scene(tmp_path, experiment(rounds=ROUNDS))
    dialled: set[str] = set()
    for joining in scene.honest:
        request = joining.transport.request

        async def watched(to: str, address: str, *rest: Any, _plain: Any = request, **more: Any) -> Any:
            dialled.add(address)
            return await _plain(to, address, *rest, **more)

        joining.transport.request = watched  # type: ignore[method-assign]

    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        if not isinstance(head, Hello):
            return head, body
        forged = {f"peer-{n}": Whereabouts(address=f"192.0.2.{n}:1", serial=2**50) for n in range(LIAR)}
        return head.model_copy(update={"addresses": forged}), body

    scene.lies(lie)
    scene.play()
    assert dialled == {scene.swarm._settings(n).listen for n in range(PEERS)}
