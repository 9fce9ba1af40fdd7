"""The peer processes of `coterie swarm`: starting, watching and ending them."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.errors import UnreachableError
from coterie.peer.watch.monitoring import ask_standing
from coterie.peer.watch.standing import Standing

LOG, RESULT = "log", "result.json"
_GRACE = 10.0  # seconds for a peer to end by itself once it is asked to
_LAST_LINES = 5
_NURSERY = "coterie.cli.swarm.nursery"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LONGEST_FOLDER = 70  # of temporary files: the name of a socket in it has 32 characters more, of 107 at most


class Process:
    """One `coterie peer run`, with what it last said of itself."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.standing: Standing | None = None
        self._process: _Forked | _Executed = (_Forked if _can_fork() else _Executed)(folder)

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    @property
    def died(self) -> bool:
        return self.code not in (None, 0)

    @property
    def state(self) -> str:
        if self.died:
            return "died"
        if self.code == 0:
            return "finished"
        if self.standing is None:
            return "starting"
        return "finished" if self.standing.finished else "learning" if self.standing.joined else "waiting"

    def look(self) -> None:
        """Ask it how it stands; one that is starting or busy is asked again later."""
        if self.code is None:
            with suppress(UnreachableError):
                self.standing = ask_standing(self.folder / "state", timeout=1.0)

    def ask_to_end(self) -> None:
        if self.code is None:
            self._process.terminate()

    def end(self, until: float) -> None:
        """Wait for it, and kill it when that takes too long."""
        if not self._process.ended(max(0.0, until - time.monotonic())):
            self._process.kill()
            self._process.ended(None)
        self._process.close()

    def last_lines(self) -> list[str]:
        text = (self.folder / LOG).read_text(encoding="utf-8", errors="replace")
        return text.strip().splitlines()[-_LAST_LINES:]

    def result(self) -> dict[str, Any] | None:
        """What it printed at its end."""
        try:
            found: dict[str, Any] = json.loads((self.folder / RESULT).read_bytes())
        except ValueError:
            return None
        return found


def _can_fork() -> bool:
    """Tried on Linux only; Windows cannot."""
    return sys.platform == "linux" and len(tempfile.gettempdir()) <= _LONGEST_FOLDER


class _Forked:
    """A process that shares what it imports with all others: see `nursery`."""

    def __init__(self, folder: Path) -> None:
        os.environ |= _ONE_THREAD  # for the process that all others are forked from
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([_NURSERY])
        alive, self._alive = context.Pipe(duplex=False)  # is closed when this process ends, in whatever way
        files = (str(folder), str(folder / LOG), str(folder / RESULT))
        self._process = context.Process(target=_be_a_peer, args=(*files, alive), daemon=True)
        for path in files[1:]:
            Path(path).write_bytes(b"")
        self._process.start()
        alive.close()

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def ended(self, seconds: float | None) -> bool:
        self._process.join(seconds)
        return self._process.exitcode is not None

    def close(self) -> None:
        self._alive.close()


def _be_a_peer(*arguments: Any) -> None:
    import_module(_NURSERY).be_a_peer(*arguments)


class _Executed:
    """A process with an interpreter of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "coterie", "peer", "run", "--dir", str(folder)]
        with open(folder / LOG, "wb") as log, open(folder / RESULT, "wb") as result:
            self._process = subprocess.Popen(
                # Its stdin is closed when this process ends, in whatever way, and then it ends too.
                [*command, "--json", "--while-stdin"],
                stdin=subprocess.PIPE,
                stdout=result,
                stderr=log,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,  # Ctrl-C is for the swarm, which ends its peers itself
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def ended(self, seconds: float | None) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def end_all(processes: Sequence[Process]) -> None:
    """Ask all of them, then wait for all of them."""
    for process in processes:
        process.ask_to_end()
    until = time.monotonic() + _GRACE
    for process in processes:
        process.end(until)
