"""Files are whole and on the disk, secrets stay with their owner, and locks end with their process."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import ConfigError, RunFolderError
from coterie.files import SECRET, alone, read_secret, somebody_has, write_atomically, write_new


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Recorded:
    """What reaches the disk, in order: the names of what is synced, and of what is renamed to what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._fsync, self._replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)

    def fsync(self, descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        self.calls.append(("fsync", kind, os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        self._fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        self.calls.append(("replace", source.name, target.name))
        self._replace(source, target)


@pytest.mark.skipif(sys.platform != "linux", reason="names of open files")
def test_a_durable_write_syncs_the_file_then_renames_it_then_syncs_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    write_atomically(tmp_path / "file", b"content")
    temporary = recorded.calls[0][2]
    assert recorded.calls == [
        ("fsync", "file", temporary),
        ("replace", temporary, "file"),
        ("fsync", "folder", tmp_path.name),
    ]
    assert temporary != "file"


@pytest.mark.skipif(sys.platform != "linux", reason="names of open files")
def test_a_new_file_is_synced_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)
    write_new(tmp_path / "file", b"content")
    assert recorded.calls == [("fsync", "file", "file"), ("fsync", "folder", tmp_path.name)]


def test_what_need_not_be_durable_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    write_atomically(tmp_path / "file", b"content", durable=False)
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_folder_that_cannot_be_synced_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            full()

    monkeypatch.setattr(os, "fsync", only_files)
    with pytest.raises(RunFolderError, match="file is written, but a power failure may undo it: No space"):
        write_atomically(tmp_path / "file", b"content")


@pytest.mark.parametrize("call", ["os.fsync", "os.replace"])
def test_failed_write_keeps_the_old_content(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    monkeypatch.setattr(call, full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "no temporary file is left"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_ctrl_c_while_writing_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_nowhere_to_write(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="missing"):
        write_atomically(tmp_path / "missing" / "file", b"x")


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    write_new(tmp_path / "file", b"first")
    with pytest.raises(ConfigError, match="exists already"):
        write_new(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"


@pytest.mark.parametrize("write", [write_new, write_atomically])
def test_a_secret_is_its_owners_alone(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "key"
    if write is write_atomically:
        path.write_bytes(b"old")
        path.chmod(0o644)
    write(path, b"key", mode=SECRET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(path) == b"key"
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret(path)


def test_a_lock_keeps_others_out_and_leaves_nothing(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    assert not somebody_has(lock)
    with alone(lock, wait=False):
        assert somebody_has(lock)
        with pytest.raises(BlockingIOError), alone(lock, wait=False):
            pass
        assert somebody_has(lock)
    assert not somebody_has(lock)
    assert not list(tmp_path.iterdir())


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    program = f"""
import os, pathlib
from coterie.files import alone
with alone(pathlib.Path({str(lock)!r}), wait=False):
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert lock.exists()
    assert not somebody_has(lock)
    with alone(lock, wait=False):
        assert somebody_has(lock)


def test_nowhere_to_lock(tmp_path: Path) -> None:
    with (
        pytest.raises(RunFolderError, match=r"cannot write in .*missing"),
        alone(tmp_path / "missing" / "lock", wait=True),
    ):
        pass


def test_nobody_gets_a_lock_on_a_deleted_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it, who had the lock may have ended and deleted the file."""
    lock, original = tmp_path / ".lock", fcntl.flock

    def after_the_other_has_ended(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", original)
        lock.unlink()
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", after_the_other_has_ended)
    with alone(lock, wait=False):
        assert lock.exists()
        with pytest.raises(BlockingIOError), alone(lock, wait=False):
            pass
