"""Networks with BatchNorm: statistics travel and are averaged, or stay at home."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import pytest
from algorithm_exam import Exam, assert_finite, assert_same, exam, measured, state_of

from coterie.protocol import Algorithm


@pytest.mark.parametrize("batchnorm", ["average", "local"])
@exam()
def test_statistics_travel_or_stay(
    algorithm: Algorithm[Any],
    batchnorm: Literal["average", "local"],
    sit: Callable[..., Exam],
    delivered: set[str],
) -> None:
    normalised = dataclasses.replace(sit(algorithm), batchnorm=batchnorm)
    (simulation, records), (again, _) = normalised.played(), normalised.played()
    assert_same(state_of(simulation), state_of(again))
    assert_finite(simulation)
    assert all(bool(value.isfinite().all()) for value in measured(records).values())
    assert bool((simulation.personal()["1.running_var"] > 0).all())
    statistics = {name for name in delivered if "running" in name}
    sends_them = batchnorm == "average" and shares_the_norm(algorithm)
    assert statistics == ({"1.running_mean", "1.running_var"} if sends_them else set())


def shares_the_norm(algorithm: Algorithm[Any]) -> bool:
    """Whether what the algorithm sends reaches up to the BatchNorm layer."""
    settings = algorithm.settings()
    only_the_first_layer = settings.get("share") == "base" and settings["layer"] == "0"
    return algorithm.facts.communication != "none" and not only_the_first_layer
