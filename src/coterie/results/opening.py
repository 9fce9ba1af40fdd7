"""`coterie.open`: what a folder holds, finished or interrupted. Nothing there is changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coterie.errors import RunFolderError
from coterie.experiments.cells.comparing import PLAN as COMPARISON
from coterie.experiments.real_peers.swarm_run import SwarmRun, peers_in
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.run import Run
from coterie.experiments.runs.stored import StoredRun
from coterie.experiments.setup.prepare import Objects
from coterie.peer.trust.settings import SETTINGS_FILE
from coterie.reporting.reproduction_text import RESULTS
from coterie.results.comparison import Comparison, opened_comparison
from coterie.results.reproduction import Reproduced
from coterie.results.sweep import PLAN as SWEEP
from coterie.results.sweep import Sweep, opened_sweep


def open(folder: str | os.PathLike[str], **objects: Any) -> Run | Comparison | Sweep | Reproduced:
    """What a run, comparison, sweep, reproduction or swarm left in its folder, finished or interrupted.

    Nothing there is changed. The folder of a reproduction is that of one table at one scale. That of a swarm
    (`coterie swarm --dir`) is opened as a run, whose peers were real.
    objects: `algorithm`, `data`, `model`, `partition` or `topology`, if the run was given any as a Python
        object: a folder cannot hold them, and the run's models cannot be read without them.
    """
    path, given = Path(os.fspath(folder)).expanduser(), Objects(**objects)
    if not path.is_dir():
        raise RunFolderError(f"there is no folder {path}")
    if (path / COMPARISON).is_file():
        return opened_comparison(path, given)
    if (path / SWEEP).is_file():
        return opened_sweep(path, given)
    if (path / RESULTS).is_file():
        return Reproduced.read(path)
    if peers_in(path):
        return SwarmRun(path)
    if not RunFolder(path).holds_run:
        raise RunFolderError(
            f"{path} is not a run folder, nor that of a comparison, sweep, reproduction or swarm: none of "
            f"config.toml, {COMPARISON}, {SWEEP}, {RESULTS} and */{SETTINGS_FILE} is in it"
        )
    return StoredRun(RunFolder(path), given)
