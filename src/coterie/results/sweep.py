"""A sweep: running its cells, and what came of them."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.errors import ConfigError, RunFolderError
from coterie.experiments.cells.cell import FACTS, Cell
from coterie.experiments.cells.working_off import CellRunner, Notify, ignore
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.naming import CELLS
from coterie.experiments.runs.run import Run
from coterie.experiments.runs.stored import StoredRun
from coterie.experiments.setup.prepare import Objects
from coterie.experiments.setup.schema import Experiment
from coterie.files import write_atomically
from coterie.registry import nearest
from coterie.reporting import comparison
from coterie.reporting.comparison import Lines, Swept
from coterie.reporting.intervals import Interval
from coterie.results.exports import Column, Sheet
from coterie.toml_tables import validate

PLAN = "sweep.json"


@dataclass(frozen=True)
class _StoredCell(Cell):
    """A cell as a sweep's plan has it: the files that it names may be others now."""

    folder: str = ""

    @functools.cached_property
    def name(self) -> str:
        return self.folder


@dataclass(frozen=True, repr=False)
class Sweep:
    """The runs of a sweep, in the folder that has their records."""

    cells: Sequence[Cell]
    folder: Path
    broken: Mapping[str, str] = field(default_factory=dict)  # why cells failed just now, by their names
    objects: Objects = field(default_factory=Objects)

    def __repr__(self) -> str:
        """How many runs there are, and the best of them, in a line."""
        done = sum(one.record is not None for one in self.swept)
        keys = ", ".join(key for key in self.cells[0].labels if key != "seed") or "seeds only"
        best = ", ".join(f"{key} {value}" for key, value in self.best.items()) if done else "none so far"
        return f"<Sweep over {keys}, {done} of {len(self.cells)} runs, best: {best}>"

    @functools.cached_property
    def swept(self) -> list[Swept]:
        """Every cell with its records, or why there are none."""
        return comparison.read(self.cells, self.folder / CELLS)

    def results(self) -> Lines:
        """A line for each run: its values, its numbers, its status."""
        return comparison.tidy(self.swept)

    def summary(self) -> Lines:
        """Means and Student's intervals over seeds, for each combination of values."""
        return comparison.summary(self.swept)

    def sheet(self) -> Sheet:
        """The means and intervals over seeds, for CSV, Parquet, LaTeX and data frames."""
        metric, lines = comparison.main_metric(self.swept), self.summary()
        keys = [key for key in self.cells[0].labels if key != "seed"]
        rows = list(dict.fromkeys(tuple(str(line[key]) for key in keys) for line in lines))
        columns = [Column(key, [row[place] for row in rows]) for place, key in enumerate(keys)]
        good: Literal["highest", "lowest"] = "highest" if metric.higher_is_better else "lowest"
        for name in dict.fromkeys(line["metric"] for line in lines):
            found = {tuple(str(line[key]) for key in keys): line for line in lines if line["metric"] == name}
            cells = [_interval(found[row]) if row in found else None for row in rows]
            columns.append(Column(name.replace("_", " "), cells, metric.text, good))
        return Sheet(lines, columns, "mean and Student's 95 % interval over seeds")

    def frame(self, kind: Literal["summary", "results"] = "summary", library: str | None = None) -> Any:
        """The means over seeds, or a line for each run, as a data frame of pandas or polars."""
        if kind not in ("summary", "results"):
            raise ConfigError(f"a sweep has no frame {kind!r}; {nearest(kind, ('summary', 'results'))}")
        return self.sheet().frame(library) if kind == "summary" else Sheet(self.results(), ()).frame(library)

    def csv(self, path: str | os.PathLike[str]) -> Path:
        return self.sheet().csv(path)

    def parquet(self, path: str | os.PathLike[str]) -> Path:
        return self.sheet().parquet(path)

    def latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """The summary in LaTeX, the best in bold; with a path, also written there."""
        return self.sheet().latex(path)

    @property
    def runs(self) -> list[Run]:
        """Those that were begun, finished or not, in the order of the cells."""
        folders = [self.folder / CELLS / cell.name for cell in self.cells]
        return [
            StoredRun(RunFolder(one), self.objects, facts_of(one))
            for one in folders
            if RunFolder(one).holds_run
        ]

    @property
    def best(self) -> dict[str, Any]:
        """The combination of values with the best mean over seeds, by validation data where there are any."""
        return comparison.best(self.swept)


def _interval(line: Mapping[str, Any]) -> Interval:
    return Interval(line["mean"], line["std"], line["low"], line["high"], line["seeds"])


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int = 1,
    notify: Notify = ignore,
    given: Objects | None = None,
) -> Sweep:
    """Run the cells that are not finished, once all of them are checked."""
    with CellRunner(folder / CELLS, max(1, min(jobs, len(cells))), given) as runner:
        runner.check(cells)
        write_plan(cells, folder)
        broken = runner.work_off(cells, notify)
    return Sweep(cells, folder, broken, given or Objects())


def write_plan(cells: Sequence[Cell], folder: Path) -> None:
    """Say in the folder which of its cells the sweep has: it may hold those of an earlier one, too."""
    entries = [
        {"labels": dict(cell.labels), "table": cell.experiment.model_dump(mode="json"), "folder": cell.name}
        for cell in cells
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {folder}: {error.strerror}") from None
    write_atomically(folder / PLAN, json.dumps(entries, indent=1).encode())


def opened_sweep(folder: Path, objects: Objects) -> Sweep:
    """The sweep in a folder, finished or interrupted."""
    try:
        entries = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        cells: list[Cell] = [
            _StoredCell(validate(Experiment, e["table"]), e["labels"], str(e["folder"])) for e in entries
        ]
    except (OSError, ValueError, TypeError, KeyError, ConfigError) as error:
        raise RunFolderError(f"{folder / PLAN} cannot be read: {error}") from None
    return Sweep(cells, folder, objects=objects)


def facts_of(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / FACTS).read_text(encoding="utf-8")))
    except (OSError, ValueError):  # not finished, or damaged: there is less to know of the run
        return {}
