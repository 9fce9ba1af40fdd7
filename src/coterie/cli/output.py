"""What commands print, and the options that say how."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
NoPlots = Annotated[bool, typer.Option("--no-plots", help="Draw nothing.")]


@dataclass(frozen=True)
class Output:
    """What is shown and written besides the records."""

    json: bool
    quiet: bool
    plots: bool


def print_json(value: Any) -> None:
    """One strict JSON document on stdout."""
    typer.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def print_paths(plots: Sequence[Path], folder: Path, output: Output) -> None:
    """Where to look; on stderr when stdout is for JSON."""
    if not output.quiet:
        for path in plots:
            typer.echo(f"plot: {path}", err=output.json)
        typer.echo(f"records: {folder}", err=output.json)


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
