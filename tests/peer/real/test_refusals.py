"""What real peers refuse: strangers, another experiment, former members, and parcels that are not right.

The peers run in this process, over real sockets, so that their counters can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from acting_peer import Actor
from real_peers import PATIENCE, Swarm, experiment, slow_model

from coterie.cli.peer.cards import distrust
from coterie.errors import PeerError, RefusedError
from coterie.experiments.real_peers.joining import Joining
from coterie.peer.exchange.mailbox import StepMailbox
from coterie.peer.network.messages import Head, Parcel, Receipt, decode_tree, encode_tree
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import ROSTER_FILE, Roster, roster_text
from coterie.protocol import Tree
from coterie.protocol.trees import map_tree

ROUNDS = 6


async def happens(condition: Callable[[], object]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), PATIENCE)


async def beside(joinings: list[Joining], acting: Awaitable[None]) -> list[BaseException | None]:
    """Run the peers to their end while something happens to them; how each ended."""
    running = [asyncio.ensure_future(joining.take_part()) for joining in joinings]
    try:
        await asyncio.wait_for(acting, PATIENCE)
        return await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), PATIENCE)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def nothing() -> None:
    pass


def test_a_peer_with_another_experiment_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    swarm = Swarm(tmp_path, experiment(peers=3), settings={"join_seconds": 4.0})
    swarm.write_experiment(2, experiment(peers=3, seed=1))
    joinings = [swarm.join(number) for number in range(3)]
    digests = {joining.peer.digest for joining in joinings}
    assert len(digests) == 2
    ends = asyncio.run(beside(joinings, nothing()))
    assert ends[:2] == [None, None], "the others go on without it"
    assert swarm.rounds()[:2] == [5, 5]
    assert isinstance(ends[2], PeerError)
    assert all(digest in str(ends[2]) for digest in digests)
    assert "must agree; different: seed" in str(ends[2])
    for name in ("peer-0", "peer-2"):  # of each side's warnings about the other
        said = [record.getMessage() for record in caplog.records if record.getMessage().startswith(name)]
        assert any(all(digest in text for digest in digests) for text in said)
    for joining in joinings:
        assert joining.peer.metrics.refused["experiment"] > 0
    assert all(not joining.peer.metrics.messages_in["peer-2"] for joining in joinings[:2])


def test_a_stranger_is_refused(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, experiment(peers=2, rounds=ROUNDS, model=slow_model(tmp_path, 0.05)))
    stranger = tmp_path / "stranger"
    Identity.create(stranger, "stranger")
    known = Roster.load(swarm.place(1)).members  # the card of peer 0
    (stranger / ROSTER_FILE).write_text(roster_text(known))
    joinings = [swarm.join(number) for number in range(2)]
    actor = Actor(swarm, 1, stranger)

    async def dial() -> None:
        await happens(lambda: joinings[0].peer.journal.round >= 1)
        with pytest.raises(RefusedError) as refused:
            await actor.say(0, actor.hello())
        assert refused.value.reason == "certificate"
        await happens(lambda: joinings[0].peer.metrics.refused["certificate"] == 1)
        await actor.transport.stop()

    assert asyncio.run(beside(joinings, dial())) == [None, None]
    assert swarm.rounds() == [ROUNDS] * 2


def test_a_removed_member_is_no_longer_talked_to(tmp_path: Path) -> None:
    rounds = 20
    table = experiment(peers=3, rounds=rounds, model=slow_model(tmp_path, 0.03))
    settings = {"alone": True, "suspect_after": 8.0}  # who is removed goes on by itself
    swarm = Swarm(tmp_path, table, settings=settings)
    joinings = [swarm.join(number) for number in range(3)]
    peer = joinings[0].peer
    taken = []

    async def remove() -> None:
        await happens(lambda: peer.journal.round >= 2)
        for number in (0, 1):
            distrust("peer-2", swarm.place(number))
        removed_at = peer.journal.round
        await happens(lambda: peer.journal.round >= removed_at + 2)
        taken.append(peer.metrics.messages_in["peer-2"])
        assert 2 not in peer.roster()
        await happens(lambda: peer.metrics.refused["certificate"] > 0)

    assert asyncio.run(beside(joinings, remove())) == [None, None, None]
    assert taken == [peer.metrics.messages_in["peer-2"]], "nothing of it is used any more"
    assert peer.metrics.messages_in["peer-1"] == rounds
    assert swarm.rounds() == [rounds] * 3


def _first(tree: Tree, change: Callable[[torch.Tensor], torch.Tensor]) -> Tree:
    """The tree with one leaf changed."""
    seen: list[int] = []

    def visit(leaf: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return change(leaf) if len(seen) == 1 else leaf

    return map_tree(visit, tree)


def test_parcels_that_are_not_right_are_refused(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, experiment(peers=4, rounds=ROUNDS))
    joinings = [swarm.join(number) for number in range(3)]
    actor, peer = Actor(swarm, 3), joinings[0].peer
    refused_here = peer.metrics.refused

    async def refused(reason: str, head: Head, body: bytes = b"") -> None:
        before = refused_here[reason]
        with pytest.raises(RefusedError) as error:
            await actor.say(0, head, body)
        assert error.value.reason == reason
        assert error.value.text
        assert refused_here[reason] == before + 1

    async def misbehave() -> None:
        await actor.transport.start(actor)
        await happens(lambda: "peer-0" in actor.received)
        assert isinstance(peer.mailbox, StepMailbox)
        assert peer.mailbox.wanted is not None
        good = actor.received["peer-0"]
        tree = decode_tree(good, peer.mailbox.wanted.like)
        head = Parcel(sender="peer-3", round=0, slot=0)
        await refused("not-finite", head, encode_tree(_first(tree, lambda leaf: leaf * float("nan"))))
        await refused("not-finite", head, encode_tree(_first(tree, lambda leaf: leaf / 0.0)))
        await refused("shape", head, encode_tree(_first(tree, lambda leaf: leaf[..., :-1])))
        await refused("shape", head, encode_tree(_first(tree, lambda leaf: leaf.double())))
        await refused("oversized", head, good + bytes(10_000))
        await refused("malformed", head, b"\xff" * len(good))
        await refused("sender", head.model_copy(update={"sender": "peer-1"}), good)
        await refused("sender", actor.hello(number=1))
        await refused("experiment", actor.hello(digest="0" * 64))
        await refused("unexpected", Receipt(sender="peer-3"))
        assert peer.mailbox.at.round == 0, "none of it ended the exchange"
        for number in range(3):
            answer = await actor.say(number, head, good)
            assert isinstance(answer, Receipt)
        actor.round = 1
        await happens(lambda: peer.journal.round == 1)
        await refused("stale", head, good)  # replayed
        await actor.transport.stop()  # and nothing more is heard of it

    assert asyncio.run(beside(joinings, misbehave())) == [None, None, None]
    assert swarm.rounds()[:3] == [ROUNDS] * 3
    assert peer.metrics.messages_in["peer-3"] == 1
