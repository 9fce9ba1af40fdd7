"""The papers' tables and figures: finding them, and the cells that each is made of. Needs no PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import ConfigError, CoterieError
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.paper_schema import Overrides, PaperTable, Row, Scale
from coterie.experiments.setup.config import resolve
from coterie.registry import nearest
from coterie.toml_tables import load_toml, validate

PAPERS = Path(__file__).parent / "papers"


@dataclass(frozen=True)
class Reproducible:
    """A table or figure with the name that users type, such as `ppdl/table-1`."""

    name: str
    table: PaperTable

    def parts(self, scale: Scale) -> set[str]:
        """The names of its rows and columns."""
        return {part.name for part in (*self.table.rows_at(scale), *self.table.columns_at(scale))}

    def cells(self, scale: Scale, seeds: int, data_dir: str | None = None) -> list[Cell]:
        """A run for each row, column and seed."""
        cells = []
        for column in self.table.columns_at(scale):
            for row in self.table.rows_at(scale):
                overrides = experiment_of(self.table, row.name, column.name, scale)
                if data_dir is not None:
                    overrides["data_dir"] = data_dir
                for seed in range(seeds):
                    labels = {"row": row.name, "column": column.name, "seed": seed}
                    try:
                        experiment = resolve({**overrides, "seed": seed})
                    except CoterieError as error:
                        where = f"{self.name}, row {row.name}, column {column.name}, scale {scale}"
                        raise ConfigError(f"{where}: {error}") from None
                    cells.append(Cell(experiment, labels))
        return cells


def chosen(cells: Sequence[Cell], only: Collection[str]) -> list[Cell]:
    """The cells of the rows and columns named; without a row among them all rows, likewise columns."""
    result = list(cells)
    for part in ("row", "column"):
        named = {cell.labels[part] for cell in cells}.intersection(only)
        result = [cell for cell in result if not named or cell.labels[part] in named]
    return result


def check_only(wanted: Sequence[Reproducible], scale: Scale, only: Sequence[str]) -> None:
    """Refuse a name that is no row or column of anything wanted."""
    known = {name for one in wanted for name in one.parts(scale)}
    for name in only:
        if name not in known:
            raise ConfigError(f"--only {name}: no row or column is called so; {nearest(name, sorted(known))}")


def names() -> list[str]:
    """All that can be reproduced, by paper, tables before figures."""
    found = [path.relative_to(PAPERS).with_suffix("").as_posix() for path in PAPERS.glob("*/*.toml")]
    return sorted(found, key=_order)


def find(wanted: str) -> list[Reproducible]:
    """`all`, a paper, `paper/table-1`, or one's own TOML file."""
    known = names()
    papers = sorted({name.partition("/")[0] for name in known})
    if wanted.endswith(".toml"):
        return [Reproducible(Path(wanted).stem, read(Path(wanted)))]
    chosen = [name for name in known if wanted in ("all", name, name.partition("/")[0])]
    if not chosen:
        options = [name for name in known if name.startswith(wanted.partition("/")[0] + "/")]
        raise ConfigError(
            f"nothing to reproduce is called {wanted!r}; {_hint(wanted, options, known, papers)}"
        )
    return [Reproducible(name, read(PAPERS / f"{name}.toml")) for name in chosen]


def _hint(wanted: str, of_paper: list[str], known: list[str], papers: list[str]) -> str:
    hint = nearest(wanted, of_paper or [*known, *papers, "all"])
    if hint.startswith("did you mean"):
        return hint
    return f"the papers are {', '.join(papers)}; `coterie reproduce list` shows all"


def read(path: Path) -> PaperTable:
    """A table or figure, checked; the error names the file."""
    return validate(PaperTable, load_toml(path), str(path))


def experiment_of(table: PaperTable, row_name: str, column_name: str, scale: Scale) -> Overrides:
    """The experiment of a cell, without its seed: what holds at all scales, then what the scale changes.

    Within both: the table's, the column's, the row's, and that of the row at this column; the later wins.
    """
    row = next(row for row in table.rows if row.name == row_name)
    column = next(column for column in table.columns if column.name == column_name)
    parts = [table.experiment, column.experiment, row.experiment, *_at(row, column_name)]
    parts += [table.scales[scale].experiment, column.at_scale(scale), row.at_scale(scale)]
    parts += _at(row, column_name, scale)
    merged: Overrides = {}
    for part in parts:
        merged = _merged(merged, part)
    return merged


def _at(row: Row, column: str, scale: Scale | None = None) -> list[Overrides]:
    one = row.at.get(column)
    if one is None:
        return []
    return [one.experiment if scale is None else one.at_scale(scale)]


def _merged(below: Overrides, above: Overrides) -> Overrides:
    result = copy.deepcopy(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else copy.deepcopy(value)
    return result


def _order(name: str) -> tuple[str, bool, list[str]]:
    """figure-10 after figure-9."""
    paper, _, rest = name.partition("/")
    return paper, rest.startswith("figure"), [part.zfill(4) for part in rest.split("-")]
