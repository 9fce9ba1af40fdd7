"""What the behaviour tests share: the same experiment over three seeds, and tables of what came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

import coterie

SEEDS = (0, 1, 2)
PEERS = 20


@dataclass
class Row:
    """One line of a table: a number per seed in every column."""

    name: str
    columns: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    def __getitem__(self, column: str) -> float:
        return mean(self.columns[column])

    def text(self) -> str:
        cells = [f"{mean(values):.3f} ± {stdev(values):.3f}" for values in self.columns.values()]
        return f"| {self.name} | {' | '.join(cells)} | {self.seconds:.0f} |"


Numbers = Callable[[coterie.Run], dict[str, float]]
Table = dict[str, Row]


def accuracies(run: coterie.Run) -> dict[str, float]:
    """Mean personal accuracy over the peers in the last round, at both points."""
    points = ("after_mixing", "after_local")
    return {point: float(run.accuracy_over_time(point)[-1].mean()) for point in points}


def over_seeds(name: str, once: Callable[[int], dict[str, float]]) -> Row:
    """A line of a table from what `once` measures for each seed."""
    row, start = Row(name), time.perf_counter()
    for seed in SEEDS:
        for column, value in once(seed).items():
            row.columns.setdefault(column, []).append(value)
    row.seconds = time.perf_counter() - start
    return row


def simulated(seed: int, algorithm: str, **setting: Any) -> coterie.Run:
    """One run in one process and one thread, measured in its last round unless the setting says more."""
    plan = {"every": setting["rounds"], "global_accuracy": "never"} | setting.pop("evaluation", {})
    execution = {"workers": 1} | setting.pop("execution", {})
    return coterie.simulate(
        algorithm, seed=seed, evaluation=plan, execution=execution, **{"peers": PEERS, **setting}
    )


def measured(name: str, algorithm: str, numbers: Numbers = accuracies, **setting: Any) -> Row:
    """The same experiment with three seeds."""
    return over_seeds(name, lambda seed: numbers(simulated(seed, algorithm, **setting)))


def table(title: str, rows: list[Row]) -> Table:
    print(f"\n{title}\n| | {' | '.join(rows[0].columns)} | s |")
    print(f"|---|{'---|' * (len(rows[0].columns) + 1)}")
    for row in rows:
        print(row.text())
    return {row.name: row for row in rows}
