"""Where parcels arrive: which are wanted now, which must wait, which are refused.

A parcel that comes before its exchange waits at the sender: its body is not even transferred until the
exchange opens. So a peer holds the bodies of one exchange at most, and large ones in files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from coterie.errors import RefusedError
from coterie.peer.exchange.journal import Journal, ParcelId
from coterie.peer.exchange.membership import START, Position
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Body, Parcel, TreeShape, decode_tree
from coterie.protocol import Bundle, Tree

_HEADER_SLACK = 4096  # bytes by which the header of an equal payload may differ


@dataclass(frozen=True)
class Wanted:
    """What parcels of an exchange must look like: like one's own."""

    like: TreeShape
    size: int  # bytes of one's own body
    conserved: bool


@dataclass
class Delivered:
    """A parcel that was taken; its tensors are read from disk when it is large."""

    parcel: ParcelId
    tree: Tree | None
    file: Path | None = None

    def messages(self, wanted: Wanted) -> Bundle:
        row = torch.zeros(1, dtype=torch.long)
        sender = torch.tensor([self.parcel.number])
        if self.file is not None:
            return _OnDisk(self.file, wanted.like, row, sender)
        assert self.tree is not None
        return Bundle(self.tree, row, row, sender)

    def discard(self) -> None:
        if self.file is not None:
            self.file.unlink(missing_ok=True)


class _OnDisk(Bundle):
    """A parcel that is read anew whenever it is looked at, so that only one at a time fills the memory."""

    def __init__(self, file: Path, like: TreeShape, row: torch.Tensor, sender: torch.Tensor) -> None:
        for name, value in {"_file": file, "_like": like}.items():
            object.__setattr__(self, name, value)
        for name, value in {"source": row, "rows": row, "senders": sender}.items():
            object.__setattr__(self, name, value)

    @property
    def payload(self) -> Tree:
        file: Path = self._file  # type: ignore[attr-defined]
        like: TreeShape = self._like  # type: ignore[attr-defined]
        return decode_tree(file, like)


@dataclass
class Mailbox:
    """Parcels of peers that keep step: those of the open exchange are taken, later ones wait.

    patience: how long a sender may wait for its exchange to open.
    """

    journal: Journal
    changed: Signal
    patience: float
    at: Position = START
    wanted: Wanted | None = None  # None: the exchange `at` is not open yet
    delivered: dict[int, Delivered] = field(default_factory=dict)
    nothing_from: set[int] = field(default_factory=set)  # who said that it has nothing for us
    held: set[ParcelId] = field(init=False)  # conserved parcels that are not in a committed state yet

    def __post_init__(self) -> None:
        self.held = {parcel for parcel, _ in self.journal.kept()}

    @property
    def heard(self) -> set[int]:
        return self.delivered.keys() | self.nothing_from

    def begin(self, round: int, slot: int = 0) -> None:
        """Go to an exchange that is not open for parcels yet."""
        self._move(Position(round, slot), None)

    def open(self, round: int, slot: int, wanted: Wanted) -> None:
        self._move(Position(round, slot), wanted)
        if wanted.conserved:
            for parcel, body in self.journal.kept():
                if (parcel.round, parcel.slot) == (round, slot):
                    self.delivered[parcel.number] = Delivered(parcel, decode_tree(body, wanted.like))

    def close(self, expected: set[int] | None = None, *, once: bool = True) -> list[Delivered]:
        """End the open exchange; what arrived, by sender.

        expected, once: for peers that do not keep step; see `FreeMailbox`.
        """
        found = [self.delivered[number] for number in sorted(self.delivered)]
        self.delivered = {}
        self._move(Position(self.at.round, self.at.slot + 1), None)
        return found

    def keeps(self, item: Delivered) -> bool:
        """Whether something that was used may be used again."""
        return False

    def admit(self, number: int, head: Parcel, size: int) -> Awaitable[None] | None:
        """Refuse a parcel, want it now, or wait until its exchange is open."""
        parcel = ParcelId(number, head.round, head.slot)
        if self.taken(parcel):
            return None
        if self._is_early(head):
            return self._wait(number, head, size)
        self._require_open(parcel)
        if size > (most := self._shape(head.slot).size) + _HEADER_SLACK:
            raise RefusedError("oversized", f"{size} bytes where the payload has {most}")
        return None

    async def _wait(self, number: int, head: Parcel, size: int) -> None:
        until = asyncio.get_running_loop().time() + self.patience
        while self._is_early(head):
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                raise RefusedError(
                    "early",
                    f"this peer is in round {self.at.round}, not yet in exchange {head.slot} "
                    f"of round {head.round}",
                )
            await self.changed.wait(left)
        self.admit(number, head, size)

    def _is_early(self, head: Parcel) -> bool:
        place = Position(head.round, head.slot)
        return place > self.at or (place == self.at and self.wanted is None)

    def _shape(self, slot: int) -> Wanted:
        """What the parcels of an exchange that is open must look like."""
        assert self.wanted is not None
        return self.wanted

    def take(self, number: int, head: Parcel, body: Body) -> bool:
        """Take an admitted parcel; False if it had been taken before."""
        parcel = ParcelId(number, head.round, head.slot)
        if self.taken(parcel):
            return False
        self._require_open(parcel)
        if head.empty:
            self.nothing_from.add(number)
        else:
            assert self.wanted is not None
            self.delivered[number] = self._checked(parcel, body, self.wanted)
        self.changed.fire()
        return True

    def taken(self, parcel: ParcelId) -> bool:
        now = self.delivered.get(parcel.number)
        return self._owned(parcel) or (now is not None and now.parcel == parcel)

    def finding(self, parcel: ParcelId) -> bool | None:
        """Whether a conserved parcel was taken. A no is final: the parcel will not be taken later."""
        if self.taken(parcel):
            return True
        if parcel not in self.journal.ledger.denied:
            self.journal.deny(parcel)
        return False

    def committed(self, parcels: Iterable[ParcelId]) -> None:
        """These conserved parcels are part of the committed state."""
        self.held -= set(parcels)

    def _owned(self, parcel: ParcelId) -> bool:
        return parcel in self.held or parcel in self.journal.ledger.taken

    def _require_open(self, parcel: ParcelId) -> None:
        place = Position(parcel.round, parcel.slot)
        if parcel in self.journal.ledger.denied or place != self.at or self.wanted is None:
            raise RefusedError(
                "stale",
                f"exchange {parcel.slot} of round {parcel.round} is over; this peer is in {self.at.round}",
            )

    def _checked(self, parcel: ParcelId, body: Body, wanted: Wanted) -> Delivered:
        """Validate every tensor; a conserved parcel is on disk before its sender gets a receipt."""
        tree = decode_tree(body, wanted.like)
        if wanted.conserved:
            self.journal.keep(parcel, body if isinstance(body, bytes) else body.read_bytes())
            self.held.add(parcel)
        if isinstance(body, bytes):
            return Delivered(parcel, tree)
        return Delivered(parcel, None, body)

    def _move(self, at: Position, wanted: Wanted | None) -> None:
        for item in self.delivered.values():
            item.discard()
        self.at, self.wanted, self.delivered, self.nothing_from = at, wanted, {}, set()
        self.changed.fire()


