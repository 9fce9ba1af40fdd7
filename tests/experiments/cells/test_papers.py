"""Every table and figure of the papers: its file is right at all scales, and runs at smoke scale."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from coterie.errors import ConfigError
from coterie.experiments.cells import reproducing
from coterie.experiments.cells.paper_schema import SCALES, PaperTable, Scale
from coterie.experiments.cells.working_off import CellRunner
from coterie.experiments.setup.prepare import Objects, deal
from coterie.reporting import reproduction_plots, reproduction_text
from coterie.reporting.reproduction import assemble

NAMES = reproducing.names()


@pytest.fixture(scope="session")
def cells_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, because tables and figures share runs."""
    return tmp_path_factory.mktemp("cells")


TABLES_AND_FIGURES = {
    "kd-pdfl": "table-1 figure-3 figure-4 figure-5",
    "ppdl": "table-1 table-2 table-3 table-4 figure-1",
    "blend-dfl": "table-1 table-2 table-3 figure-1 figure-2 figure-4 figure-5 figure-6",
    "dfedpgp": "table-1 table-2 table-3 table-4 figure-2 figure-3a figure-3b tiny-imagenet",
    "pfedkd-wcl": "table-1 figure-1 figure-2 figure-3 figure-4 figure-5 figure-6",
    "kin": "table-1 table-2 table-3 table-4",
}


def test_every_table_and_figure_of_the_papers_is_there() -> None:
    expected = [f"{paper}/{name}" for paper, names in TABLES_AND_FIGURES.items() for name in names.split()]
    assert len(expected) == 36
    assert sorted(NAMES) == sorted(expected)
    assert NAMES.index("pfedkd-wcl/table-1") < NAMES.index("pfedkd-wcl/figure-1")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_is_a_valid_experiment(name: str, scale: Scale) -> None:
    (one,) = reproducing.find(name)
    cells = one.cells(scale, 2)
    rows, columns = one.table.rows_at(scale), one.table.columns_at(scale)
    assert len(cells) == 2 * len(rows) * len(columns)
    methods = [cell for cell in cells if cell.labels["row"] != "local"]  # one Local may serve several columns
    assert len({cell.name for cell in methods}) == len(methods), "two cells are the same experiment"
    assert one.table.scales[scale].note, "say how the scale differs from the paper"


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_finds_its_rows_and_columns_wherever_it_is_visible(name: str) -> None:
    """Otherwise it could only be unknown there."""
    (one,) = reproducing.find(name)
    for scale in SCALES:
        rows = {row.name for row in one.table.rows_at(scale)}
        columns = {column.name for column in one.table.columns_at(scale)}
        for claim in one.table.claims_at(scale):
            if SCALES.index(scale) < SCALES.index(claim.visible):
                continue
            assert claim.columns is None or columns & set(claim.columns), (scale, claim.says)
            for operand in (*claim.higher, *claim.lower):
                row, _, column = operand.partition("@")
                assert row in rows, (scale, claim.says, operand)
                assert not column or column in columns, (scale, claim.says, operand)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_the_data_can_be_shared_out_as_every_cell_wants(scale: Scale, data_dir: Path) -> None:
    """A partition that cannot be drawn shows only when it is tried, with that scale's number of peers."""
    cells = [
        cell
        for name in NAMES
        for one in reproducing.find(name)
        for cell in one.cells(scale, 1, str(data_dir))
    ]
    deciding = {"data", "partition", "peers", "splitting"}
    wanted = {cell.experiment.model_dump_json(include=deciding): cell.experiment for cell in cells}
    for experiment in wanted.values():
        assert deal(experiment, Objects())[0].peers == experiment.peers


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_at_smoke_scale(name: str, data_dir: Path, cells_folder: Path, tmp_path: Path) -> None:
    (one,) = reproducing.find(name)
    cells = one.cells("smoke", 1, str(data_dir))
    with CellRunner(cells_folder) as runner:
        assert runner.work_off(cells) == {}
    made = assemble(one.name, one.table, "smoke", cells, cells_folder)
    assert not made.missing
    page = "\n".join(path.read_text() for path in reproduction_text.write(made, tmp_path))
    assert one.table.title in page
    main = one.table.metrics[0]
    numbers = [made.number(row.name, column.name, main) for row in made.rows for column in made.columns]
    assert any(number is not None for number in numbers) or main.endswith("-to-target")
    assert len(reproduction_plots.draw(made, tmp_path)) >= bool(one.table.figures)


def test_scales_beat_what_holds_at_all_scales() -> None:
    (one,) = reproducing.find("pfedkd-wcl/table-1")
    printed = reproducing.experiment_of(one.table, "pfedme", "synthetic-mlp", "paper")
    small = reproducing.experiment_of(one.table, "pfedme", "synthetic-mlp", "smoke")
    assert (printed["rounds"], printed["peers"]) == (600, 100)
    assert printed["settings"] == {"pull": 30.0}
    assert printed["preset"] == "paper-synthetic"
    assert (small["rounds"], small["peers"]) == (2, 10)
    assert small["settings"] == {"pull": 30.0}


def test_tables_and_figures_share_runs() -> None:
    table, figure = (reproducing.find(f"pfedkd-wcl/{name}")[0] for name in ("table-1", "figure-3"))
    known = {cell.name for cell in table.cells("laptop", 1)}
    assert {cell.name for cell in figure.cells("laptop", 1)} <= known


def test_names_are_found() -> None:
    assert [one.name for one in reproducing.find("all")] == NAMES
    assert {one.name.partition("/")[0] for one in reproducing.find("ppdl")} == {"ppdl"}
    with pytest.raises(ConfigError, match="did you mean ppdl/table-1"):
        reproducing.find("ppdl/tabel-1")
    with pytest.raises(ConfigError, match="did you mean"):
        reproducing.find("ppld")


FILE = """
title = "t"
source = "s"
shows = "w"
setting = "p"
scales = { smoke = {}, laptop = {}, paper = {} }
[[columns]]
name = "one"
[[rows]]
name = "local"
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("printed.two = 3.0", "unknown column 'two'"),
        ('\n[[claims]]\nsays = "x"\nhigher = "locla"\nat_least = 3', "did you mean local"),
        ('\n[[claims]]\nsays = "x"\nhigher = "local"', "either `lower` or `at_least`"),
        ('\n[[claims]]\nsays = "x"\nhigher = "local"\nat_least = 1\nmetric = "persona"', "did you mean"),
        ('\n[[figures]]\nform = "curves"\nmetrics = ["worst-decile"]', "cannot be drawn"),
        ('\n[[figures]]\nform = "bars"\neach_peer = true', "for figures of form curves"),
        ('\n[[figures]]\nform = "curves"\neach_peer = true\ntogether = true', "either `each_peer` or"),
        ("colour = 3", "Extra inputs"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_found(tmp_path: Path, more: str, message: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(FILE)
    assert reproducing.read(path).title == "t"
    path.write_text(FILE + more)
    with pytest.raises(ConfigError, match=message) as raised:
        reproducing.read(path)
    assert "own.toml" in str(raised.value)


def test_local_must_stand_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(FILE.replace('"local"', '"fedavg"'))
    with pytest.raises(ConfigError, match="without_local"):
        reproducing.read(path)


def test_local_must_stand_beside_the_others_at_every_scale() -> None:
    table = reproducing.find("ppdl/table-1")[0].table.model_dump()
    table["scales"]["laptop"]["rows"] = ["ppdl"]
    with pytest.raises(ValidationError, match="at scale 'laptop', too, a row `local` must stand"):
        PaperTable.model_validate(table)
