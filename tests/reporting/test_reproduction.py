"""Tables, orders of methods and claims, from records written by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from coterie.experiments.cells.cell import Cell, note_breakage
from coterie.experiments.cells.paper_schema import PaperTable
from coterie.experiments.setup.config import resolve
from coterie.reporting import reproduction_plots, reproduction_text
from coterie.reporting.measures import Record, measure, read_record
from coterie.reporting.reproduction import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNSEEN,
    Reproduction,
    assemble,
    orders,
    verdicts,
)

Write = Callable[..., Cell]
# By method and seed, the accuracies of two peers, one in each cluster, in rounds 1 and 2.
ACCURACIES = {
    "local": {0: [[0.5, 0.5], [0.6, 0.7]], 1: [[0.5, 0.5], [0.7, 0.8]]},
    "good": {0: [[0.6, 0.6], [0.8, 0.9]], 1: [[0.5, 0.6], [0.9, 1.0]]},
    "bad": {0: [[0.1, 0.1], [0.3, 0.4]], 1: [[0.1, 0.1], [0.3, 0.4]]},
}


def table(claims: list[dict[str, Any]] | None = None, **more: Any) -> PaperTable:
    printed = {"local": 50.0, "good": {"value": 90.0, "note": "a copy error"}, "bad": 60.0}
    return PaperTable.model_validate(
        {
            "title": "A table",
            "source": "somebody",
            "shows": "something",
            "setting": "somehow",
            "floor": True,
            "scales": {"smoke": {}, "laptop": {}, "paper": {}},
            "columns": [{"name": "one", "label": "One", "target": {"laptop": 60}}],
            "rows": [
                {"name": name, "x": None if name == "local" else number, "printed": {"one": printed[name]}}
                for number, name in enumerate(ACCURACIES)
            ],
            "figures": [{"form": form} for form in ("curves", "bars", "line", "heat-map")],
            "claims": claims or [],
            **more,
        }
    )


@pytest.fixture
def made(tmp_path: Path, write_cell: Write) -> Callable[..., Reproduction]:
    """made(claims=..., ...): the table from the records above, in tmp_path/cells."""
    cells = [
        write_cell(
            tmp_path / "cells",
            {"row": name, "column": "one", "seed": seed},
            rounds,
            clusters=[0, 1],
            training={"lr": 0.1 + number / 10},  # so that the methods are different cells
        )
        for number, (name, by_seed) in enumerate(ACCURACIES.items())
        for seed, rounds in by_seed.items()
    ]

    def make(
        claims: list[dict[str, Any]] | None = None, extra: tuple[Cell, ...] = (), **more: Any
    ) -> Reproduction:
        scale = more.pop("scale", "laptop")
        return assemble("own", table(claims, **more), scale, [*cells, *extra], tmp_path / "cells")

    return make


def test_numbers_are_means_over_seeds_in_percent(made: Callable[..., Reproduction]) -> None:
    number = made().number("good", "one", "personal")
    assert number is not None
    assert number.mean == pytest.approx(90.0)  # of 85 and 95
    assert number.std == pytest.approx(50**0.5)
    assert number.n == 2


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("personal", 0.85), ("personal-after-local", 0.85), ("personal-after-mixing", 0.75),
        ("worst-decile", 0.8), ("cluster-mean", 0.85), ("cluster-0", 0.8), ("cluster-1", 0.9),
        ("cluster-7", None), ("own-cluster-share", 0.25), ("personal-mixing-gain", -0.1), ("global", None),
        ("train-loss", 0.5), ("rounds-to-target", 2.0), ("bytes-to-target", 20.0),
    ],
)  # fmt: skip
def test_metrics_of_one_cell(made: Callable[..., Reproduction], metric: str, value: float | None) -> None:
    record = made().records["good", "one"][0]
    found = measure(record, metric, target=0.8)
    assert found == (None if value is None else pytest.approx(value))


def test_cluster_mean_weighs_clusters_not_peers(tmp_path: Path, write_cell: Write) -> None:
    one = write_cell(tmp_path, {"seed": 0}, [[0.9, 0.9, 0.9, 0.5]], clusters=[0, 0, 0, 1])
    record = read_record(tmp_path / one.name)
    assert record is not None
    assert measure(record, "personal") == pytest.approx(0.8)
    assert measure(record, "cluster-mean") == pytest.approx(0.7)


# By round and peer: the accuracy on the common test data after local training, and after mixing.
GLOBAL = [[(0.30, 0.50), (0.40, 0.60)], [(0.45, 0.70), (0.65, 0.75)], [(0.60, 0.80), (0.70, 0.85)]]
DIVERGENCE = [[-5.0, 5.0], [-10.0, -5.0]]  # by hand: 45 - 50 and 65 - 60, then 60 - 70 and 70 - 75, in %


def write_global(folder: Path, rounds: list[int]) -> None:
    lines = ["round,peer,online,global_accuracy_after_local,global_accuracy_after_mixing"]
    for number in rounds:
        lines += [f"{number},{peer},1,{a},{b}" for peer, (a, b) in enumerate(GLOBAL[number])]
    (folder / "metrics.csv").write_text("\n".join(lines))


def test_divergence_is_that_of_equation_5(tmp_path: Path, write_cell: Write) -> None:
    one = write_cell(tmp_path, {"seed": 0}, [[0.5, 0.5]] * 3)
    write_global(tmp_path / one.name, [0, 1, 2])
    record = read_record(tmp_path / one.name)
    assert record is not None
    rounds, values = record.of_peers("divergence")
    assert rounds == [2, 3]
    assert 100 * values == pytest.approx(np.array(DIVERGENCE))
    assert record.curve("divergence")[1] == pytest.approx([0.0, -0.075])
    assert measure(record, "divergence") == pytest.approx(-0.075)  # the last tenth of two rounds is one


def test_divergence_averages_the_last_tenth_of_the_rounds(tmp_path: Path, write_cell: Write) -> None:
    """21 rounds have 20 divergences, 1 to 20 points, because the aggregated model stays at 0."""
    one = write_cell(tmp_path, {"seed": 0}, [[0.5]] * 21)
    lines = ["round,peer,online,global_accuracy_after_local,global_accuracy_after_mixing"]
    lines += [f"{number},0,1,{number / 100},0" for number in range(21)]
    (tmp_path / one.name / "metrics.csv").write_text("\n".join(lines))
    record = read_record(tmp_path / one.name)
    assert record is not None
    assert measure(record, "divergence") == pytest.approx(0.195)  # of 19 and 20 points


def test_divergence_needs_the_round_before(tmp_path: Path, write_cell: Write) -> None:
    one = write_cell(tmp_path, {"seed": 0}, [[0.5, 0.5]] * 3)
    write_global(tmp_path / one.name, [0, 2])
    record = read_record(tmp_path / one.name)
    assert record is not None
    assert record.curve("divergence")[0] == []
    assert measure(record, "divergence") is None


def test_a_peer_that_was_absent_keeps_its_place(tmp_path: Path, write_cell: Write) -> None:
    one = write_cell(tmp_path, {"seed": 0}, [[0.5, 0.5]] * 2)
    lines = ["round,peer,online,accuracy_after_local", "0,1,1,0.4", "1,0,1,0.6", "1,1,1,0.8"]
    (tmp_path / one.name / "metrics.csv").write_text("\n".join(lines))
    record = read_record(tmp_path / one.name)
    assert record is not None
    assert record.of_peers("personal")[1] == pytest.approx(np.array([[np.nan, 0.4], [0.6, 0.8]]), nan_ok=True)
    assert record.curve("personal")[1] == pytest.approx([0.4, 0.7])


def test_orders_stand_beside_the_papers(made: Callable[..., Reproduction]) -> None:
    (order,) = orders(made())
    assert order.ours == [["good"], ["local"], ["bad"]]
    assert order.printed == [["good"], ["bad"], ["local"]]
    assert (order.agreeing, order.pairs) == (2, 3)


def test_a_small_spread_comes_first(made: Callable[..., Reproduction]) -> None:
    spreads = {"local": 0.3, "good": 0.1, "bad": 0.2}
    printed = {"local": 5.0, "good": 1.0, "bad": 3.0}
    rows = [{"name": name, "printed": {"one": value}} for name, value in printed.items()]
    reproduction = made(rows=rows, metrics=["personal-spread"], figures=[])
    for name, spread in spreads.items():
        for record in reproduction.records[name, "one"].values():
            record.result["personal_accuracy"]["std"] = spread
    (order,) = orders(reproduction)
    assert order.ours == order.printed == [["good"], ["bad"], ["local"]]


def test_numbers_printed_for_another_metric_stand_beside_that(made: Callable[..., Reproduction]) -> None:
    """And a number is rounded as on paper: 53.15 up, although its float is below."""
    printed = {"value": 53.15, "metrics": {"worst-decile": 12.25}}
    rows = [{"name": name, "printed": {"one": printed} if name == "good" else {}} for name in ACCURACIES]
    page = reproduction_text.markdown(made(rows=rows, metrics=["personal", "worst-decile"], figures=[]))
    assert "| good | 90.0±7.1 (53.2) |" in page
    assert "| good | 85.0±7.1 (12.3) |" in page  # the lower of two peers: 80 and 90


def test_the_floor_is_the_mean_over_seeds(made: Callable[..., Reproduction]) -> None:
    reproduction = made(metrics=["personal", "global"], figures=[])
    first, second = reproduction.records["local", "one"].values()
    first.facts.update(majority_floor=[0.1, 0.3], majority_floor_global=0.05)
    second.facts.update(majority_floor=[0.5, 0.7], majority_floor_global=0.15)
    assert reproduction.floor("one", "personal") == pytest.approx(40.0)
    assert reproduction.floor("one", "global") == pytest.approx(10.0)


def test_what_is_printed_as_equal_has_no_order(made: Callable[..., Reproduction]) -> None:
    printed = {"local": 50.0, "good": 90.0, "bad": 50.0}
    rows = [{"name": name, "printed": {"one": value}} for name, value in printed.items()]
    (order,) = orders(made(rows=rows, figures=[]))
    assert order.printed == [["good"], ["local", "bad"]]
    assert (order.agreeing, order.pairs) == (2, 2)


def test_what_is_equal_here_has_no_order(made: Callable[..., Reproduction]) -> None:
    reproduction = made()
    reproduction.records["bad", "one"] = reproduction.records["local", "one"]
    (order,) = orders(reproduction)
    assert order.ours == [["good"], ["local", "bad"]]
    assert (order.agreeing, order.pairs) == (2, 2)
    page = reproduction_text.markdown(reproduction)
    assert "ours good > local = bad; paper good > bad > local; 2 of 2 pairs agree" in page


def test_a_target_never_reached_comes_last(made: Callable[..., Reproduction]) -> None:
    """Target 60 %: local needs 2 rounds, good 1 (seed 0) and 2; bad never gets there."""
    printed = {"local": 50.0, "good": 30.0, "bad": 20.0}
    rows = [{"name": name, "printed": {"one": value}} for name, value in printed.items()]
    (order,) = orders(made(rows=rows, metrics=["rounds-to-target"], figures=[]))
    assert order.ours == [["good"], ["local"], ["bad"]]
    assert order.printed == [["bad"], ["good"], ["local"]]
    assert (order.agreeing, order.pairs) == (1, 3)


def test_targets_that_two_never_reach_are_equally_far(made: Callable[..., Reproduction]) -> None:
    """In ours; where the paper says so it comes last in the paper's order, and its pairs count."""
    rows = [
        {"name": "local", "printed": {"one": {"note": "never reached"}}},
        {"name": "good", "printed": {"one": 30.0}},
        {"name": "bad", "printed": {"one": 40.0}},
    ]
    reproduction = made(rows=rows, metrics=["rounds-to-target"], figures=[])
    reproduction.records["local", "one"] = reproduction.records["bad", "one"]
    (order,) = orders(reproduction)
    assert order.ours == [["good"], ["local", "bad"]]
    assert order.printed == [["good"], ["bad"], ["local"]]
    assert (order.agreeing, order.pairs) == (2, 2)