@dataclass
class FreeMailbox(Mailbox):
    """Parcels of peers that go at their own pace: the newest model of each, or every conserved share.

    staleness: a parcel that is more rounds behind this peer is not used.
    """

    staleness: int = 5
    shapes: dict[int, Wanted] = field(default_factory=dict)  # by slot, known from the first round on
    newest: dict[tuple[int, int], Delivered] = field(default_factory=dict)  # by sender and slot
    shares: dict[ParcelId, Delivered] = field(default_factory=dict)  # conserved, not used yet
    _latest: dict[tuple[int, int], int] = field(default_factory=dict)  # round of the newest so far

    def open(self, round: int, slot: int, wanted: Wanted) -> None:
        first = slot not in self.shapes
        self.shapes[slot] = wanted
        self.at = Position(round, slot)
        if first and wanted.conserved:
            for parcel, body in self.journal.kept():
                if parcel.slot == slot:
                    self.shares[parcel] = Delivered(parcel, decode_tree(body, wanted.like))
        self.changed.fire()

    def close(self, expected: set[int] | None = None, *, once: bool = True) -> list[Delivered]:
        """What this peer uses now: every share; or of those whom it expects, their newest model.

        once: a model that is addressed to this peer is used once; a neighbour's, until a newer one comes.
        """
        if self.shapes[self.at.slot].conserved:
            shares = [parcel for parcel in sorted(self.shares) if parcel.slot == self.at.slot]
            return [self.shares.pop(parcel) for parcel in shares]
        due = [
            key
            for key, item in sorted(self.newest.items())
            if key[1] == self.at.slot
            and item.parcel.round >= self.at.round - self.staleness
            and (expected is None or key[0] in expected)
        ]
        return [self.newest.pop(key) if once else self.newest[key] for key in due]

    def keeps(self, item: Delivered) -> bool:
        return any(kept is item for kept in self.newest.values())

    def _is_early(self, head: Parcel) -> bool:
        return head.slot not in self.shapes

    def _shape(self, slot: int) -> Wanted:
        return self.shapes[slot]

    def take(self, number: int, head: Parcel, body: Body) -> bool:
        parcel = ParcelId(number, head.round, head.slot)
        if self.taken(parcel):
            return False
        self._require_open(parcel)
        if head.empty:
            return True
        item = self._checked(parcel, body, self.shapes[head.slot])
        if self.shapes[head.slot].conserved:
            self.shares[parcel] = item
        else:
            self._replace((number, head.slot), item)
        self.changed.fire()
        return True

    def taken(self, parcel: ParcelId) -> bool:
        return self._owned(parcel)

    def _require_open(self, parcel: ParcelId) -> None:
        newest = self._latest.get((parcel.number, parcel.slot), -1)
        if (
            parcel in self.journal.ledger.denied
            or parcel.round < self.at.round - self.staleness
            or (newest >= parcel.round and not self.shapes[parcel.slot].conserved)
        ):
            raise RefusedError(
                "stale", f"round {parcel.round} of this sender is too old; this peer is in {self.at.round}"
            )

    def _replace(self, key: tuple[int, int], item: Delivered) -> None:
        old = self.newest.get(key)
        if old is not None:
            old.discard()
        self.newest[key] = item
        self._latest[key] = item.parcel.round

    def _move(self, at: Position, wanted: Wanted | None) -> None:
        self.at = at
        self.changed.fire()
