"""What `sweep` and `reproduce` share: how many processes, and what is said when they are interrupted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.catalogue import sources
from coterie.errors import ConfigError
from coterie.experiments.setup.config import is_file_reference

if TYPE_CHECKING:
    from coterie.experiments.cells.working_off import CellRunner
    from coterie.experiments.setup.schema import Experiment


def runner(where: Path, jobs: int | None, cells: int) -> CellRunner:
    """One process for each core, unless the user says otherwise, and no more than cells."""
    from coterie.experiments.cells.working_off import CellRunner
    from coterie.learning import cores

    return CellRunner(where, max(1, min(jobs or cores(), cells)))


@contextmanager
def interruptible() -> Iterator[None]:
    """Cells know how to go on, so the same command does."""
    try:
        yield
    except KeyboardInterrupt:
        command = shlex.join(["coterie", *sys.argv[1:]])
        raise KeyboardInterrupt(f"what is finished is kept; go on with: {command}") from None


def require_data(experiments: Iterable[Experiment]) -> None:
    """Say now, not in every run, that the folder of data files is not known or not there."""
    for data, folder in sorted({(one.data, one.data_dir or "") for one in experiments}):
        if folder and Path(folder).is_dir():
            continue
        if not is_file_reference(data) and sources.build(data).needs_files:
            missing = f", but {folder} is not a folder" if folder else ""
            raise ConfigError(
                f"data set {data!r} is read from files{missing}: name their folder with --data-dir or the "
                "environment variable COTERIE_DATA"
            )
