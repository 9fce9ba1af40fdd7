"""LaTeX: names are escaped, ties are bold together, what is not known is a dash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coterie
from coterie.errors import ConfigError
from coterie.reporting.intervals import Interval
from coterie.results.exports import Column, Sheet, escaped
from coterie.results.sheets import sheet_of_labels


def number(mean: float, half: float | None = None) -> Interval:
    if half is None:
        return Interval(mean, None, None, None, 1)
    return Interval(mean, 1.0, mean - half, mean + half, 3)


def rows(sheet: Sheet) -> list[list[str]]:
    return [line.removesuffix(r" \\").split(" & ") for line in sheet.latex().splitlines() if " & " in line]


def test_names_are_escaped() -> None:
    assert escaped("a_b(50%)&{c}#$~^\\") == (
        r"a\_b(50\%)\&\{c\}\#\$\textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    sheet = Sheet([], [Column("my_algorithm", ["d_1", "e&f"]), Column("n", [number(1), number(2)])])
    assert [row[0] for row in rows(sheet)] == [r"my\_algorithm", r"d\_1", r"e\&f"]


def test_those_that_are_written_alike_are_bold_together() -> None:
    cells = [number(80.04), number(79.96), number(79.9, 0.5), None]
    highest = Sheet([], [Column("a", list("wxyz")), Column("n", cells, "{:.1f}".format, "highest")])
    assert [row[1] for row in rows(highest)[1:]] == [
        r"$\mathbf{80.0}$", r"$\mathbf{80.0}$", r"$79.9 \pm 0.5$", "--",
    ]  # fmt: skip
    lowest = Sheet([], [Column("a", list("wxyz")), Column("n", cells, "{:.1f}".format, "lowest")])
    assert [row[1] for row in rows(lowest)[1:]] == ["$80.0$", "$80.0$", r"$\mathbf{79.9 \pm 0.5}$", "--"]


def test_a_single_number_is_not_the_best_of_any() -> None:
    sheet = Sheet([], [Column("a", ["x", "y"]), Column("n", [number(1), None], best="highest")])
    assert [row[1] for row in rows(sheet)[1:]] == ["$1.0$", "--"]


def test_a_signed_mean_has_an_interval_without_a_sign() -> None:
    sheet = Sheet(
        [], [Column("a", ["x", "y"]), Column("n", [number(1, 0.5), number(-2, 0.5)], "{:+.1f}".format)]
    )
    assert [row[1] for row in rows(sheet)[1:]] == [r"$+1.0 \pm 0.5$", r"$-2.0 \pm 0.5$"]


def test_the_table_has_as_many_columns_as_it_says() -> None:
    sheet = Sheet([], [Column("a", ["x"]), Column("n", [number(1)]), Column("b", ["7 kB"])], "two\nlines")
    lines = sheet.latex().splitlines()
    assert lines[:3] == ["% two", "% lines", r"\begin{tabular}{lrl}"]
    assert lines[3:] == [
        r"\toprule", r"a & n & b \\", r"\midrule", r"x & $1.0$ & 7 kB \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


def test_parquet_needs_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[frames\]'"):
        Sheet([{"a": 1}], []).parquet(tmp_path / "t.parquet")
    assert not list(tmp_path.iterdir())


def test_labels_that_are_numbers_are_counted_in_bins() -> None:
    x = torch.arange(40.0)[:, None]
    data = {"anna": (x, x[:, 0] / 7), "bob": (x, x[:, 0] / 3)}
    federation = coterie.from_peers(data, task="regression")
    sheet = sheet_of_labels(federation, "")
    assert [line["name"] for line in sheet.lines] == ["anna", "bob"]
    for line, size in zip(sheet.lines, federation.train.sizes.tolist(), strict=True):
        assert sum(n for name, n in line.items() if name.startswith("class ")) == line["train"] == size
