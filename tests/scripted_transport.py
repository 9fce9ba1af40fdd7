"""A transport that answers as a test says, for the parts of a peer that ask others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.errors import CoterieError
from coterie.peer.exchange.membership import Acquaintance, Membership
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Head, Hello, Whereabouts

DIGEST = "0" * 64


class Asked(NamedTuple):
    to: str
    address: str
    head: Head
    body: bytes
    at: float  # seconds


@dataclass
class ScriptedTransport:
    """Gives each peer's answers in turn, and the last one again and again; without any, there is silence."""

    script: dict[str, list[Head | CoterieError]] = field(default_factory=lambda: defaultdict(list))
    asked: list[Asked] = field(default_factory=list)

    async def request(
        self, to: str, address: str, head: Head, body: bytes = b"", *, timeout: float, most: int = 0
    ) -> tuple[Head, bytes]:
        self.asked.append(Asked(to, address, head, body, asyncio.get_running_loop().time()))
        await asyncio.sleep(0)
        answers = self.script[to]
        if not answers:
            await asyncio.sleep(3600)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, CoterieError):
            raise answer
        return answer, b""

    def kinds(self, to: str) -> list[str]:
        return [asked.head.kind for asked in self.asked if asked.to == to]


def hello(peer: int, /, **changes: object) -> Hello:
    said = {
        "sender": f"peer-{peer}",
        "number": peer,
        "digest": DIGEST,
        "at": Whereabouts(address=f"host:{peer}"),
        "round": 0,
    }
    return Hello(**{**said, **changes})  # type: ignore[arg-type]


def roster(numbers: Sequence[int]) -> Mapping[int, Acquaintance]:
    return {n: Acquaintance(f"peer-{n}", n, f"card:{n}") for n in numbers}


def membership_of_0(transport: ScriptedTransport, others: Sequence[int], changed: Signal) -> Membership:
    """Of peer 0; heartbeats every second, and four seconds of silence make a peer suspect."""
    members = roster(others)
    return Membership(lambda: hello(0), lambda: members, transport, changed, Metrics(), 1.0, 4.0)
