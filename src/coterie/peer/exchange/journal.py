"""A peer's state on disk, such that a kill at any moment loses nothing that was committed.

checkpoint.safetensors   state after the last finished round, which conserved parcels were taken, and
                         which of one's own are in doubt; replaced atomically
earlier-R.safetensors    the checkpoints of the last rounds before it, for `coterie peer rollback`
begun.json               a round whose conserved parcels may have left: after a restart it is finished,
                         not skipped, or what was sent would exist twice
in-R-S-N.safetensors     a conserved parcel of peer N for exchange S of round R, written before the
                         receipt: from then on it belongs to this peer
no-R-S-N                 this peer told N that the parcel was not taken, so it never will be
doubt-R-S-N.safetensors  an own conserved parcel to N of which nobody knows yet whether it was taken
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from coterie.checkpoints import fitting, read_checkpoint, write_checkpoint
from coterie.errors import DamagedRunError, RefusedError, RunFolderError
from coterie.files import SECRET, write_atomically
from coterie.peer.exchange.committed import (
    BEGUN,
    CHECKPOINT,
    FORMAT,
    keep_earlier,
    parse_notes,
    read_begun,
    read_begun_links,
    read_notes,
)
from coterie.protocol.trees import named_tensors, rebuilt

S = TypeVar("S")

_OF_NODE = "of-node/"  # no field of a state can be called so
_REMEMBERED_ROUNDS = 1000  # so long an inquiry about a parcel can be answered
_DENIED_IN_A_ROUND = 32  # parcels of one member: an honest one asks about few
_DENIED_OF_A_MEMBER = 1000  # that are remembered


class ParcelId(NamedTuple):
    """One parcel: the other peer's number, and the exchange."""

    number: int
    round: int
    slot: int

    def file(self, kind: str, suffix: str = ".safetensors") -> str:
        return f"{kind}-{self.round}-{self.slot}-{self.number}{suffix}"

    @classmethod
    def of_file(cls, path: Path) -> ParcelId:
        try:
            _, round, slot, number = path.name.partition(".")[0].split("-")
            return cls(int(number), int(round), int(slot))
        except ValueError:
            raise DamagedRunError(f"{path} is no file of a peer's state; move it elsewhere") from None


@dataclass
class Ledger:
    """What became of conserved parcels."""

    taken: set[ParcelId] = field(default_factory=set)  # received and part of the committed state
    denied: set[ParcelId] = field(default_factory=set)  # declared not taken

    def recent(self, round: int) -> Ledger:
        oldest = round - _REMEMBERED_ROUNDS
        return Ledger(
            {parcel for parcel in self.taken if parcel.round >= oldest},
            {parcel for parcel in self.denied if parcel.round >= oldest},
        )