def test_a_method_that_was_not_run_has_no_place(made: Callable[..., Reproduction]) -> None:
    reproduction = made(metrics=["rounds-to-target"])
    del reproduction.records["bad", "one"]
    (order,) = orders(reproduction)
    assert order.ours == [["good"], ["local"]]
    assert order.pairs == 1


@pytest.mark.parametrize(
    ("claim", "status"),
    [
        ({"higher": "good", "lower": ["local", "bad"]}, HOLDS),
        ({"higher": "bad", "lower": "local"}, FAILS),
        ({"higher": "good", "lower": "local", "margin": 19.0}, HOLDS),
        ({"higher": "good", "lower": "local", "margin": 21.0}, FAILS),
        ({"higher": "good", "at_least": 89.9}, HOLDS),
        ({"higher": "good", "at_least": 90.1}, FAILS),
        ({"higher": "good@one", "lower": "bad@one"}, HOLDS),
        ({"higher": "bad", "lower": "local", "visible": "paper", "why_not": "too small"}, UNSEEN),
        ({"higher": "good", "lower": "local", "metric": "global"}, UNKNOWN),
    ],
)
def test_claims(made: Callable[..., Reproduction], claim: dict[str, Any], status: str) -> None:
    (verdict,) = verdicts(made([{"says": "so", **claim}]))
    assert verdict.status == status
    if status == UNSEEN:
        assert verdict.detail == "too small"


