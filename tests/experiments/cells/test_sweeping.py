"""From `--over` to experiments."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.errors import ConfigError
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.sweeping import Axis, combinations, compared_key, parse_axis
from coterie.experiments.setup.config import resolve


def test_commas_inside_brackets_do_not_split() -> None:
    axis = parse_axis("algorithm=random-gossip(3), d-psgd(mixing=metropolis),dfedavgm(uniform,0.5)")
    assert axis == Axis(
        "algorithm", ("random-gossip(3)", "d-psgd(mixing=metropolis)", "dfedavgm(uniform,0.5)")
    )


@pytest.mark.parametrize(
    "text",
    ["training.lr", "=1,2", "training.lr=", "peers=4,4", "seed=1,2", "lr=0.1,0.10", "lr=.1,1e-1", "mu=1,1.0"],
)
def test_malformed_axes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--over"):
        parse_axis(text)


def test_every_combination_with_every_seed() -> None:
    asked: list[str | None] = []

    def make_table(algorithm: str | None) -> dict[str, Any]:
        asked.append(algorithm)
        return {"algorithm": algorithm, "seed": 5, "training": {"epochs": 2}}

    axes = [parse_axis("algorithm=local,d-psgd"), parse_axis("training.lr=0.01,0.1")]
    planned = combinations(axes, 2, make_table)
    assert asked == ["local", "local", "d-psgd", "d-psgd"]
    assert [labels["seed"] for labels, _ in planned] == [5, 6] * 4
    labels, table = planned[-1]
    assert labels == {"algorithm": "d-psgd", "training.lr": "0.1", "seed": 6}
    assert table == {"algorithm": "d-psgd", "seed": 6, "training": {"epochs": 2, "lr": 0.1}}


def test_a_key_cannot_be_swept_twice() -> None:
    axes = [parse_axis("peers=2,3"), parse_axis("peers=4,5")]
    with pytest.raises(ConfigError, match="peers is given twice"):
        combinations(axes, 1, lambda algorithm: {})


def test_values_that_only_look_alike_are_two() -> None:
    assert parse_axis("settings.exchange_every=1,true").values == ("1", "true")
    assert parse_axis("topology=grid(2,3),grid(3,2)").values == ("grid(2,3)", "grid(3,2)")


def swept(*over: str) -> list[Cell]:
    planned = combinations([parse_axis(text) for text in over], 2, lambda algorithm: {"data": "digits"})
    return [Cell(resolve(table), labels) for labels, table in planned]


def test_what_is_compared_is_one_key_on_the_same_data() -> None:
    rates = "training.lr=0.1,0.2"
    assert compared_key(swept(rates, "partition=iid,dirichlet(0.3)"), "0.1", "0.2") == "training.lr"
    with pytest.raises(ConfigError, match="did you mean iid"):
        compared_key(swept("partition=iid,dirichlet(0.3)"), "iidd", "iid")
    with pytest.raises(ConfigError, match="different data"):
        compared_key(swept("partition=iid,dirichlet(0.3)"), "iid", "dirichlet(0.3)")
    with pytest.raises(ConfigError, match=r"training\.lr and training\.momentum both take"):
        compared_key(swept(rates, "training.momentum=0.1,0.2"), "0.1", "0.2")
    assert compared_key(swept(rates, "training.momentum=0.1,0.3"), "0.1", "0.2") == "training.lr"
