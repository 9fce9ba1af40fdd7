"""What our tables say of a method: its rows in kin.md, behaviour.md, reproductions.md and choosing.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown.extensions.toc import slugify

from coterie.catalogue import algorithms

DOCS = Path(__file__).parents[1]
PAGES = ("kin.md", "behaviour.md", "reproductions.md")
_SAID = {"local learning": "local", "random": "random-gossip"}
_SAID_ABOUT_KD_PDFL = {"fedavg": "star-fedavg", "fedavg+": "fedavg-plus"}  # its paper's FedAvg has no server


@dataclass(frozen=True)
class Table:
    """A table of a page, and the heading that it stands below."""

    page: str
    heading: str
    header: str
    rows: tuple[str, ...]

    @property
    def address(self) -> str:
        return f"{self.page}#{slugify(self.heading, '-')}"

    def of(self, name: str) -> list[str]:
        return [row for row in self.rows if method_in(row, self.heading) == name]


def method_in(row: str, heading: str) -> str | None:
    """The method of the catalogue whose row it is, as its first cell calls it."""
    cell = row.split("|")[1].strip().lower()
    cell = re.sub(r"\*(partial|full):\*|[*`]", "", cell).strip()
    name = re.split(r",| \(| \d", cell)[0].strip()
    if "worst tenth" in cell:
        return None
    if heading.lower().startswith("kd-pdfl"):
        name = _SAID_ABOUT_KD_PDFL.get(name, name)
    name = _SAID.get(name, name)
    names = {known.replace("-", ""): known for known in algorithms}
    return names.get(name.replace("-", ""))


@cache
def tables() -> tuple[Table, ...]:
    return tuple(table for page in PAGES for table in tables_of(page))


def tables_of(page: str) -> list[Table]:
    found, heading = [], ""
    for part in (DOCS / page).read_text(encoding="utf-8").split("\n\n"):
        lines = part.strip("\n").split("\n")
        for line in lines:
            if line.startswith("#"):
                heading = line.lstrip("# ")
        if len(lines) > 2 and lines[0].startswith("|") and set(lines[1]) <= set("|-: "):
            found.append(Table(page, heading, lines[0], tuple(lines[2:])))
    return found


def measured(name: str) -> str:
    """The method's rows of every table that has some, below Local's."""
    parts = []
    for table in tables():
        rows = table.of(name)
        if rows and len(table.header.split("|")) > 4:
            alone = [] if name == "local" else table.of("local")
            ruler = re.sub(r"[^|]+", "---", table.header)
            lines = "\n".join([table.header, ruler, *alone, *rows])
            parts.append(f"[{table.heading}](../{table.address})\n\n{lines}")
    if not parts:
        return "Not in our tables yet. The tests check it against its equations, and that it learns."
    said = (
        "From our tables, whose pages say what was run, on how many seeds, and what brackets mean. "
        "Accuracies, unless a column says otherwise."
    )
    return "\n\n".join([said, *parts])


def advice(name: str) -> list[str]:
    """What the table of choosing.md says where it advises this method."""
    (table,) = tables_of("choosing.md")
    lines = []
    for row in table.rows:
        peers, tried, found = (cell.strip() for cell in row.strip("| ").split(" | "))
        if f"(algorithms/{name}.md)" in tried:
            found = re.sub(r"\]\((?=\w)", "](../", found)
            lines.append(f"* Your peers {peers}: {found}.")
    return lines