def test_a_claim_is_made_only_at_its_scales(made: Callable[..., Reproduction]) -> None:
    claims = [
        {"says": name, "higher": "good", "lower": "bad", "scales": [name]} for name in ("laptop", "paper")
    ]
    (verdict,) = verdicts(made(claims))
    assert (verdict.claim.says, verdict.status) == ("laptop", HOLDS)


def test_a_difference_within_the_noise_says_so(made: Callable[..., Reproduction]) -> None:
    claims = [{"says": "so", "higher": "good", "lower": name} for name in ("local", "bad")]
    always, sometimes, by_so_much = verdicts(made([*claims, {**claims[0], "margin": 20.0}]))
    assert "noise" not in always.detail  # 20 points in both seeds
    assert "within the noise" in sometimes.detail  # 50 and 60 points: two seeds prove little
    assert "within the noise" in by_so_much.detail  # at least 20 points, which it has exactly


def test_a_claim_with_a_cell_missing_is_unknown(made: Callable[..., Reproduction]) -> None:
    reproduction = made([{"says": "so", "higher": "good", "lower": ["local", "bad"]}])
    del reproduction.records["bad", "one"]
    (verdict,) = verdicts(reproduction)
    assert verdict.status == UNKNOWN
    assert "good - local = +20.00" in verdict.detail


