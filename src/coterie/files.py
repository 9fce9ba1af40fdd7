"""Files that a crash cannot leave half-written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from coterie.errors import RunFolderError


def write_atomically(path: Path, content: bytes, *, durable: bool = True, mode: int = 0o666) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part.

    durable: also after a power failure; without it, only after the process is killed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}; what was there before is intact"
        ) from None
    finally:  # also after Ctrl-C
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
