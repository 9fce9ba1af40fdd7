"""The table of runs: which Local a run is measured against, and what sets it apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.metric import Metric
from coterie.reporting.page.listed import Line, Plan, differences, local_of, local_runs, rows_of
from coterie.reporting.page.states import State

ACCURACY = Metric("accuracy", True, percent=True)


def line(algorithm: str, mean: float, data: str = "same", **config: Any) -> Line:
    entry = {"id": "", "name": "", "algorithm": algorithm, "state": State("finished", "finished").entry()}
    entry |= {"score": mean, "started": None, "comparable": True}
    told = {"algorithm": algorithm, **{key.replace("__", "."): str(value) for key, value in config.items()}}
    return Line(told, entry, data, mean, True, ACCURACY)


def named(lines: dict[str, Line]) -> dict[str, Line]:
    return {name: one._replace(entry={**one.entry, "id": name, "name": name}) for name, one in lines.items()}


def found(name: str, lines: dict[str, Line], plans: dict[str, Plan] | None = None) -> str | None:
    return local_of(name, lines, local_runs(lines), plans or {})


def test_local_has_the_same_data_and_the_same_training() -> None:
    lines = {
        "slow": line("local", 0.5, training__lr=0.01),
        "fast": line("local", 0.8, training__lr=0.1),
        "other": line("local", 0.9, data="others", training__lr=0.1),
        "mine": line("d-psgd", 0.7, training__lr=0.1, topology="ring", settings__share=1),
        "own": line("d-psgd", 0.7, training__lr=1.0),
        "work": line("d-psgd", 0.7, training__lr=0.1, training__work="equal"),
        "longer": line("d-psgd", 0.7, training__lr=0.1, rounds=500),
    }
    assert found("mine", lines) == found("work", lines) == "fast"
    assert found("own", lines) is None
    assert found("longer", lines) is None
    assert found("fast", lines) is None


def test_a_comparison_has_a_local_of_its_own() -> None:
    """Its methods may train differently, as their papers say; a sweep's combinations are not comparable."""
    lines = {
        "all/local": line("local", 0.5, training__lr=0.01),
        "all/mine": line("kin", 0.7, training__lr=0.1),
    }
    plan = Plan(Path("all"), "comparison", list(lines))
    assert found("all/mine", lines, {"all": plan}) == "all/local"
    assert found("all/mine", lines, {"all": plan._replace(kind="sweep")}) is None


def test_a_line_tells_what_sets_it_apart_from_its_plan() -> None:
    lines = {
        "s/a": line("d-psgd", 0.5, training__lr=0.1, peers=4, seed=0),
        "s/b": line("d-psgd", 0.5, training__lr=0.2, peers=4, seed=0),
        "s/c": line("d-psgd", 0.5, training__lr=0.1, peers=4, seed=1),
        "alone": line("local", 0.5, training__lr=0.5, peers=9),
    }
    told = differences(lines, {name: "s" for name in lines if name != "alone"})
    assert told == {"s/a": "", "s/b": "training.lr 0.2", "s/c": "seed 1", "alone": ""}


def test_a_comparison_says_who_is_best_and_gained_what() -> None:
    lines = named(
        {
            "c/local-s0": line("local", 0.4, seed=0),
            "c/kin-s0": line("kin", 0.6, seed=0),
            "c/kin-s1": line("kin", 0.8, data="other seed", seed=1),
            "c/local-s1": line("local", 0.7, data="other seed", seed=1),
        }
    )
    rows = {row["id"]: row for row in rows_of(lines, {"c": Plan(Path("c"), "comparison", list(lines))})}
    assert rows["c/kin-s0"]["gain_text"] == "+20.0"
    assert (rows["c"]["score_text"], rows["c"]["best"]) == ("70.0 %", "kin")
    assert rows["c"]["gain_text"] == "+15.0"
    assert {row["plan"] for name, row in rows.items() if name != "c"} == {"c"}


def test_a_sweep_says_which_setting_is_best() -> None:
    """lr 0.5 has 60 and 80 %, Local with it 50 and 60 %: 70 % in the mean, and a gain of 15 points."""
    lines = {
        f"s/{algorithm}-{rate}-{seed}": line(
            algorithm, mean, data=f"seed {seed}", training__lr=rate, seed=seed
        )
        for algorithm, rate, means in (
            ("local", 0.1, (0.6, 0.5)),
            ("local", 0.5, (0.5, 0.6)),
            ("kin", 0.1, (0.9, 0.2)),
            ("kin", 0.5, (0.6, 0.8)),
        )
        for seed, mean in enumerate(means)
    }
    plans = {"s": Plan(Path("s"), "sweep", list(lines))}
    row = next(row for row in rows_of(named(lines), plans) if row["id"] == "s")
    assert (row["score_text"], row["best"]) == ("70.0 %", "kin, training.lr 0.5")
    assert row["gain_text"] == "+15.0"


def test_a_sweep_over_data_has_no_best() -> None:
    lines = named(
        {
            "s/easy": line("kin", 0.9, data="easy", partition="iid"),
            "s/hard": line("kin", 0.5, data="hard", partition="rotations(4)"),
        }
    )
    row = next(
        row for row in rows_of(lines, {"s": Plan(Path("s"), "sweep", list(lines))}) if row["id"] == "s"
    )
    assert (row["score"], row["score_text"]) == (None, "")
