"""A reproduction as its folder has it: tables beside the paper's, claims, and the runs of each column."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.experiments.runs.naming import CELLS
from coterie.reporting.numbers.files import read_json, reading

RESULTS, CELLS_CSV = "results.json", "cells.csv"
NOTHING: dict[str, Any] = {"metric": None, "groups": [], "targets": None, "words": [], "notes": []}
_HIGHEST = 3  # folders that a name such as ppdl/table-1/smoke has below that of the cells


@dataclass(frozen=True)
class Told:
    """What the folder says; texts are those of its table.md."""

    result: dict[str, Any]
    cells: list[tuple[str, str, Path]]  # row, column, folder
    claims: list[list[str]] = field(default_factory=list)  # what is said, how it stands, numbers
    notes: list[str] = field(default_factory=list)

    @property
    def columns(self) -> dict[str, str]:
        """By name, what the table calls it."""
        shown = self._shown("columns")
        return {column: shown.get(column, column) for _, column, _ in self.cells}

    def _shown(self, key: str) -> dict[str, str]:
        found = self.result.get(key)
        return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}

    def rows_of(self, column: str) -> dict[str, list[Path]]:
        """The runs of a column, by what the table calls their row."""
        shown, found = self._shown("rows"), {}  # type: tuple[dict[str, str], dict[str, list[Path]]]
        for row, of, cell in self.cells:
            if of == column:
                found.setdefault(shown.get(row, row), []).append(cell)
        return found

    def entry(self, column: str) -> dict[str, Any]:
        title = f"{self.result.get('name')}: {self.result.get('title')}, scale {self.result.get('scale')}"
        parts = {"now": column, "names": self.columns} if len(self.columns) > 1 else None
        head = ["what the paper says", "in these runs", "more exactly"]
        caption = "Claims, checked on these runs alone"
        claims = {"title": "Claims of the paper", "caption": caption, "head": head, "rows": self.claims}
        tables = [*([{**claims, "numbers": []}] if self.claims else []), *_tables(self.result.get("tables"))]
        return {"title": title, "tables": tables, "parts": parts}

    @property
    def words(self) -> list[str]:
        return _counted(self.claims)


def read(folder: Path) -> Told:
    """RunFolderError if it cannot be read."""
    result = read_json(folder / RESULTS)
    with reading(folder / RESULTS):
        claims = [
            [str(one["says"]).rstrip("."), str(one["status"]), str(one.get("detail") or "")]
            for one in result.get("claims") or []
        ]
        notes = [str(one) for one in result.get("notes") or []]
        notes += [f"Not comparable: {result['not_comparable']}"] if result.get("not_comparable") else []
        notes += [f"Broken: {one['row']}, {one['column']}, seed {one['seed']}: {one['error']}"
                  for one in result.get("broken") or []]  # fmt: skip
        if missing := result.get("missing"):
            notes.append(f"{len(missing)} runs are still to be made.")
        if not result.get("tables"):
            notes.append("Another version wrote this folder: its tables are in table.md.")
    with reading(folder / CELLS_CSV):
        return Told(result, list(_cells(folder)), claims, notes)


def _counted(claims: Sequence[Sequence[str]]) -> list[str]:
    """How many of the paper's claims hold here, in a sentence."""
    if not claims:
        return []
    found = Counter(status for _, status, _ in claims)
    many = f"{len(claims)} claim{'s' if len(claims) > 1 else ''}"
    return [f"Of {many} of the paper: {', '.join(f'{count} {status}' for status, count in found.items())}."]


def cells_of(folder: Path) -> list[Path]:
    """The runs of a reproduction; none if that cannot be read."""
    try:
        return list(dict.fromkeys(cell for _, _, cell in _cells(folder)))
    except (OSError, ValueError, LookupError, TypeError, csv.Error):
        return []


def _cells(folder: Path) -> Iterator[tuple[str, str, Path]]:
    above = [path / CELLS for path in list(folder.parents)[:_HIGHEST]]
    home = next((path for path in above if path.is_dir()), None)
    if home is None:
        return
    with open(folder / CELLS_CSV, newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            name = line["folder"] or ""
            if name and Path(name).name == name and "\0" not in name:  # not a way to somewhere else
                yield line["row"], line["column"], home / name


def _tables(found: Any) -> list[dict[str, Any]]:
    """Those that are tables of texts."""
    whole = [one for one in found or [] if isinstance(one, dict)] if isinstance(found, list) else []
    return [
        {
            "title": str(one["title"]),
            "caption": str(one["legend"]),
            "head": one["lines"][0],
            "rows": one["lines"][1:],
            "numbers": list(range(1, len(one["lines"][0]))),
        }
        for one in whole
        if one.get("lines") and {"title", "legend"} <= one.keys()
    ]
