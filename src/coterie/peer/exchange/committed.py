"""A peer's checkpoints on disk: how far they are, which earlier ones are kept, and the way back to one.

Read from their heads alone. Needs no PyTorch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.checkpoints import read_head
from coterie.errors import ConfigError, DamagedRunError, RunFolderError

FORMAT = "coterie-peer-1"
CHECKPOINT, BEGUN = "checkpoint.safetensors", "begun.json"
_EARLIER = "earlier-"
_LARGEST_BEGUN = 10 << 20  # bytes
_PARCEL_LISTS = ("taken", "denied", "doubts")
_UNDONE = ("in-*", "no-*")  # parcels of rounds that are played again


def read_notes(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint of `Journal` says of itself: its round, and the fate of conserved parcels."""
    return parse_notes(read_head(checkpoint, FORMAT), checkpoint)


def parse_notes(head: Mapping[str, str], checkpoint: Path) -> dict[str, Any]:
    try:
        notes = json.loads(head["notes"])
        lists = {name: [tuple(map(_count, item)) for item in notes[name]] for name in _PARCEL_LISTS}
        if any(len(item) != 3 for items in lists.values() for item in items):
            raise ValueError("a parcel has a number, a round and a slot")
        return {"round": _count(notes["round"]), **lists}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedRunError(f"{checkpoint} is not a checkpoint that a peer wrote") from None


def read_begun(folder: Path) -> int | None:
    """The round that had begun when `Journal` last wrote it down; None if there is none."""
    found = _read_begun(folder)
    return None if found is None else found[0]


def read_begun_links(folder: Path) -> tuple[frozenset[int], frozenset[int]]:
    """Who was absent from that round, and who was leaving in it."""
    found = _read_begun(folder)
    return (frozenset(), frozenset()) if found is None else found[1:]


def _read_begun(folder: Path) -> tuple[int, frozenset[int], frozenset[int]] | None:
    path = folder / BEGUN
    try:
        said = json.loads(path.read_bytes()[:_LARGEST_BEGUN])
        absent, leaving = (frozenset(map(_count, said.get(key, ()))) for key in ("absent", "leaving"))
        return _count(said["round"]), absent, leaving
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedRunError(
            f"{path} is not what was written; it names the round that had begun, such as "
            '{"round": 7}, so that shares which were sent then are not sent twice'
        ) from None


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 10**9:
        raise ValueError(f"{value!r} is not a round, a slot or a number")
    return value


def committed_rounds(checkpoint: Path) -> int:
    """Finished rounds in a checkpoint of `Journal`; 0 if there is no such file."""
    return int(read_notes(checkpoint)["round"]) if checkpoint.exists() else 0


def earlier_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints that are kept beside the present one, by the number of their finished rounds."""
    found = {}
    for path in folder.glob(f"{_EARLIER}*.safetensors"):
        number = path.stem.removeprefix(_EARLIER)
        if number.isdecimal():
            found[int(number)] = path
    return dict(sorted(found.items()))


def keep_earlier(folder: Path, round: int, most: int) -> None:
    """Keep the present checkpoint, that of `round`, besides the newest of those before it; `most` in all."""
    checkpoint = folder / CHECKPOINT
    if most and checkpoint.exists():
        _replace_by_copy(checkpoint, folder / f"{_EARLIER}{round}.safetensors")
    kept = earlier_checkpoints(folder)
    before = [number for number in kept if number <= round]
    for number in kept.keys() - set(before[len(before) - min(most, len(before)) :]):
        kept[number].unlink(missing_ok=True)


def roll_back(folder: Path, round: int, *, everyone: bool = False) -> None:
    """Make the kept checkpoint of `round` the present one, which is kept in its turn.

    everyone: all members of the experiment go back to this round. Without that, shares of push-sum that
    others took since would exist twice, and it is refused.
    """
    checkpoint, kept = folder / CHECKPOINT, earlier_checkpoints(folder)
    if round not in kept:
        rounds = ", ".join(map(str, kept)) or "none"
        raise ConfigError(f"no checkpoint after round {round} is kept in {folder}; there are: {rounds}")
    read_notes(kept[round])  # refuses one that is damaged
    now = read_notes(checkpoint) if checkpoint.exists() else None
    if not everyone and (_has_shares(now) or (folder / BEGUN).exists()):
        raise ConfigError(
            "this peer exchanged shares of push-sum since then, and alone it would bring them back a second "
            "time; if all members go back to this round, say --everyone"
        )
    if now is not None:
        _replace_by_copy(checkpoint, folder / f"{_EARLIER}{now['round']}.safetensors")
    for pattern in (BEGUN, *_UNDONE):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    _replace_by_copy(kept[round], checkpoint)


def _has_shares(notes: Mapping[str, Any] | None) -> bool:
    return notes is not None and any(notes[name] for name in _PARCEL_LISTS)


def _replace_by_copy(source: Path, target: Path) -> None:
    """Atomically, and without moving bytes where the disk has links."""
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copy2(source, temporary)
        os.replace(temporary, target)
        temporary.unlink(missing_ok=True)  # a rename onto a link of the same file leaves both
    except OSError as error:
        raise RunFolderError(f"cannot write {target}: {error.strerror}; {source} is intact") from None