def test_a_claim_is_about_its_columns_alone(
    made: Callable[..., Reproduction], tmp_path: Path, write_cell: Write
) -> None:
    """In column two `good` is below `local`."""
    two = [
        write_cell(
            tmp_path / "cells",
            {"row": name, "column": "two", "seed": 0},
            [[accuracy, accuracy], [accuracy, accuracy]],
            training={"lr": 0.8 + number / 10},
        )
        for number, (name, accuracy) in enumerate({"local": 0.9, "good": 0.2}.items())
    ]
    claim = {"says": "so", "higher": "good", "lower": "local"}
    columns = [{"name": "one"}, {"name": "two"}]
    everywhere, in_one = verdicts(
        made([claim, {**claim, "columns": ["one"]}], extra=tuple(two), columns=columns)
    )
    assert (everywhere.status, in_one.status) == (FAILS, HOLDS)


def test_a_claim_compares_the_seeds_that_both_have(made: Callable[..., Reproduction]) -> None:
    """Seed 0: good 85 %, local 65 %; seed 1 of local, 75 %, has no partner."""
    reproduction = made([{"says": "so", "higher": "good", "lower": "local", "margin": 19.0}])
    del reproduction.records["good", "one"][1]
    (verdict,) = verdicts(reproduction)
    assert verdict.status == HOLDS
    assert "+20.00" in verdict.detail
    reproduction.records["local", "one"].pop(0)
    (verdict,) = verdicts(reproduction)
    assert verdict.status == UNKNOWN  # no seed in common


def test_the_page_shows_ours_theirs_the_floor_and_the_notes(made: Callable[..., Reproduction]) -> None:
    page = reproduction_text.markdown(made([{"says": "good is best", "higher": "good", "lower": "local"}]))
    assert "| good | 90.0±7.1 (90.0†) |" in page
    assert "| (majority class) | 50.0 |" in page
    assert "good is best: HOLDS" in page
    assert "† good, One: a copy error" in page
    assert "2 of 3 pairs agree" in page


