"""`coterie.read`: all runs below a folder as one data frame."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from coterie.errors import RunFolderError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.frames import Columns, columns_of, frame, installed_library
from coterie.experiments.runs.stored import StoredRun
from coterie.results.sweep import facts_of


def read(
    folder: str | os.PathLike[str],
    kind: Literal["rounds", "peers", "links"] = "rounds",
    library: str | None = None,
) -> Any:
    """A data frame of all runs in a folder: of one run, a comparison, a sweep or whatever holds runs.

    Its lines are those of `run.frame(kind)`, after the columns `run` (the folder's name), `algorithm` and
    `seed`. Columns that a run does not have are empty in its lines. Nothing in the folder is changed.
    library: "pandas" or "polars"; default: the first of them that is installed.
    """
    path = Path(os.fspath(folder)).expanduser()
    if not path.is_dir():
        raise RunFolderError(f"there is no folder {path}")
    library = installed_library(library)
    places = sorted(
        config.parent for config in path.rglob("config.toml") if RunFolder(config.parent).holds_run
    )
    if not places:
        raise RunFolderError(f"{path} holds no runs: none of its folders has a config.toml")
    return frame(_joined([_labelled(place, path, kind) for place in places]), library)


def _labelled(place: Path, above: Path, kind: str) -> Columns:
    run = StoredRun(RunFolder(place), facts=facts_of(place))
    columns = columns_of(run, kind)
    lines = len(next(iter(columns.values())))
    name = place.relative_to(above).as_posix() if place != above else place.resolve().name
    labels = {"run": name, "algorithm": run.experiment.algorithm, "seed": run.experiment.seed}
    return {**{key: [value] * lines for key, value in labels.items()}, **columns}


def _joined(tables: list[Columns]) -> Columns:
    """One below the other."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: [value for table in tables for value in table.get(name) or [None] * len(table["run"])]
        for name in names
    }
