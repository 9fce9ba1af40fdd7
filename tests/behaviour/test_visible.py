"""Behaviour on real data: the orderings that should be visible at a small scale, over three seeds.

`make slow` asserts them; `python -m pytest -m slow -s tests/behaviour` also prints the tables that are
discussed in docs/behaviour.md. What did not show at this scale is written down there and not asserted here.
Settings were chosen before the numbers were seen.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from behaviour.measuring import Row, Table, accuracies, measured, over_seeds, simulated, table

import coterie

pytestmark = [pytest.mark.slow, pytest.mark.needs_data]


# 1. Clusters of peers: whom to learn from (PPDL's setting).

LITTLE_DATA = {
    "model": "mlp(64)",
    "rounds": 50,
    "topology": "full",
    "training": {"epochs": 1, "batch_size": 8, "lr": 0.05},
    "splitting": {"samples_per_peer": 130, "validation": 0.23, "test_samples_per_peer": 200},
}


def with_own_cluster(run: coterie.Run) -> dict[str, float]:
    """Also from whom a peer learned: its own cluster, and the three peers it heard most often."""
    hottest = run.shares.topk(3, dim=1).values.sum(1).mean()
    return {**accuracies(run), "own cluster": run.own_cluster_share or 0.0, "hottest three": float(hottest)}


def selection(data: str, partition: str, names: tuple[str, ...]) -> Table:
    rows = [
        measured(name, name, with_own_cluster, data=data, partition=partition, **LITTLE_DATA)
        for name in names
    ]
    return table(f"{data}, {partition}", rows)


@pytest.fixture(scope="module")
def label_clusters(data_dir: Path) -> Table:
    return selection("fashion-mnist", "label-pairs(5)", ("local", "random-gossip", "dac", "ppdl", "oracle"))


@pytest.fixture(scope="module")
def rotated_clusters(data_dir: Path) -> Table:
    return selection("mnist", "rotations(4)", ("local", "random-gossip", "ppdl", "oracle"))


def test_label_clusters_oracle_is_above_random(label_clusters: Table) -> None:
    assert label_clusters["oracle"]["after_local"] > label_clusters["random-gossip"]["after_local"]


def test_label_clusters_after_mixing_random_is_below_all_others(label_clusters: Table) -> None:
    """After local training Random, Local, DAC and PPDL are equal here: see docs/behaviour.md."""
    for name in ("local", "dac", "ppdl", "oracle"):
        assert label_clusters[name]["after_mixing"] > label_clusters["random-gossip"]["after_mixing"]


def test_label_clusters_oracle_is_above_learned_selection(label_clusters: Table) -> None:
    for point in ("after_mixing", "after_local"):
        for name in ("dac", "ppdl"):
            assert label_clusters["oracle"][point] > label_clusters[name][point]


def test_label_clusters_ppdl_has_a_few_hot_cells_in_each_row(label_clusters: Table) -> None:
    """A node locks on one group of three, whether or not all of it is good."""
    assert label_clusters["ppdl"]["hottest three"] > 0.5 > label_clusters["random-gossip"]["hottest three"]


def test_rotations_oracle_is_above_random(rotated_clusters: Table) -> None:
    assert rotated_clusters["oracle"]["after_local"] > rotated_clusters["random-gossip"]["after_local"]


# 2. Partial and full personalisation, and the point at which they are measured (DFedPGP's setting).

PARTIAL, FULL = ("dfedpgp", "dfedavgm-p"), ("osgp", "dfedavgm")


@pytest.fixture(scope="module")
def personalisation(data_dir: Path) -> Table:
    rows = []
    for name in ("local", "fedper", *PARTIAL, *FULL):
        directed, heavy = name in ("dfedpgp", "osgp"), name.startswith("dfedavgm")
        links = None if name in ("local", "fedper") else "directed(4)" if directed else "random-regular(4,1)"
        lr = 0.005 if heavy else 0.05  # momentum 0.9 multiplies the effective rate by ten
        rows.append(
            measured(
                name,
                name,
                data="fashion-mnist",
                partition="dirichlet(0.3)",
                model="mlp(64)",
                topology=links,
                rounds=40,
                training={"epochs": 5, "batch_size": 32, "lr": lr},
                splitting={"samples_per_peer": 200, "test_samples_per_peer": 200},
            )
        )
    return table("fashion-mnist, dirichlet(0.3)", rows)


def test_after_mixing_partial_is_above_full(personalisation: Table) -> None:
    lowest = min(personalisation[name]["after_mixing"] for name in ("fedper", *PARTIAL))
    assert lowest > max(personalisation[name]["after_mixing"] for name in FULL)


def test_the_measuring_point_decides(personalisation: Table) -> None:
    """What partial personalisation gains after mixing is not there after local training."""
    for partial, full in zip(PARTIAL, FULL, strict=True):
        gain = {
            point: personalisation[partial][point] - personalisation[full][point]
            for point in ("after_mixing", "after_local")
        }
        assert gain["after_mixing"] > gain["after_local"]


# 3. pFedKD-WCL and its teacher's weight.


@pytest.fixture(scope="module")
def teacher_weight(data_dir: Path) -> Table:
    training = {"steps": 20, "batch_size": 20, "lr": 0.01, "clip": 0.0}
    setting: dict[str, Any] = {
        "data": "mnist",
        "partition": "digit-pairs(0.5)",
        "model": "mlr",
        "rounds": 150,
        "training": training,
        "splitting": {"samples_per_peer": 400, "test_samples_per_peer": 200},
    }
    rows = [measured("local", "local", **setting)]
    for alpha in (0.0, 0.1, 0.9):
        name = f"pfedkd-wcl, alpha {alpha}"
        rows.append(measured(name, "pfedkd-wcl", settings={"alpha": alpha, "participation": 0.25}, **setting))
    rows.append(measured("fedavg", "fedavg", settings={"participation": 0.25}, **setting))
    return table("mnist, digit-pairs(0.5)", rows)


def test_a_small_teacher_weight_equals_local(teacher_weight: Table) -> None:
    small, local = teacher_weight["pfedkd-wcl, alpha 0.1"], teacher_weight["local"]
    assert abs(small["after_local"] - local["after_local"]) < 0.01


def test_a_large_teacher_weight_collapses(teacher_weight: Table) -> None:
    small, large = teacher_weight["pfedkd-wcl, alpha 0.1"], teacher_weight["pfedkd-wcl, alpha 0.9"]
    assert large["after_local"] < small["after_local"] - 0.05


def test_fedavg_is_well_below(teacher_weight: Table) -> None:
    small = teacher_weight["pfedkd-wcl, alpha 0.1"]["after_local"]
    assert teacher_weight["fedavg"]["after_mixing"] < small - 0.03


# 5. PPDL's bandit: which groups it plays early and late.

LONGER = {**LITTLE_DATA, "rounds": 60, "data": "mnist"}


def ppdl_over_time(partition: str, settings: dict[str, Any]) -> Row:
    """Share of messages from the own cluster in the first and the last ten rounds."""

    def once(seed: int) -> dict[str, float]:
        groups: list[Any] = []
        run = simulated(
            seed,
            "ppdl",
            settings=settings,
            partition=partition,
            observer=lambda record, history: groups.append(record.diagnostics["group"]),
            **LONGER,
        )
        cluster = run.clusters
        assert cluster is not None
        inside = [float((cluster[group.long()] == cluster[:, None]).double().mean()) for group in groups]
        return {
            "rounds 1-10": mean(inside[:10]),
            "rounds 26-35": mean(inside[25:35]),
            "rounds 51-60": mean(inside[-10:]),
            "after_local": accuracies(run)["after_local"],
        }

    return over_seeds(f"{partition}, q {settings['q']}", once)


TWO_GROUPS = "label-groups(0+1+2+3+4,5+6+7+8+9)"


@pytest.fixture(scope="module")
def bandit(data_dir: Path) -> Table:
    rows = [
        ppdl_over_time(partition, {"peers": 3, "q": q})
        for partition in (TWO_GROUPS, "label-pairs(5)")
        for q in (0.1, 0.5)
    ]
    local = [
        measured(f"local, {partition}", "local", partition=partition, **LONGER)
        for partition in (TWO_GROUPS, "label-pairs(5)")
    ]
    table("local on mnist", local)
    return table("ppdl on mnist: share of messages from the own cluster", rows)


@pytest.mark.parametrize("partition", [TWO_GROUPS, "label-pairs(5)"])
def test_the_bandit_locks_on_good_groups(bandit: Table, partition: str) -> None:
    row = bandit[f"{partition}, q 0.1"]
    assert row["rounds 51-60"] > row["rounds 1-10"]


@pytest.mark.parametrize("partition", [TWO_GROUPS, "label-pairs(5)"])
def test_a_generous_bound_keeps_the_bandit_exploring(bandit: Table, partition: str) -> None:
    assert bandit[f"{partition}, q 0.1"]["rounds 51-60"] > bandit[f"{partition}, q 0.5"]["rounds 51-60"]