def test_targets_that_are_not_reached(made: Callable[..., Reproduction]) -> None:
    page = reproduction_text.markdown(made(metrics=["rounds-to-target"]))
    assert "| bad | not reached (60) |" in page
    assert "| local | 2±0 (50) |" in page


def test_what_the_paper_never_reached_stands_beside_ours_with_its_mark(
    made: Callable[..., Reproduction],
) -> None:
    rows = [
        {"name": "local", "printed": {"one": {"note": "never reached"}}},
        {"name": "good", "printed": {"one": 30.0}},
        {"name": "bad", "printed": {"one": {"metrics": {"personal": 5.0}}}},
    ]
    page = reproduction_text.markdown(made(rows=rows, metrics=["rounds-to-target"], figures=[]))
    assert "| local | 2±0 (-†) |" in page
    assert "| bad | not reached |" in page  # the paper says nothing about it
    assert "† local, One: never reached" in page


def test_what_the_paper_does_not_tell_has_no_place_in_an_order_of_accuracies(
    made: Callable[..., Reproduction],
) -> None:
    printed = {"local": {"note": "illegible"}, "good": 90.0, "bad": 50.0}
    rows = [{"name": name, "printed": {"one": value}} for name, value in printed.items()]
    (order,) = orders(made(rows=rows, figures=[]))
    assert order.printed == [["good"], ["bad"]]
    assert order.pairs == 1


def test_a_target_never_reached_is_infinitely_far(made: Callable[..., Reproduction]) -> None:
    claims = [
        {"says": "sooner", "metric": "rounds-to-target", "higher": "bad", "lower": "local"},
        {"says": "never", "metric": "rounds-to-target", "higher": "bad", "lower": "bad"},
    ]
    sooner, never = verdicts(made(claims, metrics=["rounds-to-target"]))
    assert (sooner.status, never.status) == (HOLDS, UNKNOWN)


def test_tables_are_rebuilt_from_records(made: Callable[..., Reproduction], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    paths = reproduction_text.write(made(), folder)
    before = {path.name: path.read_bytes() for path in paths}
    shutil.rmtree(folder)
    assert {path.name: path.read_bytes() for path in reproduction_text.write(made(), folder)} == before


def test_broken_and_missing_cells_are_named(made: Callable[..., Reproduction], tmp_path: Path) -> None:
    lost = Cell(resolve({"data": "digits", "seed": 2}), {"row": "good", "column": "one", "seed": 2})
    broken = Cell(resolve({"data": "digits", "seed": 3}), {"row": "good", "column": "one", "seed": 3})
    note_breakage(tmp_path / "cells" / broken.name, "a loss became NaN")
    reproduction = made(extra=(lost, broken))
    assert reproduction.missing == [("good", "one", 2)]
    assert reproduction.broken == {("good", "one", 3): "a loss became NaN"}
    page = reproduction_text.markdown(reproduction)
    assert "good, one, seed 3: a loss became NaN" in page
    assert "one: good (seed 2)" in page
    assert json.dumps(reproduction_text.as_json(reproduction))
    assert "90.0±7.1" in page  # the others are still counted


DAMAGES = {
    "result.json": ('{"point": "after_lo', "cannot be read"),
    "facts.json": ("[]", "it has no 'clusters'"),
    "metrics.csv": ("round,peer,online,accuracy_after_local\n0,0,1,high\n", "'high'"),
    "rounds.csv": ("round,bytes,hub_bytes\n0,20,0\n", "it ends after 1 of 2 rounds"),
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage) for name in DAMAGES for damage in ("changed", "cut")),
        ("metrics.csv", "gone"),  # without one of the JSON files the cell would not be finished
        ("rounds.csv", "gone"),
    ],
)
def test_a_cell_with_unreadable_records_is_broken_and_the_others_are_shown(
    made: Callable[..., Reproduction], tmp_path: Path, name: str, damage: str
) -> None:
    path = made().records["good", "one"][0].folder / name
    content, reason = DAMAGES[name]
    if damage == "gone":
        path.unlink()
        reason = "No such file"
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        reason = "cannot be read"
    else:
        path.write_text(content)
    reproduction = made()
    assert reproduction.unreadable == [("good", "one", 0)]
    message = reproduction.broken["good", "one", 0]
    assert str(path) in message
    assert reason in message
    reproduction_text.write(reproduction, tmp_path / "out")
    reproduction_plots.draw(reproduction, tmp_path / "out")
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| good | 95.0 (90.0†) |" in page  # the other seed
    assert f"good, one, seed 0: {path}" in page


