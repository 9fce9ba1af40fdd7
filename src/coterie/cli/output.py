"""What commands print, and the options that say how."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.problems import note
from coterie.errors import ConfigError
from coterie.files import has_parquet, require_place

if TYPE_CHECKING:
    from coterie.results.exports import Sheet

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
NoPlots = Annotated[bool, typer.Option("--no-plots", help="Draw nothing.")]


Csv = Annotated[
    Path | None,
    typer.Option("--csv", help="Also write the table as CSV.", metavar="FILE", show_default=False),
]
Parquet = Annotated[
    Path | None,
    typer.Option("--parquet", help="Also write the table as Parquet.", metavar="FILE", show_default=False),
]
Latex = Annotated[
    Path | None,
    typer.Option(
        "--latex",
        help="Also write the table in LaTeX: means and intervals over seeds, the best in bold.",
        metavar="FILE",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Exports:
    """Files that a table is written to, besides what a command leaves anyway."""

    csv: Path | None = None
    parquet: Path | None = None
    latex: Path | None = None

    def check(self) -> None:
        """Find out before the runs that a table could not be written after them."""
        for option, path in (("--csv", self.csv), ("--parquet", self.parquet), ("--latex", self.latex)):
            if path is not None:
                require_place(path, option)
        if self.parquet is not None and not has_parquet():
            raise ConfigError(
                f"--parquet {self.parquet} needs polars, or pandas and pyarrow, which are not installed: "
                "pip install 'coterie[frames]'"
            )

    def write(self, sheet: Sheet) -> list[Path]:
        writers = ((self.csv, sheet.csv), (self.parquet, sheet.parquet), (self.latex, sheet.latex))
        for path, write in writers:
            if path is not None:
                write(path)
        return [path for path, _ in writers if path is not None]


@dataclass(frozen=True)
class Output:
    """What is shown and written besides the records."""

    json: bool
    quiet: bool
    plots: bool
    exports: Exports = Exports()

    def export(self, sheet: Sheet) -> None:
        for path in self.exports.write(sheet):
            note(f"written: {path}", self.quiet)


def print_json(value: Any) -> None:
    """One strict JSON document on stdout."""
    typer.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def print_paths(plots: Sequence[Path], folder: Path, output: Output) -> None:
    """Where to look; on stderr when stdout is for JSON."""
    if not output.quiet:
        for line in [*(f"plot: {path}" for path in plots), f"records: {folder}"]:
            note(line) if output.json else typer.echo(line)


def duration(seconds: float) -> str:
    """7 s, 2 min 3 s or 1 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
