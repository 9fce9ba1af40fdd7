"""Where parcels arrive: which are wanted now, which must wait, which are refused.

A parcel that comes before its exchange waits at the sender: its body is not even transferred until the
exchange opens. So a peer holds the bodies of one exchange at most, and large ones in files.

`StepMailbox` is for peers that keep step, `FreeMailbox` for those that go at their own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from coterie.errors import RefusedError
from coterie.peer.exchange.journal import Holdings, ParcelId
from coterie.peer.exchange.membership import START, Position
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Body, Parcel, TreeShape, decode_tree
from coterie.protocol import Bundle, Bundled, Tree
from coterie.protocol.plausible import Check

_HEADER_SLACK = 4096  # bytes by which the header of an equal payload may differ


@dataclass(frozen=True)
class Wanted:
    """What parcels of an exchange must look like: like one's own."""

    like: TreeShape
    size: int  # bytes of one's own body
    conserved: bool
    check: Check = lambda payload: ""  # of what they hold


@dataclass
class Delivered:
    """A parcel that was taken; its tensors are read from disk when it is large.

    since: the round in which this peer was when it came, whatever round its sender wrote on it.
    """

    parcel: ParcelId
    tree: Tree | None
    file: Path | None = None
    since: int = 0

    @property
    def age(self) -> int:
        """The round from which its age counts; that of a wish, which holds nothing old, when it came."""
        is_wish = isinstance(self.tree, Mapping) and not self.tree
        return self.since if is_wish else min(self.parcel.round, self.since)

    def messages(self, wanted: Wanted) -> Bundled:
        row = torch.zeros(1, dtype=torch.long)
        sender = torch.tensor([self.parcel.number])
        if self.file is not None:
            return _OnDisk(self.file, wanted.like, row, row, sender)
        assert self.tree is not None
        return Bundle(self.tree, row, row, sender)

    def discard(self) -> None:
        if self.file is not None:
            self.file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _OnDisk:
    """A parcel that is read anew whenever it is looked at, so that only one at a time fills the memory."""

    file: Path
    like: TreeShape
    source: Tensor
    rows: Tensor
    senders: Tensor

    @property
    def payload(self) -> Tree:
        return decode_tree(self.file, self.like)


class Mailbox(Protocol):
    """What a peer needs of its mailbox, whether it keeps step with the others or not."""

    at: Position
    rounds: int  # of the experiment
    patience: float  # seconds that a sender may wait

    def begin(self, at: Position) -> None:
        """Go to an exchange that is not open for parcels yet."""

    def open(self, at: Position, wanted: Wanted) -> None:
        """Parcels of this exchange are wanted from now on."""

    def close(self, expected: set[int] | None, *, once: bool, answers: bool = False) -> list[Delivered]:
        """End the open exchange; what this peer uses of it, by sender.

        expected: whom it should hear from, None: anyone. once: what is used now is not used again.
        answers: it has asked those whom it expects.
        """

    def silent(self, senders: set[int]) -> set[int]:
        """Those of whom the open exchange has heard nothing, and for whom it waits."""

    def keeps(self, item: Delivered) -> bool:
        """Whether something that was used may be used again."""

    def admit(self, number: int, head: Parcel, size: int) -> Awaitable[None] | None:
        """Refuse a parcel, want it now, or wait until its exchange is open."""

    def take(self, number: int, head: Parcel, body: Body) -> bool:
        """Take an admitted parcel; False if it had been taken before."""


