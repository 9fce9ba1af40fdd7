"""Members with a valid key who lie: peers in memory, some of which say other things than their own code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peers_in_memory import SMALL, Size, World

from coterie.errors import CoterieError
from coterie.peer.exchange.sealed.bodies import decode_parts, encode_parts, pack_reveal, unpack_reveal
from coterie.peer.network.messages import (
    Body,
    Head,
    Parcel,
    SealAnswer,
    TreeShape,
    decode_tree,
    encode_tree,
    shape_of,
)
from coterie.peer.network.serving import Handler
from coterie.peer.process import Pace, Peer
from coterie.protocol import Tree
from coterie.testing import Crash, MemoryTransport

QUICK = Pace(deadline=8.0, join=30.0, heartbeat=1.0, suspect_after=4.0, linger=6.0)

Lie = Callable[[Head, bytes], tuple[Head, bytes]]
"""From what a member would say, as a question or as an answer, to what it says."""

Twist = Callable[[SealAnswer, bytes], tuple[SealAnswer, bytes]]
"""The same for its answer to one step of a secure sum."""


@dataclass
class _LyingTransport(MemoryTransport):
    lie: Lie = lambda head, body: (head, body)

    async def request(
        self, to: str, address: str, head: Head, body: bytes = b"", *, timeout: float, most: int = 0
    ) -> tuple[Head, bytes]:
        head, body = self.lie(head, body)
        return await super().request(to, address, head, body, timeout=timeout, most=most)


@dataclass
class _LyingHandler:
    peer: Peer
    lie: Lie

    def admit(self, caller: str, head: Head, size: int) -> Any:
        return self.peer.admit(caller, head, size)

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        return self.lie(*await self.peer.take(caller, head, body))


class Liars(World):
    """Peers in memory; `lies` says who lies, and how."""

    def __init__(
        self, algorithm: Any, folder: Path, size: Size = SMALL, *, lies: dict[int, Lie], **settings: Any
    ) -> None:
        super().__init__(algorithm, folder, size, **{"pace": QUICK, **settings})
        self.lies = lies
        plain = self.network.transport

        def transport(name: str) -> MemoryTransport:
            lie = lies.get(int(name.removeprefix("peer-")))
            return plain(name) if lie is None else _LyingTransport(self.network, name, lie)

        self.network.transport = transport  # type: ignore[method-assign]

    def handler(self, peer: Peer) -> Handler:
        lie = self.lies.get(peer.number)
        return peer if lie is None else _LyingHandler(peer, lie)

    async def play_for(self, seconds: float, crashes: Sequence[Crash]) -> dict[int, CoterieError | None]:
        async with asyncio.timeout(seconds):
            return await self.play_with(crashes)

    @property
    def honest(self) -> list[Peer]:
        return [peer for number, peer in self.peers_by_number.items() if number not in self.lies]


def other_parcels(change: Callable[[Tree], Tree], like: TreeShape, since: int = 0) -> Lie:
    """Parcels with a changed payload, from some round on."""

    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        if not isinstance(head, Parcel) or not body or head.round < since:
            return head, body
        return head, encode_tree(change(decode_tree(body, like)))

    return lie


def model_shape() -> TreeShape:
    """Of the small module's parameters."""
    from coterie.testing import small_module

    return shape_of({name: value[None] for name, value in small_module().state_dict().items()})


# --- twists of a secure sum ----------------------------------------------------------------------


def other_body(change: Callable[[bytes], bytes]) -> Twist:
    return lambda answer, body: (answer, change(body))


def shared(change: Callable[[dict[str, bytes]], None]) -> Twist:
    """Other boxes or promises; the names of the parts are those of `pack_shared`."""

    def twist(answer: SealAnswer, body: bytes) -> tuple[SealAnswer, bytes]:
        parts = decode_parts(body)
        change(parts)
        return answer, encode_parts(parts)

    return twist


def unreadable_boxes(parts: dict[str, bytes]) -> None:
    for name in parts:
        if name.startswith("box-"):
            parts[name] = bytes(len(parts[name]))


def wrong_shares(body: bytes) -> bytes:
    reveal = unpack_reveal(body)
    return pack_reveal(replace(reveal, seeds={number: share ^ 1 for number, share in reveal.seeds.items()}))
