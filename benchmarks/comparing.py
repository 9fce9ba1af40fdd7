"""Two runs of the benchmarks beside each other, with a verdict that knows the noise.

A row is a ratio, measured by several turns. Two runs differ only if the ranges of their turns do not touch,
and their medians lie further apart than what a machine does by itself. A single turn gets a wide range.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

FORMAT = "coterie-benchmarks-1"
_ITSELF = 0.05  # by which the medians of two runs differ on a machine that does nothing else
_SINGLE = 0.15  # either side of a ratio that was measured once


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Rows by what they are."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise KeyError("format")
        return {row["what"]: row for row in found["rows"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} holds no benchmarks: {error!r}; python -m benchmarks writes them") from None


def interval(row: dict[str, Any]) -> tuple[float, float]:
    """The range in which the ratio lies."""
    ratios = [float(ratio) for ratio in row["ratios"]]
    if len(ratios) > 1:
        return min(ratios), max(ratios)
    return ratios[0] * (1 - _SINGLE), ratios[0] * (1 + _SINGLE)


def verdict(before: dict[str, Any], after: dict[str, Any]) -> str:
    """better, worse, changed (where nobody says which way is better), or within the noise."""
    (low, high), (new_low, new_high) = interval(before), interval(after)
    change = median(after["ratios"]) / median(before["ratios"]) - 1
    if (low <= new_high and new_low <= high) or abs(change) <= _ITSELF:
        return "within the noise"
    if before["better"] is None:
        return "changed"
    return "better" if (change > 0) == (before["better"] == "higher") else "WORSE"


def compared(first: Path, second: Path) -> Table:
    """A line for each benchmark that either has."""
    before, after = read(first), read(second)
    table = Table(title=f"{first.name} -> {second.name}")
    for column in ("what", "before", "after", "change", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what in {**before, **after}:
        if what not in before or what not in after:
            table.add_row(what, "", "", "", f"only in {(first if what in before else second).name}")
            continue
        a, b = median(before[what]["ratios"]), median(after[what]["ratios"])
        table.add_row(
            what, f"{a:.3g}", f"{b:.3g}", f"{100 * (b / a - 1):+.0f} %", verdict(before[what], after[what])
        )
    return table