def test_figures_are_drawn(made: Callable[..., Reproduction], tmp_path: Path) -> None:
    paths = reproduction_plots.draw(made(), tmp_path / "figures")
    assert [path.name for path in paths] == [
        "figure-1.png",
        "figure-2.png",
        "figure-3.png",
    ]  # no shares, no map
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_method_has_one_colour_in_all_figures(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path
) -> None:
    """Also in a figure that leaves out the methods before it."""
    figures = [{"form": "curves"}, {"form": "curves", "rows": ["bad"]}, {"form": "bars", "rows": ["bad"]}]
    reproduction_plots.draw(made(figures=figures), tmp_path)
    everyone, alone, bar = (figure.axes[0] for figure in drawn)
    colours = {line.get_label(): line.get_color() for line in everyone.lines}
    assert len(set(colours.values())) == 3
    assert alone.lines[0].get_color() == colours["bad"]
    assert to_hex(bar.patches[0].get_facecolor()) == to_hex(colours["bad"])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, instead of their files."""
    figures: list[Any] = []
    monkeypatch.setattr(reproduction_plots, "save", lambda figure, path: figures.append(figure) or path)
    return figures


def curves_of(axes: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines if line.get_label()[0] != "_"}


def test_a_curve_for_each_peer_is_that_of_the_first_seed(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path
) -> None:
    figure = {"form": "curves", "rows": ["local", "good"], "each_peer": True}
    reproduction_plots.draw(made(figures=[figure]), tmp_path)
    curves = curves_of(drawn[0].axes[0])
    assert curves.keys() == {"local, peer 0", "local, peer 1", "good, peer 0", "good, peer 1"}
    assert curves["good, peer 1"] == pytest.approx([60.0, 90.0])
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines}
    assert len(looks) == 4
    assert "first seed" in drawn[0].get_suptitle()


def test_divergence_is_drawn_with_a_line_at_zero(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path
) -> None:
    reproduction = made(figures=[{"form": "curves", "metrics": ["divergence"], "rows": ["good"]}])
    by_seed = reproduction.records["good", "one"]
    for seed, record in by_seed.items():
        write_global(record.folder, [0, 1, 2])
        by_seed[seed] = Record(record.folder, record.result, record.facts)  # has not read the file yet
    reproduction_plots.draw(reproduction, tmp_path)
    axes = drawn[0].axes[0]
    assert curves_of(axes)["good"] == pytest.approx([0.0, -7.5])
    assert [0, 0] in [list(line.get_ydata()) for line in axes.lines]


def two_columns(made: Callable[..., Reproduction], figure: dict[str, Any], **more: Any) -> Reproduction:
    """The column `two` has the records of `one` with the methods changed round."""
    columns = [{"name": "one", "label": "One"}, {"name": "two", "label": "Two"}]
    reproduction = made(columns=columns, figures=[figure], **more)
    for row, other in (("local", "bad"), ("good", "local"), ("bad", "good")):
        reproduction.records[row, "two"] = reproduction.records[other, "one"]
    return reproduction


def test_columns_together_are_curves_of_one_panel(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path
) -> None:
    figure = {"form": "curves", "rows": ["good", "bad"], "together": True}
    reproduction_plots.draw(two_columns(made, figure), tmp_path)
    (axes,) = drawn[0].axes
    curves = curves_of(axes)
    assert curves.keys() == {"good, One", "good, Two", "bad, One", "bad, Two"}
    assert curves["good, One"] == pytest.approx([57.5, 90.0])
    assert curves["bad, Two"] == pytest.approx([57.5, 90.0])
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(set(looks.values())) == 4
    assert looks["good, One"][0] == looks["bad, One"][0]


def test_columns_together_of_one_method_carry_their_names(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path
) -> None:
    reproduction_plots.draw(
        two_columns(made, {"form": "curves", "rows": ["good"], "together": True}), tmp_path
    )
    assert curves_of(drawn[0].axes[0]).keys() == {"One", "Two"}


@pytest.mark.parametrize("columns", [1, 2])
def test_levels_beside_a_line_can_be_told_apart(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path, columns: int
) -> None:
    """Rows without x, such as Local, are levels: none looks like another or like a line."""
    rows = [{"name": "local"}, {"name": "good"}, {"name": "bad", "x": 2.0}]
    figure = {"form": "line", "columns": ["one", "two"][:columns]}
    reproduction_plots.draw(two_columns(made, figure, rows=rows), tmp_path)
    levels = [line for line in drawn[0].axes[0].lines if list(line.get_xdata()) == [0, 1]]
    looks = {(line.get_color(), line.get_linestyle()) for line in levels}
    assert len(looks) == 2 * columns
    handles, _ = drawn[0].axes[0].get_legend_handles_labels()
    assert len(handles) == 3 * columns


def test_a_bar_that_would_mislead_carries_a_remark(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path
) -> None:
    """Target 82 %: good needs 2 rounds in both seeds; local and bad never get there."""
    column = {"name": "one", "target": {"laptop": 82}}
    figures = [{"form": "bars", "metrics": ["rounds-to-target"]}]
    reproduction = made(columns=[column], figures=figures)
    reproduction_plots.draw(reproduction, tmp_path)
    assert [text.get_text() for text in drawn[0].axes[0].texts] == ["never", "never"]
    column["target"] = {"laptop": 72}  # local: 65 and 75 %
    reproduction_plots.draw(made(columns=[column], figures=figures), tmp_path)
    assert [text.get_text() for text in drawn[1].axes[0].texts] == ["1 of 2 seeds", "never"]
    reproduction_plots.draw(made(figures=[{"form": "bars"}]), tmp_path)
    assert not drawn[2].axes[0].texts


def test_a_method_that_was_not_run_did_not_fail_to_reach_its_target(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path
) -> None:
    reproduction = made(figures=[{"form": "bars", "metrics": ["rounds-to-target"]}])
    del reproduction.records["bad", "one"]
    reproduction_plots.draw(reproduction, tmp_path)
    assert not drawn[0].axes[0].texts


def test_a_figure_has_the_order_of_its_rows_and_keys_that_show_dashes(
    made: Callable[..., Reproduction], drawn: list[Any], tmp_path: Path
) -> None:
    figure = {"form": "curves", "rows": ["bad", "good"], "together": True}
    reproduction_plots.draw(two_columns(made, figure), tmp_path)
    lines = {line.get_label(): line.get_linestyle() for line in drawn[0].axes[0].lines}
    assert list(lines) == ["bad, One", "bad, Two", "good, One", "good, Two"]
    assert list(lines.values()) == ["-", "-", "--", "--"]
    assert drawn[0].legends[0].handlelength >= 4  # matplotlib's 2 are hidden by the marker


def test_a_map_of_nothing_is_an_empty_panel_with_its_reason(
    tmp_path: Path, write_cell: Write, drawn: list[Any]
) -> None:
    """But Local, which has no weights by definition, has none."""
    shares = {"local": None, "good": [[0.0, 1.0], [1.0, 0.0]], "bad": None}
    cells = [
        write_cell(tmp_path, {"row": name, "column": "one", "seed": 0}, [[0.5, 0.5]], shares=weights,
                   training={"lr": 0.1 + number / 10})
        for number, (name, weights) in enumerate(shares.items())
    ]  # fmt: skip
    described = table(figures=[{"form": "heat-map"}])
    reproduction_plots.draw(assemble("own", described, "laptop", cells, tmp_path), tmp_path / "figures")
    panels = {axes.get_title(): axes for axes in drawn[0].axes if axes.get_title()}
    assert list(panels) == ["good", "bad"]
    assert [text.get_text() for text in panels["bad"].texts] == ["all weights are 0"]
    assert not panels["bad"].images
    assert panels["good"].images
