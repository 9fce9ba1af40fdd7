"""Files that a crash cannot leave half-written, and locks that it cannot leave behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
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


@contextlib.contextmanager
def alone(lock: Path, *, wait: bool) -> Iterator[None]:
    """Keep out all others who come with the same lock file, which exists meanwhile.

    wait: until they are gone; otherwise BlockingIOError says that somebody is here. The lock ends with the
    process, however that ends; a file that a killed one leaves locks nothing.
    """
    descriptor = _lock(lock, wait)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):  # while it is locked: later it might be somebody else's
                lock.unlink()
            os.close(descriptor)


def _lock(path: Path, wait: bool) -> int | None:
    """A descriptor of the locked file; None where there are no locks and nobody can be kept out."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)  # who had it has deleted the file: a lock on it would keep out nobody
        except (BlockingIOError, KeyboardInterrupt):
            os.close(descriptor)
            raise
        except OSError:  # a file system without locks
            return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
