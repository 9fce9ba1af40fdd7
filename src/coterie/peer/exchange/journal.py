"""A peer's state on disk, such that a kill at any moment loses nothing that was committed.

checkpoint.safetensors   state after the last finished round, which conserved parcels were taken, and
                         which of one's own are in doubt; replaced atomically
begun.json               a round whose conserved parcels may have left: after a restart it is finished,
                         not skipped, or what was sent would exist twice
in-R-S-N.safetensors     a conserved parcel of peer N for exchange S of round R, written before the
                         receipt: from then on it belongs to this peer
no-R-S-N                 this peer told N that the parcel was not taken, so it never will be
doubt-R-S-N.safetensors  an own conserved parcel to N of which nobody knows yet whether it was taken
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.errors import RunFolderError
from coterie.files import write_atomically
from coterie.protocol.trees import named_tensors, rebuilt

S = TypeVar("S")

_FORMAT = "coterie-peer-1"
_REMEMBERED_ROUNDS = 1000  # so long an inquiry about a parcel can be answered


class ParcelId(NamedTuple):
    """One parcel: the other peer's number, and the exchange."""

    number: int
    round: int
    slot: int

    def file(self, kind: str, suffix: str = ".safetensors") -> str:
        return f"{kind}-{self.round}-{self.slot}-{self.number}{suffix}"

    @classmethod
    def of_file(cls, path: Path) -> ParcelId:
        _, round, slot, number = path.name.partition(".")[0].split("-")
        return cls(int(number), int(round), int(slot))


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
    """The folder of one peer's state. Every write is atomic; `durable` waits for the disk."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder, self.durable = folder, durable
        self.round = 0  # the next one, by the checkpoint
        self.ledger = Ledger()
        self.doubts: set[ParcelId] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot use {folder}: {error.strerror}") from None

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def load(self, fresh: S) -> S:
        """The committed state, or the fresh one if there is none; clears what a crash left behind."""
        state = self.read(fresh) if self.checkpoint.exists() else fresh
        self.ledger.denied.update(self._named("no", ""))
        self._clear_parcels()
        for half_written in self.folder.glob(".*.tmp"):
            self._remove(half_written.name)
        return state

    def begin(self, round: int) -> None:
        """From here on the round must be finished, also after a crash."""
        self._write("begun.json", json.dumps({"round": round}).encode())

    def begun(self) -> int | None:
        """The round that had begun before a crash, if there is one."""
        path = self.folder / "begun.json"
        round = int(json.loads(path.read_bytes())["round"]) if path.exists() else -1
        return round if round >= self.round else None

    def keep(self, parcel: ParcelId, body: bytes) -> None:
        """A conserved parcel becomes this peer's own; if it cannot be written, it never will."""
        try:
            self._write(parcel.file("in"), body)
        except RunFolderError:
            self.ledger.denied.add(parcel)  # its sender takes it back: a copy must not count once more
            self._remove(parcel.file("in"))  # written perhaps, but not for sure on the disk
            raise

    def kept(self) -> Iterator[tuple[ParcelId, bytes]]:
        """Parcels that are not yet part of the committed state."""
        for parcel in self._named("in"):
            yield parcel, (self.folder / parcel.file("in")).read_bytes()

    def deny(self, parcel: ParcelId) -> None:
        self._write(parcel.file("no", ""), b"")
        self.ledger.denied.add(parcel)

    def doubt(self, parcel: ParcelId, body: bytes) -> None:
        """Park an own parcel; it counts from the next commit on."""
        self._write(parcel.file("doubt"), body)

    def doubted(self, parcel: ParcelId) -> bytes:
        return (self.folder / parcel.file("doubt")).read_bytes()

    def commit(self, state: Any, round: int, taken: Iterable[ParcelId], doubts: Iterable[ParcelId]) -> None:
        """The state before round `round`, into which the parcels `taken` went."""
        ledger = Ledger(self.ledger.taken | set(taken), self.ledger.denied).recent(round)
        notes = {
            "round": round,
            "taken": sorted(ledger.taken),
            "denied": sorted(ledger.denied),
            "doubts": sorted(doubts),
        }
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in named_tensors(state)}
        self._write(self.checkpoint.name, save(tensors, {"format": _FORMAT, "notes": json.dumps(notes)}))
        self.ledger, self.round, self.doubts = ledger, round, set(doubts)
        self._clear()

    def _clear(self) -> None:
        """Remove what the checkpoint has made superfluous."""
        self._remove("begun.json")
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
        """The committed state; nothing on disk is changed, so that a running peer does not notice."""
        try:
            with safe_open(str(self.checkpoint), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise RunFolderError(f"{self.checkpoint} is not a readable checkpoint: {error}") from None
        if metadata.get("format") != _FORMAT:
            raise RunFolderError(f"{self.checkpoint} is not a peer's checkpoint of this version of Coterie")
        notes = json.loads(metadata["notes"])
        self.round = int(notes["round"])
        self.ledger = Ledger(*({ParcelId(*item) for item in notes[name]} for name in ("taken", "denied")))
        self.doubts = {ParcelId(*item) for item in notes["doubts"]}

        def saved(name: str, like: Tensor) -> Tensor:
            tensor = tensors.get(name)
            if tensor is None or tensor.shape != like.shape or tensor.dtype != like.dtype:
                raise RunFolderError(
                    f"{self.checkpoint} does not fit this experiment: {name!r} is missing or has another "
                    "shape; a new experiment needs a new state folder"
                )
            moved: Tensor = tensor.to(like.device)
            return moved

        return rebuilt(fresh, saved)

    def _named(self, kind: str, suffix: str = ".safetensors") -> list[ParcelId]:
        return [ParcelId.of_file(path) for path in sorted(self.folder.glob(f"{kind}-*{suffix}"))]

    def _write(self, name: str, content: bytes) -> None:
        write_atomically(self.folder / name, content, durable=self.durable, mode=0o600)

    def _remove(self, name: str) -> None:
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot remove {self.folder / name}: {error.strerror}") from None
