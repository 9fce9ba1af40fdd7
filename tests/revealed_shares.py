"""Who gave which shares away in the secure sums of peers in memory, as their network recorded it."""

from __future__ import annotations

from collections import defaultdict

from coterie.errors import SecureSumError
from coterie.peer.exchange.sealed.bodies import unpack_reveal
from coterie.peer.network.messages import SealAnswer, SealStep
from coterie.testing import MemoryPeers


def revealed(world: MemoryPeers) -> dict[tuple[str, int], tuple[set[str], set[str], int]]:
    """For each session and member: who revealed a share of its seed, who one of its key, the threshold."""
    result: dict[tuple[str, int], tuple[set[str], set[str], int]] = defaultdict(lambda: (set(), set(), 0))
    asked: dict[tuple[str, str], SealStep] = {}
    for sender, receiver, head, body in world.network.seen:
        if isinstance(head, SealStep):
            asked[receiver, sender] = head
        elif isinstance(head, SealAnswer) and asked[sender, receiver].step == "unmask":
            step = asked[sender, receiver]
            try:
                reveal = unpack_reveal(body)
            except SecureSumError:
                continue  # of a member that lies
            for member in [*reveal.seeds, *reveal.keys]:
                seeds, keys, _ = result[step.session, member]
                (seeds if member in reveal.seeds else keys).add(sender)
                result[step.session, member] = (seeds, keys, step.threshold)
    return result
