"""Files of a peer's folder that must be new, and secrets that only their owner reads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from coterie.errors import ConfigError, PeerError

SECRET, PUBLIC = 0o600, 0o644
_LOCK = "lock"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_new(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Make a file that must not exist yet; on failure there is none."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ConfigError(f"{path} exists already, and is not overwritten") from None
    except OSError as error:
        raise PeerError(f"cannot write {path}: {error.strerror}") from None
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:  # also Ctrl-C
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise PeerError(f"cannot write {path}: {error.strerror}") from None
        raise


def replace_secret(path: Path, content: bytes) -> None:
    """Put a secret in place of an old one: whoever reads, also after a crash, sees the one or the other."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    write_new(temporary, content, SECRET)
    try:
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise PeerError(f"cannot write {path}: {error.strerror}; what was there before is intact") from None
    finally:  # also after Ctrl-C
        temporary.unlink(missing_ok=True)


def read_secret(path: Path) -> bytes:
    """The content of a file that nobody else may read."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)  # of the very file that is read
            if mode & _OTHERS:
                raise ConfigError(
                    f"{path} holds a private key and others can read it (mode {mode:03o}); "
                    f"run: chmod 600 {shlex.quote(str(path))}"
                )
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def make_private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PeerError(f"cannot make the folder {folder}: {error.strerror}") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time reads and rewrites this folder's files."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"cannot open the folder {folder}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held(state: Path, whose: str) -> Iterator[None]:
    """Only one process runs with a peer's state; PeerError when another does."""
    make_private_folder(state)
    try:
        descriptor = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT, SECRET)
    except OSError as error:
        raise PeerError(f"cannot write in {state}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise PeerError(f"{whose} is running already, with the state in {state}") from None
    try:
        yield
    finally:
        os.close(descriptor)


def is_held(state: Path) -> bool:
    """Whether a process runs with a peer's state."""
    try:
        descriptor = os.open(state / _LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