@dataclass
class StepMailbox:
    """Parcels of peers that keep step: those of the open exchange are taken, later ones wait.

    patience: how long a sender may wait for its exchange to open.
    """

    holdings: Holdings
    changed: Signal
    patience: float
    rounds: int = 10**9
    at: Position = START
    wanted: Wanted | None = None  # None: the exchange `at` is not open yet
    delivered: dict[int, Delivered] = field(default_factory=dict)
    nothing_from: set[int] = field(default_factory=set)  # who said that it has nothing for us

    def begin(self, at: Position) -> None:
        self._move(at, None)

    def open(self, at: Position, wanted: Wanted) -> None:
        self._move(at, wanted)
        if wanted.conserved:
            for parcel in self.holdings.unused():
                if _place(parcel) == at:
                    self.delivered[parcel.number] = _kept(parcel, wanted, self.holdings)

    def close(self, expected: set[int] | None, *, once: bool, answers: bool = False) -> list[Delivered]:
        found = [self.delivered[number] for number in sorted(self.delivered)]
        self.delivered = {}
        self._move(self.at.next, None)
        return found

    def silent(self, senders: set[int]) -> set[int]:
        return senders - self.delivered.keys() - self.nothing_from

    def keeps(self, item: Delivered) -> bool:
        return False

    def admit(self, number: int, head: Parcel, size: int) -> Awaitable[None] | None:
        parcel = ParcelId(number, head.round, head.slot)
        if self._taken(parcel):
            return None
        if self._is_early(head):
            return self._wait(number, head, size)
        _check_size(size, self._wanted_now(parcel))
        return None

    async def _wait(self, number: int, head: Parcel, size: int) -> None:
        await _until_open(lambda: self._is_early(head), self, head)
        self.admit(number, head, size)

    def take(self, number: int, head: Parcel, body: Body) -> bool:
        parcel = ParcelId(number, head.round, head.slot)
        if self._taken(parcel):
            return False
        wanted = self._wanted_now(parcel)
        if head.empty:
            self.nothing_from.add(number)
        else:
            self._keep(parcel, body, wanted)
        self.changed.fire()
        return True

    def _keep(self, parcel: ParcelId, body: Body, wanted: Wanted) -> None:
        try:
            self.delivered[parcel.number] = _checked(parcel, body, wanted, self.holdings, self.at.round)
        except RefusedError as error:
            if error.reason == "implausible":  # nothing better is waited for
                self.nothing_from.add(parcel.number)
                self.changed.fire()
            raise

    def _taken(self, parcel: ParcelId) -> bool:
        now = self.delivered.get(parcel.number)
        return self.holdings.owns(parcel) or (now is not None and now.parcel == parcel)

    def _is_early(self, head: Parcel) -> bool:
        place = Position(head.round, head.slot)
        return place > self.at or (place == self.at and self.wanted is None)

    def _wanted_now(self, parcel: ParcelId) -> Wanted:
        """What the parcel must look like; refuses one whose exchange is over."""
        if self.holdings.denied(parcel) or _place(parcel) != self.at or self.wanted is None:
            raise RefusedError(
                "stale",
                f"exchange {parcel.slot} of round {parcel.round} is over; this peer is in {self.at.round}",
            )
        return self.wanted

    def _move(self, at: Position, wanted: Wanted | None) -> None:
        for item in self.delivered.values():
            item.discard()
        self.at, self.wanted, self.delivered, self.nothing_from = at, wanted, {}, set()
        self.changed.fire()


