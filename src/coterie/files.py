"""One way to write files, to keep secrets and to lock.

A crash leaves no half-written file. Only their owner reads secrets. A lock ends with the process that has it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import ConfigError, RunFolderError

if sys.platform != "win32":  # where there are no such locks
    import fcntl

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECRET, PUBLIC = 0o600, 0o644
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_atomically(
    path: Path, content: bytes | Iterable[Buffer], *, durable: bool = True, mode: int = 0o666
) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part.

    content: the whole, or its pieces in order, of which only one need be in memory at a time.

    durable: also after a power failure; without it, only after the process is killed.
    mode: of the new file, whatever the old one had.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        _create(temporary, content, durable, mode)
        os.replace(temporary, path)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}; what was there before is intact"
        ) from None
    finally:  # also after Ctrl-C
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    if durable:
        _sync_folder(path)


def write_new(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Make a file that must not exist yet, on the disk when this returns; on failure there is none."""
    try:
        _create(path, content, True, mode)
    except FileExistsError:
        raise ConfigError(f"{path} exists already, and is not overwritten") from None
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror}") from None
    _sync_folder(path)


def require_place(path: Path, what: str) -> None:
    """Find out now that a file could not be written there later. what: names it in the error."""
    place = path.expanduser().resolve()
    if place.is_dir():
        raise RunFolderError(f"{what} {path} is a folder; name a file")
    if not place.parent.is_dir():
        raise RunFolderError(f"{what} {path}: its folder does not exist")


def has_parquet() -> bool:
    """Whether a library is installed that writes Parquet files."""
    names = [name for name in ("polars", "pandas", "pyarrow") if importlib.util.find_spec(name) is not None]
    return "polars" in names or len(names) == 2


def read_secret(path: Path) -> bytes:
    """The content of a file that nobody else may read."""
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())  # of the very file that is read
            mode = stat.S_IMODE(facts.st_mode)
            if mode & _OTHERS and not _is_mounted_secret(facts):
                raise ConfigError(
                    f"{path} holds a private key and others can read it (mode {mode:03o}); "
                    f"run: chmod 600 {shlex.quote(str(path))}"
                )
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _is_mounted_secret(facts: os.stat_result) -> bool:
    """Whether it is root's, and readable for this process by its group: so containers get secrets."""
    if sys.platform == "win32" or os.geteuid() == 0 or facts.st_uid != 0:
        return False
    only_group_reads = stat.S_IMODE(facts.st_mode) & 0o037 == 0
    return only_group_reads and facts.st_gid in (os.getegid(), *os.getgroups())


def make_private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {folder}: {error.strerror}") from None


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
        with contextlib.suppress(OSError):  # while it is locked: later it might be somebody else's
            lock.unlink()
        os.close(descriptor)


def somebody_has(lock: Path) -> bool:
    """Whether a process is within `alone` with this lock file."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)


def _create(path: Path, content: bytes | Iterable[Buffer], durable: bool, mode: int) -> None:
    """Make a file that must not exist yet; on failure there is none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except BaseException:  # also Ctrl-C
        path.unlink(missing_ok=True)
        raise


def _sync_folder(path: Path) -> None:
    """A new or renamed file is on the disk only when its folder is."""
    if sys.platform == "win32":  # which opens no folders
        return
    try:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RunFolderError(
            f"{path} is written, but a power failure may undo it: {error.strerror}"
        ) from None


def _lock(path: Path, wait: bool) -> int:
    """A descriptor of the file, locked if there are locks here: else nobody can be kept out."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunFolderError(f"cannot write in {path.parent}: {error.strerror}") from None
        if sys.platform == "win32":
            return descriptor
        else:  # where a type checker for Windows does not look
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
