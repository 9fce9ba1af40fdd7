"""The peer processes of `coterie swarm`: starting, watching and ending them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.errors import UnreachableError
from coterie.peer.watch.monitoring import ask_standing
from coterie.peer.watch.standing import Standing

LOG, RESULT = "log", "result.json"
_GRACE = 10.0  # seconds for a peer to end by itself once it is asked to
_LAST_LINES = 5


class Process:
    """One `coterie peer run`, with what it last said of itself."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.standing: Standing | None = None
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with open(folder / LOG, "wb") as log, open(folder / RESULT, "wb") as result:
            self._process = subprocess.Popen(
                # Its stdin is closed when this process ends, in whatever way, and then it ends too.
                [
                    sys.executable,
                    "-m",
                    "coterie",
                    "peer",
                    "run",
                    "--dir",
                    str(folder),
                    "--json",
                    "--while-stdin",
                ],
                stdin=subprocess.PIPE,
                stdout=result,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the swarm, which ends its peers itself
            )

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
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

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


def end_all(processes: Sequence[Process]) -> None:
    """Ask all of them, then wait for all of them."""
    for process in processes:
        process.ask_to_end()
    until = time.monotonic() + _GRACE
    for process in processes:
        process.end(until)
