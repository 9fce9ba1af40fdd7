"""What the tests of tables share: cells with records written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.experiments.cells.cell import Cell
from coterie.experiments.setup.config import resolve


@pytest.fixture(name="write_cell")
def _write_cell() -> Callable[..., Cell]:
    """write_cell(where, labels, accuracies): a finished cell, without a run."""
    return write_cell


def write_cell(
    where: Path,
    labels: dict[str, Any],
    accuracies: Sequence[Sequence[float]],
    *,
    clusters: list[int] | None = None,
    floor: float = 0.5,
    shares: list[list[float]] | None = None,
    **experiment: Any,
) -> Cell:
    """accuracies: (rounds, peers); the point is after local training, and after mixing is 0.1 lower."""
    peers = len(accuracies[0])
    table = {"data": "digits", "peers": peers, "rounds": len(accuracies), **experiment}
    cell = Cell(resolve({**table, "seed": labels["seed"]}), labels)
    folder = where / cell.name
    folder.mkdir(parents=True)
    last = list(accuracies[-1])
    mean = sum(last) / peers
    entry = {"mean": mean, "std": 0.01, "worst_decile": min(last), "per_peer": last}
    lower = {**entry, "mean": mean - 0.1}
    result = {
        "point": "after_local", "peers": peers, "rounds": len(accuracies), "seconds": 1.5,
        "own_cluster_share": 0.25,
        "personal_accuracy": entry, "personal_accuracy_after_local": entry,
        "personal_accuracy_after_mixing": lower, "global_accuracy": None,
        "bytes_sent_per_peer": 100.0, "bytes_sent_busiest": 100.0,
    }  # fmt: skip
    facts = {
        "clusters": clusters, "majority_floor": [floor] * peers,
        "majority_floor_global": None, "shares": shares,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "facts.json").write_text(json.dumps(facts))
    metrics, rounds = (
        ["round,peer,online,train_loss,accuracy_after_local,accuracy_after_mixing"],
        ["round,bytes,hub_bytes"],
    )
    for number, values in enumerate(accuracies):
        rounds.append(f"{number},{10 * peers + 7},7")
        for peer, value in enumerate(values):
            metrics.append(f"{number},{peer},1,0.5,{value},{value - 0.1}")
    (folder / "metrics.csv").write_text("\n".join(metrics))
    (folder / "rounds.csv").write_text("\n".join(rounds))
    return cell
