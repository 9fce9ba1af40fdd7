"""Seconds per round of every algorithm relative to D-PSGD, measured side by side in one run."""

from __future__ import annotations

import statistics
from functools import lru_cache

from benchmarks.timing import Row, by_turns
from coterie.algorithms import algorithms
from coterie.data import Source, load
from coterie.experiments.api import simulate

_WANTED = {"blend-dfl": 1.4, "dfedsam": 2.1}
_ROUNDS = 4


@lru_cache(maxsize=1)
def _mnist() -> Source:
    return load("mnist", peers=20, seed=0)


def seconds_per_round(algorithm: str, topology: str) -> float:
    """The median round after the first, of 20 peers with 300 images of MNIST and 5 local epochs."""
    run = simulate(
        algorithm,
        data=_mnist(),
        partition="rotations(4)",
        topology=topology,
        peers=20,
        rounds=_ROUNDS,
        splitting={"samples_per_peer": 300, "test_samples_per_peer": 20, "validation": 0.1},
        training={"epochs": 5, "batch_size": 32},
        evaluation={"every": _ROUNDS, "global_accuracy": "never"},
        execution={"executor": "stacked"},
    )
    return statistics.median(run.history.seconds[1:-1])


def relative() -> list[Row]:
    """Every algorithm against D-PSGD at degree 2; BlendDFL also at degree 4."""
    rows = []
    for name in algorithms:
        topology = "star" if algorithms[name].facts.hub else "ring"  # type: ignore[attr-defined]
        rows.append(_row(name, topology, _WANTED.get(name)))
    rows.append(_row("blend-dfl", "random-regular(4)", 1.6))
    return rows


def _row(name: str, topology: str, wanted: float | None) -> Row:
    base, ours = by_turns(
        lambda: seconds_per_round("d-psgd", "ring" if topology == "star" else topology),
        lambda: seconds_per_round(name, topology),
        turns=2,
    )
    return Row(f"{name} on {topology} / d-psgd", ours, base, wanted, at_least=False)
