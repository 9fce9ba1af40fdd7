"""Tables for elsewhere: CSV, Parquet and LaTeX, with means and intervals over seeds, the best in bold."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coterie.errors import ConfigError
from coterie.experiments.runs.frames import frame
from coterie.files import require_place, write_atomically
from coterie.reporting.comparison import Lines, write_csv, write_parquet
from coterie.reporting.intervals import Interval

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "≠": r"$\neq$", "†": r"\dag{}",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of a LaTeX table: numbers with their intervals, or texts; None where nothing is known."""

    head: str
    cells: Sequence[Interval | str | None]
    written: Callable[[float], str] = "{:.1f}".format
    best: Literal["highest", "lowest"] | None = None  # which numbers are bold


@dataclass(frozen=True)
class Sheet:
    """A table with plain lines, for CSV and Parquet, and with its columns in LaTeX."""

    lines: Lines
    columns: Sequence[Column]
    caption: str = ""
    more: str = ""  # LaTeX of other tables, below

    def frame(self, library: str | None = None) -> Any:
        """The lines as a data frame of pandas or polars."""
        names = dict.fromkeys(name for line in self.lines for name in line)
        return frame({name: [line.get(name) for line in self.lines] for name in names}, library)

    def csv(self, path: str | os.PathLike[str]) -> Path:
        return write_csv(self.lines, _place(path))

    def parquet(self, path: str | os.PathLike[str]) -> Path:
        written = write_parquet(self.lines, _place(path))
        if written is None:
            raise ConfigError(
                "Parquet files need polars, or pandas and pyarrow, which are not installed: "
                "pip install 'coterie[frames]'"
            )
        return written

    def latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table in LaTeX, for the package booktabs; with a path, also written there."""
        text = (_latex(self.columns, self.caption) if self.columns else "") + self.more
        if path is not None:
            write_atomically(_place(path), text.encode())
        return text


def joined(sheets: Sequence[tuple[str, Sheet]]) -> Sheet:
    """Several tables as one, with a column that says whose a line is; a single one as it is."""
    if len(sheets) == 1:
        return sheets[0][1]
    lines = [{"table": name, **line} for name, sheet in sheets for line in sheet.lines]
    return Sheet(lines, (), more="\n".join(sheet.latex() for _, sheet in sheets))


def _place(path: str | os.PathLike[str]) -> Path:
    place = Path(os.fspath(path)).expanduser()
    require_place(place, "the file")
    return place


def escaped(text: str) -> str:
    """A text as LaTeX prints it."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def _latex(columns: Sequence[Column], caption: str) -> str:
    written = [_cells(column) for column in columns]
    kinds = "".join("l" if all(isinstance(c, str) for c in column.cells) else "r" for column in columns)
    lines = [" & ".join(row) + r" \\" for row in zip(*written, strict=True)]
    head = " & ".join(escaped(column.head) for column in columns) + r" \\"
    notes = [f"% {line}" for line in caption.splitlines()]
    body = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head, r"\midrule", *lines, r"\bottomrule"]
    return "\n".join([*notes, *body, r"\end{tabular}", ""])


def _cells(column: Column) -> list[str]:
    best = _best(column)
    return [
        escaped(cell) if isinstance(cell, str) else _number(cell, column.written, best)
        for cell in column.cells
    ]


def _best(column: Column) -> str | None:
    """The best mean as it is written: whoever has the same is as good."""
    means = [cell.mean for cell in column.cells if isinstance(cell, Interval) and math.isfinite(cell.mean)]
    if column.best is None or len(means) < 2:
        return None
    return column.written(max(means) if column.best == "highest" else min(means))


def _number(found: Interval | None, written: Callable[[float], str], best: str | None) -> str:
    if found is None or not math.isfinite(found.mean):
        return "--"
    text = mean = written(found.mean)
    if found.high is not None:
        text += rf" \pm {written(found.high - found.mean).lstrip('+')}"
    return rf"$\mathbf{{{text}}}$" if mean == best else f"${text}$"
