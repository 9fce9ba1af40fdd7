"""Whom a peer still waits for: not those who miss one exchange after another, nor those it cannot reach.

They are waited for again as soon as something of theirs comes that waiting would have brought in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_log = logging.getLogger("coterie.peer")

_REMEMBERED = 64  # exchanges whose beginning is known


@dataclass
class Conduct:
    """How a member keeps up."""

    missed: int = 0  # exchanges in a row that ended at the deadline without it
    behind: float | None = None  # seconds from when this peer was ready to when its last message came
    unanswered: float | None = None  # since when this peer's own questions do not reach it
    unreached: str = ""  # why, once that has lasted too long


@dataclass
class Patience:
    """deadline: seconds of an exchange. most: exchanges in a row that a member may miss. name: of a member.

    unreached: seconds without an answer to this peer's own questions, after which a member cannot be
    reached, even if it is heard of.
    """

    deadline: float = 60.0
    most: int = 3
    unreached: float = 4.0
    name: Callable[[int], str] = str
    _conduct: dict[int, Conduct] = field(default_factory=dict)
    _opened: dict[tuple[int, int], float] = field(default_factory=dict)  # exchanges by round and slot

    def conduct(self, number: int) -> Conduct:
        return self._conduct.setdefault(number, Conduct())

    def lasts(self, number: int) -> bool:
        """Whether a member that lives is worth waiting for."""
        conduct = self.conduct(number)
        return conduct.missed < self.most and not conduct.unreached

    def opened(self, at: tuple[int, int]) -> None:
        """This peer is ready for an exchange."""
        self._opened.pop(at, None)
        self._opened[at] = _now()
        if len(self._opened) > _REMEMBERED:
            del self._opened[next(iter(self._opened))]

    def came(self, number: int, at: tuple[int, int]) -> None:
        """Something of a member came for an exchange, which may be over, or not have begun."""
        opened = self._opened.get(at)
        if opened is None and self._opened and at <= max(self._opened):
            return  # so long ago that nobody knows by how much
        conduct = self.conduct(number)
        conduct.behind = 0.0 if opened is None else _now() - opened
        if conduct.behind > self.deadline or not conduct.missed:
            return
        if conduct.missed < self.most:
            conduct.missed = 0
        else:
            conduct.missed = self.most - 1  # another miss, and it is over again
            _log.warning("%s is waited for again", self.name(number))

    def missed(self, numbers: Iterable[int]) -> None:
        """An exchange ended at its deadline without these."""
        for number in numbers:
            conduct = self.conduct(number)
            conduct.missed += 1
            if conduct.missed == self.most:
                _log.warning("%s is no longer waited for: %s", self.name(number), self.slowness(number))

    def slowness(self, number: int) -> str:
        """How a member is slow, in words."""
        conduct = self.conduct(number)
        if conduct.behind is not None and conduct.behind > self.deadline:
            return f"slow by {conduct.behind:.1f} s a round"
        return f"silent in the last {conduct.missed} exchanges, although it answers"

    def unanswered(self, number: int, why: str) -> bool:
        """A question did not reach a member; True when it counts as out of reach from now on."""
        conduct, before = self.conduct(number), self.conduct(number).unreached
        if conduct.unanswered is None:
            conduct.unanswered = _now()
        if _now() - conduct.unanswered >= self.unreached:
            conduct.unreached = why
        return bool(conduct.unreached) and not before

    def answered(self, number: int) -> None:
        """A question did reach a member, or may do so now: it was away, and is heard of."""
        conduct = self.conduct(number)
        conduct.unanswered, conduct.unreached = None, ""


def _now() -> float:
    return asyncio.get_running_loop().time()
