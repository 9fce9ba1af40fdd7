"""What a peer sent, took and refused, line by line in a file whose lines hang together. Needs no PyTorch.

Each line ends with a hash of itself and of the hash before it. So nobody can change, remove or insert a line
without making all later hashes new. Whoever owns the file can do that, too: against its owner it proves
something to those who noted a hash earlier, or have the lines of the other side.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.errors import RunFolderError
from coterie.files import SECRET

AUDIT_FILE = "audit.jsonl"
_START = hashlib.sha256(b"coterie audit 1").hexdigest()  # what the first line follows
_LONGEST_LINE = 1 << 20  # bytes; ours are far shorter

_log = logging.getLogger("coterie.peer")


class Audit:
    """Appends events. A write that fails leaves no half of a line, and is said in the next that does not."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, _START
        self._file: int | None = None  # None: nothing is written yet, or any more
        self._size = self._lost = 0  # bytes of whole lines; events that could not be written

    def open(self) -> None:
        """Go on after the last whole line of the file."""
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, SECRET)
            self._size, self.last = _end_of(self.path)
            cut = os.fstat(self._file).st_size - self._size
            os.ftruncate(self._file, self._size)
        except OSError as error:
            raise RunFolderError(f"cannot write {self.path}: {error.strerror}") from None
        if cut:
            self.write("mended", reason=f"{cut} bytes of a line that was never finished are dropped")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def write(
        self,
        event: str,
        *,
        round: int | None = None,
        peer: str = "",
        digest: str = "",
        bytes: int = 0,
        group: Sequence[str] = (),
        reason: str = "",
    ) -> None:
        """digest: SHA-256 of what was sent or received. group: whose sum it is part of."""
        if self._file is None:
            return
        if self._lost and not self._append("gap", reason=f"{self._lost} events could not be written"):
            self._lost += 1
            return
        self._lost = 0
        said = {"round": round, "peer": peer, "digest": digest, "bytes": bytes, "reason": reason}
        if not self._append(event, **said, group=list(group)):
            self._lost = 1

    def _append(self, event: str, **said: Any) -> bool:
        line = {
            "time": _now(),
            "event": event,
            **{key: value for key, value in said.items() if value or value == 0},
        }
        hash = _hash(self.last, line)
        assert self._file is not None
        content = (json.dumps({**line, "hash": hash}) + "\n").encode()
        try:
            if os.write(self._file, content) != len(content):
                raise OSError(0, "the disk is full")
        except OSError as error:
            if not self._lost:
                _log.warning(
                    "cannot write %s: %s; what happens now will be missing there", self.path, error.strerror
                )
            os.ftruncate(self._file, self._size)
            return False
        self._size, self.last = self._size + len(content), hash
        return True


class AuditLog(logging.Handler):
    """What the log says of the others, such as who is away or back, is part of the audit."""

    def __init__(self, audit: Audit) -> None:
        super().__init__(logging.WARNING)
        self._audit = audit

    def emit(self, record: logging.LogRecord) -> None:
        self._audit.write("log", reason=record.getMessage())


@dataclass
class Verified:
    """What a file's lines say together."""

    lines: int = 0
    first: str = ""  # when
    last: str = ""
    hash: str = _START  # of the last line
    events: Counter[str] = field(default_factory=Counter)
    problem: str = ""  # why the lines do not hang together; empty: they do
    cut: int = 0  # bytes at the end that are no line, as a crash leaves them
    noted: bool = False  # whether a hash that was noted earlier is among them


def verify(path: Path, noted: str = "") -> Verified:
    """Follow the hashes from the first line to the last, or to the first that does not fit."""
    found = Verified()
    for number, (line, hash, cut) in enumerate(_lines(path), 1):
        if cut:
            found.cut = cut
            break
        if line is None:
            found.problem = f"line {number} is no line of an audit"
            break
        if hash != _hash(found.hash, line):
            found.problem = (
                f"line {number} does not follow from the line before it: one of them was changed, or lines "
                "were removed or put in between"
            )
            break
        found.lines, found.last, found.hash = number, str(line.get("time")), hash
        found.first = found.first or found.last
        found.events[str(line.get("event"))] += 1
        found.noted |= hash == noted
    return found


def events(path: Path) -> Iterator[dict[str, Any]]:
    """The lines one by one; whether they hang together is not looked at."""
    for line, _, _ in _lines(path):
        if line is not None:
            yield line


def _lines(path: Path) -> Iterator[tuple[dict[str, Any] | None, str, int]]:
    """(content, hash, 0), or None for what is no line; at the end (None, "", n) for n bytes of a half one."""
    try:
        with open(path, "rb") as file:
            while raw := file.readline(_LONGEST_LINE):
                if not raw.endswith(b"\n") and not file.read(1):
                    yield None, "", len(raw)
                    return
                yield *_parsed(raw), 0
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from None


def _parsed(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        line = json.loads(raw)
        return line, line.pop("hash")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, ""


def _end_of(path: Path) -> tuple[int, str]:
    """(bytes of whole lines, hash of the last one)."""
    size, last = 0, _START
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 2 * _LONGEST_LINE))
        size = file.tell()
        for raw in file.readlines():
            line, hash = _parsed(raw) if raw.endswith(b"\n") else (None, "")
            if raw.endswith(b"\n"):
                size += len(raw)
                last = hash if line is not None else last
    return size, last


def _hash(before: str, line: dict[str, Any]) -> str:
    text = json.dumps(line, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