@dataclass
class FreeMailbox:
    """Parcels of peers that go at their own pace: the newest model of each, or every conserved share.

    patience: how long a sender may wait until this peer knows the exchange. staleness: a parcel that is more
    rounds behind this peer is not used, nor one that came so many rounds ago. rounds: of the experiment.

    A peer that asks does not wait for the answers either. The other side finds the wish in its next round,
    and answers; whom this peer asked it remembers for as many rounds as `staleness` says.
    """

    holdings: Holdings
    changed: Signal
    patience: float
    staleness: int = 5
    rounds: int = 10**9
    at: Position = START
    shapes: dict[int, Wanted] = field(default_factory=dict)  # by slot, known from the first round on
    newest: dict[tuple[int, int], Delivered] = field(default_factory=dict)  # by sender and slot
    shares: dict[ParcelId, Delivered] = field(default_factory=dict)  # conserved, not used yet
    asked: dict[tuple[int, int], int] = field(default_factory=dict)  # when, by who was asked and by slot
    _latest: dict[tuple[int, int], int] = field(default_factory=dict)  # round of the newest so far

    def begin(self, at: Position) -> None:
        self.at = at
        self.changed.fire()

    def open(self, at: Position, wanted: Wanted) -> None:
        first = at.slot not in self.shapes
        self.shapes[at.slot] = wanted
        self.at = at
        for item in self.shares.values():  # they came since the last exchange
            if item.parcel.slot == at.slot and item.tree is not None:
                wanted.check(item.tree)
        if first and wanted.conserved:
            for parcel in self.holdings.unused():
                if parcel.slot == at.slot:
                    self.shares[parcel] = _kept(parcel, wanted, self.holdings)
        self.changed.fire()

    def close(self, expected: set[int] | None, *, once: bool, answers: bool = False) -> list[Delivered]:
        """Every share; or of those whom this peer expects, their newest model.

        once: a model that is addressed to this peer is used once; a neighbour's, until a newer one comes.
        """
        if self.shapes[self.at.slot].conserved:
            shares = [parcel for parcel in sorted(self.shares) if parcel.slot == self.at.slot]
            return [self.shares.pop(parcel) for parcel in shares]
        if answers and expected is not None:
            expected = self._asked_lately(expected)
        due = [
            key
            for key, item in sorted(self.newest.items())
            if key[1] == self.at.slot
            and item.age >= self.at.round - self.staleness
            and (expected is None or key[0] in expected)
        ]
        return [self.newest.pop(key) if once else self.newest[key] for key in due]

    def _asked_lately(self, now: set[int]) -> set[int]:
        """Those who may answer: whom this peer has asked now, or not long ago."""
        self.asked |= {(number, self.at.slot): self.at.round for number in now}
        oldest = self.at.round - self.staleness
        self.asked = {key: round for key, round in self.asked.items() if round >= oldest}
        return {number for number, slot in self.asked if slot == self.at.slot}

    def silent(self, senders: set[int]) -> set[int]:
        return set()  # nobody is waited for

    def keeps(self, item: Delivered) -> bool:
        return any(kept is item for kept in self.newest.values())

    def admit(self, number: int, head: Parcel, size: int) -> Awaitable[None] | None:
        parcel = ParcelId(number, head.round, head.slot)
        if self.holdings.owns(parcel):
            return None
        if head.slot not in self.shapes:
            return self._wait(number, head, size)
        _check_size(size, self._wanted_now(parcel))
        return None

    async def _wait(self, number: int, head: Parcel, size: int) -> None:
        await _until_open(lambda: head.slot not in self.shapes, self, head)
        self.admit(number, head, size)

    def take(self, number: int, head: Parcel, body: Body) -> bool:
        parcel = ParcelId(number, head.round, head.slot)
        if self.holdings.owns(parcel):
            return False
        wanted = self._wanted_now(parcel)
        if head.empty:
            return True
        item = _checked(parcel, body, wanted, self.holdings, self.at.round)
        if wanted.conserved:
            self.shares[parcel] = item
        else:
            self._replace((number, head.slot), item)
        self.changed.fire()
        return True

    def _wanted_now(self, parcel: ParcelId) -> Wanted:
        """What the parcel must look like; refuses one that is too old, or older than what is here."""
        wanted = self.shapes[parcel.slot]
        if parcel.round >= self.rounds:
            raise RefusedError("unexpected", f"the experiment ends before round {parcel.round}")
        newest = self._latest.get((parcel.number, parcel.slot), -1)
        behind = parcel.round < self.at.round - self.staleness
        if (
            self.holdings.denied(parcel)
            or (behind and wanted.like.leaves)  # whoever is far behind may still ask
            or (newest >= parcel.round and not wanted.conserved)
        ):
            raise RefusedError(
                "stale", f"round {parcel.round} of this sender is too old; this peer is in {self.at.round}"
            )
        return wanted

    def _replace(self, key: tuple[int, int], item: Delivered) -> None:
        old = self.newest.get(key)
        if old is not None:
            old.discard()
        self.newest[key] = item
        self._latest[key] = item.parcel.round


# --- what both do --------------------------------------------------------------------------------


def _place(parcel: ParcelId) -> Position:
    return Position(parcel.round, parcel.slot)


async def _until_open(is_early: Callable[[], bool], mailbox: StepMailbox | FreeMailbox, head: Parcel) -> None:
    """Wait while a parcel is early; refuse it when its sender has waited long enough."""
    until = asyncio.get_running_loop().time() + mailbox.patience
    while is_early():
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            raise RefusedError(
                "early",
                f"this peer is in round {mailbox.at.round}, not yet in exchange {head.slot} "
                f"of round {head.round}",
            )
        await mailbox.changed.wait(left)


def _check_size(size: int, wanted: Wanted) -> None:
    if size > wanted.size + _HEADER_SLACK:
        raise RefusedError("oversized", f"{size} bytes where the payload has {wanted.size}")


def _checked(parcel: ParcelId, body: Body, wanted: Wanted, holdings: Holdings, since: int) -> Delivered:
    """Validate every tensor; a conserved parcel is on disk before its sender gets a receipt."""
    tree = decode_tree(body, wanted.like)
    if wrong := wanted.check(tree):
        raise RefusedError("implausible", wrong)
    if wanted.conserved:
        holdings.keep(parcel, body if isinstance(body, bytes) else body.read_bytes())
    if isinstance(body, bytes):
        return Delivered(parcel, tree, since=since)
    return Delivered(parcel, None, body, since)


def _kept(parcel: ParcelId, wanted: Wanted, holdings: Holdings) -> Delivered:
    """A conserved parcel that was taken before a crash. It was checked then, and is this peer's own."""
    tree = decode_tree(holdings.body(parcel), wanted.like)
    wanted.check(tree)  # which counts it
    return Delivered(parcel, tree, since=parcel.round)
