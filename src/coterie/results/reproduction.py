"""A reproduced table or figure as it was written: our numbers beside the paper's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coterie.errors import RunFolderError
from coterie.experiments.runs.frames import frame
from coterie.reporting import reproduction_text
from coterie.reporting.comparison import Lines
from coterie.reporting.reproduction import Reproduction, printed_number
from coterie.reporting.reproduction_text import RESULTS
from coterie.results.exports import Column, Sheet


def sheets_of(done: Reproduction) -> list[tuple[str, Sheet]]:
    """A table for each metric: ours with its interval over seeds, beside each column the paper's number."""
    return [(f"{done.name} {metric}", _sheet(done, metric)) for metric in done.table.metrics]


def _sheet(done: Reproduction, metric: str) -> Sheet:
    written = partial(reproduction_text.plain_number, metric=metric)
    few = metric.endswith(("-to-target", "-spread", "loss"))
    columns = [Column("method", [row.shown for row in done.rows])]
    for column in done.columns:
        ours = [done.number(row.name, column.name, metric) for row in done.rows]
        columns.append(Column(column.shown, ours, written, "lowest" if few else "highest"))
        printed = [printed_number(done.table, row, column.name, metric)[0] for row in done.rows]
        if any(value is not None for value in printed):
            texts = ["--" if value is None else written(value) for value in printed]
            columns.append(Column(f"{column.shown}, paper", texts))
    lines = [line for line in reproduction_text.as_json(done)["numbers"] if line["metric"] == metric]
    return Sheet(lines, columns, f"{done.name} at scale {done.scale}: {metric}")


@dataclass(frozen=True, repr=False)
class Reproduced:
    """One table or figure of a paper at one scale."""

    folder: Path
    result: dict[str, Any]  # what `coterie reproduce --json` prints of it

    @classmethod
    def read(cls, folder: Path) -> Reproduced:
        try:
            found = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
            lacking = [key for key in ("name", "scale", "numbers", "claims", "missing") if key not in found]
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(f"{folder / RESULTS} cannot be read: {error}") from None
        if lacking:
            raise RunFolderError(f"{folder / RESULTS} cannot be read: it has no {lacking[0]!r}")
        return cls(folder, found)

    def __repr__(self) -> str:
        """Which table it is, how much of it was run, and how the paper's claims fared, in a line."""
        said = [claim["status"] for claim in self.result["claims"]]
        holds = f"{said.count('holds')} of {len(said)} claims hold" if said else "no claims"
        missing = len(self.result["missing"])
        runs = f", {missing} runs missing" if missing else ""
        return f"<Reproduced {self.result['name']} at scale {self.result['scale']}, {holds}{runs}>"

    @property
    def numbers(self) -> Lines:
        """A line for each method, setting and metric: ours with its interval, and the printed number."""
        return list(self.result["numbers"])

    def frame(self, library: str | None = None) -> Any:
        """The numbers as a data frame of pandas or polars."""
        lines = self.numbers
        return frame({name: [line[name] for line in lines] for name in (lines[0] if lines else ())}, library)
