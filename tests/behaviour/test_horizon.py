"""BlendDFL against D-PSGD after 300 rounds: a quarter of an hour, since its gain comes late.

Section 6 of docs/behaviour.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from behaviour.measuring import Table, accuracies, measured, table

import coterie

pytestmark = [pytest.mark.slow, pytest.mark.needs_data]

SETTING = {
    "data": "fashion-mnist",
    "partition": "dirichlet(0.3)",
    "model": "mlp(64)",
    "peers": 16,
    "rounds": 300,
    "training": {"epochs": 5, "batch_size": 32, "lr": 0.05},
    "splitting": {"samples_per_peer": 200, "test_samples_per_peer": 200},
    "evaluation": {"every": 50, "global_accuracy": "always", "global_samples": 500},
}


def on_all_classes(run: coterie.Run) -> dict[str, float]:
    """Accuracy on the common test set of all classes, and its spread over peers."""
    after = {m.round + 1: m.values["global_accuracy", "after_mixing"] for m in run.history.measurements}
    local = run.history.measurements[-1].values["global_accuracy", "after_local"]
    own = accuracies(run)
    return {
        **{f"round {number}": float(after[number].mean()) for number in (50, 100, 300)},
        "spread": float(after[300].std(unbiased=False)),
        "after_local": float(local.mean()),
        "spread after_local": float(local.std(unbiased=False)),
        "own data, after_mixing": own["after_mixing"],
        "own data, after_local": own["after_local"],
    }


@pytest.fixture(scope="module")
def ring(data_dir: Path) -> Table:
    rows = [
        measured("local", "local", on_all_classes, **SETTING),
        measured("d-psgd", "d-psgd", on_all_classes, topology="ring", **SETTING),
        measured(
            "blend-dfl", "blend-dfl", on_all_classes, topology="ring", settings={"kd_weight": 2.0}, **SETTING
        ),
    ]
    return table("fashion-mnist, dirichlet(0.3), ring of 16: the common test of all classes", rows)


def test_blend_dfl_ends_above_d_psgd(ring: Table) -> None:
    assert ring["blend-dfl"]["round 300"] > ring["d-psgd"]["round 300"]


def test_blend_dfl_has_the_smaller_spread_over_peers(ring: Table) -> None:
    assert ring["blend-dfl"]["spread"] < ring["d-psgd"]["spread"]
