"""What equal local work changes: KD-PDFL's lead over Local is mostly longer training."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

import coterie

pytestmark = pytest.mark.slow

SETTING: dict[str, Any] = {"partition": "rotations(4)", "peers": 12, "rounds": 15}


def gain(**training: Any) -> float:
    """KD-PDFL minus Local in points, over three seeds."""

    def mean(algorithm: str, seed: int) -> float:
        run = coterie.simulate(algorithm, seed=seed, training=training, **SETTING)
        return 100 * float(run.personal_accuracy.mean())

    return statistics.fmean(mean("kd-pdfl", seed) - mean("local", seed) for seed in range(3))


def test_a_lead_that_is_longer_training() -> None:
    assert gain(work="own") > 10, "18 steps a round against 4"
    assert abs(gain(work="equal", steps=18)) < 2, "18 for both"
    assert gain(work="equal") < 0, "4 for both"