class Journal:
    """The folder of one peer's state. Every write is atomic; `durable` waits for the disk.

    earlier: how many checkpoints before the last one are kept. afresh: fields of a state that belong to
    single samples, and begin anew when there are other samples than in the checkpoint.
    """

    def __init__(
        self, folder: Path, *, durable: bool = True, earlier: int = 5, afresh: Collection[str] = ()
    ) -> None:
        self.folder, self.durable, self.earlier, self.afresh = folder, durable, earlier, afresh
        self.round = 0  # the next one, by the checkpoint
        self.ledger = Ledger()
        self.doubts: set[ParcelId] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot use {folder}: {error.strerror}") from None

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    def recover(self) -> None:
        """Find out where the checkpoint is, without its tensors; clear what a crash left behind."""
        if self.checkpoint.exists():
            self._take_notes(read_notes(self.checkpoint))
        self.ledger.denied.update(self._named("no", ""))
        self._clear_parcels()
        for half_written in self.folder.glob(".*.tmp"):
            self._remove(half_written.name)

    def load(self, fresh: S) -> S:
        """The committed state, or the fresh one if there is none, of a journal that has recovered."""
        if not self.checkpoint.exists():
            return fresh
        tensors, _ = read_checkpoint(self.checkpoint, FORMAT)
        return self._fitted(fresh, tensors)

    def remembered(self) -> dict[str, Tensor]:
        """What the node kept beside the committed state."""
        tensors = read_checkpoint(self.checkpoint, FORMAT)[0] if self.checkpoint.exists() else {}
        return {n.removeprefix(_OF_NODE): value for n, value in tensors.items() if n.startswith(_OF_NODE)}

    def begin(self, round: int, absent: Collection[int] = (), leaving: Collection[int] = ()) -> None:
        """From here on the round must be finished, also after a crash; and with the same links.

        absent, leaving: who had no links, and who took part for the last time. Shares that were sent depend
        on how many there were.
        """
        links = {"absent": sorted(absent), "leaving": sorted(leaving)}
        self._write(BEGUN, json.dumps({"round": round, **links}).encode())

    def begun_links(self) -> tuple[frozenset[int], frozenset[int]]:
        """Who was absent from the round that had begun before a crash, and who was leaving in it."""
        return read_begun_links(self.folder)

    def begun(self) -> int | None:
        """The round that had begun before a crash, if there is one."""
        round = read_begun(self.folder)
        return round if round is not None and round >= self.round else None

    def keep(self, parcel: ParcelId, body: bytes) -> None:
        """A conserved parcel becomes this peer's own; if it cannot be written, it never will."""
        try:
            self._write(parcel.file("in"), body)
        except RunFolderError:
            self.ledger.denied.add(parcel)  # its sender takes it back: a copy must not count once more
            self._remove(parcel.file("in"))  # written perhaps, but not for sure on the disk
            raise

    def kept(self) -> list[ParcelId]:
        """Parcels that are not yet part of the committed state."""
        return self._named("in")

    def kept_body(self, parcel: ParcelId) -> bytes:
        return (self.folder / parcel.file("in")).read_bytes()

    def deny(self, parcel: ParcelId) -> None:
        self._write(parcel.file("no", ""), b"")
        self.ledger.denied.add(parcel)

    def doubt(self, parcel: ParcelId, body: bytes) -> None:
        """Park an own parcel; it counts from the next commit on."""
        self._write(parcel.file("doubt"), body)

    def doubted(self, parcel: ParcelId) -> bytes:
        return (self.folder / parcel.file("doubt")).read_bytes()

    def commit(
        self,
        state: Any,
        round: int,
        taken: Iterable[ParcelId],
        doubts: Iterable[ParcelId],
        remembered: Mapping[str, Tensor] | None = None,
    ) -> None:
        """The state before round `round`, into which the parcels `taken` went.

        remembered: what the node keeps beside it.
        """
        ledger = Ledger(self.ledger.taken | set(taken), self.ledger.denied).recent(round)
        notes = {
            "round": round,
            "taken": sorted(ledger.taken),
            "denied": sorted(ledger.denied),
            "doubts": sorted(doubts),
        }
        head = {"format": FORMAT, "notes": json.dumps(notes)}
        tensors = dict(named_tensors(state))
        tensors |= {_OF_NODE + name: tensor for name, tensor in (remembered or {}).items()}
        keep_earlier(self.folder, self.round, self.earlier)
        write_checkpoint(self.checkpoint, tensors, head, durable=self.durable, mode=SECRET)
        self.ledger, self.round, self.doubts = ledger, round, set(doubts)
        self._clear()

    def _clear(self) -> None:
        """Remove what the checkpoint has made superfluous."""
        self._remove(BEGUN)
        for parcel in self._named("no", ""):
            self._remove(parcel.file("no", ""))  # the checkpoint holds it
        self._clear_parcels()

    def _clear_parcels(self) -> None:
        for parcel in self._named("in"):
            if parcel in self.ledger.taken:
                self._remove(parcel.file("in"))
        for parcel in self._named("doubt"):
            if parcel not in self.doubts:
                self._remove(parcel.file("doubt"))

    def read(self, fresh: S) -> S:
        """The committed state and its `round`, for whoever looks on: nothing on disk is changed."""
        tensors, head = read_checkpoint(self.checkpoint, FORMAT)
        self._take_notes(parse_notes(head, self.checkpoint))
        return self._fitted(fresh, tensors)

    def _fitted(self, fresh: S, tensors: Mapping[str, Tensor]) -> S:
        advice = "; a new experiment needs a new state folder"
        begun = {name: new for name, new in named_tensors(fresh) if name.partition("/")[0] in self.afresh}
        if any(name in tensors and tensors[name].shape != new.shape for name, new in begun.items()):
            tensors = {**tensors, **begun}
        return rebuilt(fresh, fitting(self.checkpoint, tensors, advice))

    def _take_notes(self, notes: Mapping[str, Any]) -> None:
        self.round = notes["round"]
        self.ledger = Ledger(*({ParcelId(*item) for item in notes[name]} for name in ("taken", "denied")))
        self.doubts = {ParcelId(*item) for item in notes["doubts"]}

    def _named(self, kind: str, suffix: str = ".safetensors") -> list[ParcelId]:
        return [ParcelId.of_file(path) for path in sorted(self.folder.glob(f"{kind}-*{suffix}"))]

    def _write(self, name: str, content: bytes) -> None:
        write_atomically(self.folder / name, content, durable=self.durable, mode=SECRET)

    def _remove(self, name: str) -> None:
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot remove {self.folder / name}: {error.strerror}") from None


class Holdings:
    """Conserved parcels of others that this peer has taken. Each counts once, despite copies and crashes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._unused = set(journal.kept())  # not in a committed state yet
        self._denied_now: Counter[int] = Counter()  # by member, since the last commit

    def owns(self, parcel: ParcelId) -> bool:
        return parcel in self._unused or parcel in self._journal.ledger.taken

    def denied(self, parcel: ParcelId) -> bool:
        """Whether its sender was told that it is not taken, so that it never may be."""
        return parcel in self._journal.ledger.denied

    def finding(self, parcel: ParcelId) -> bool:
        """Whether a parcel was taken. A no is final: the parcel will not be taken later."""
        if self.owns(parcel):
            return True
        if not self.denied(parcel):
            self._deny(parcel)
        return False

    def _deny(self, parcel: ParcelId) -> None:
        """Write it down, but not without end: whoever asks about everything would fill the disk."""
        remembered = sum(other.number == parcel.number for other in self._journal.ledger.denied)
        if self._denied_now[parcel.number] >= _DENIED_IN_A_ROUND or remembered >= _DENIED_OF_A_MEMBER:
            raise RefusedError(
                "busy", "too many inquiries about parcels that never came; ask in a later round"
            )
        self._denied_now[parcel.number] += 1
        self._journal.deny(parcel)

    def keep(self, parcel: ParcelId, body: bytes) -> None:
        """From now on it is this peer's own, also after a crash."""
        self._journal.keep(parcel, body)
        self._unused.add(parcel)

    def unused(self) -> list[ParcelId]:
        """Those that are not part of a committed state yet."""
        return sorted(self._unused)

    def body(self, parcel: ParcelId) -> bytes:
        return self._journal.kept_body(parcel)

    def committed(self, parcels: Iterable[ParcelId]) -> None:
        """These are part of the committed state."""
        self._unused -= set(parcels)
        self._denied_now.clear()
