"""`coterie.open`: what a folder holds, finished or interrupted. Nothing there is changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coterie.errors import RunFolderError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.running import Run
from coterie.experiments.runs.stored import StoredRun
from coterie.experiments.setup.prepare import Objects


def open(folder: str | os.PathLike[str], **objects: Any) -> Run:
    """What a run left in its folder, finished or interrupted; nothing there is changed.

    objects: `algorithm`, `data`, `model`, `partition` or `topology`, if the run was given any as a Python
        object: a folder cannot hold them, and the run's models cannot be read without them.
    """
    path = Path(os.fspath(folder)).expanduser()
    if not path.is_dir():
        raise RunFolderError(f"there is no folder {path}")
    return StoredRun(RunFolder(path), Objects(**objects))
