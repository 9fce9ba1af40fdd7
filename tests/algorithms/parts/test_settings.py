"""Settings that no method can use are refused by name, NaN among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coterie.algorithms.ditto import Ditto
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.kd_pdfl import KDPDFL
from coterie.algorithms.random_gossip import RandomGossip
from coterie.errors import ConfigError

NAN = float("nan")


@pytest.mark.parametrize(
    ("method", "name", "value", "limit"),
    [
        (KDPDFL, "mu1", -0.1, "0 or more"),
        (KDPDFL, "mu1", NAN, "0 or more"),
        (RandomGossip, "peers", 0, "1 or more"),
        (KDPDFL, "delta", 0.0, "above 0"),
        (KDPDFL, "delta", NAN, "above 0"),
        (FedAvg, "participation", 0.0, "above 0 and at most 1"),
        (FedAvg, "participation", 1.01, "above 0 and at most 1"),
        (FedAvg, "participation", NAN, "above 0 and at most 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    method: Callable[..., Any], name: str, value: float, limit: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be {limit}, not {value}$"):
        method(**{name: value})


@pytest.mark.parametrize(
    "settings", [{"pull": 0.0}, {"participation": 1.0}, {"global_epochs": None}, {"personal_epochs": 0}]
)
def test_limits_themselves_and_what_is_unset_are_accepted(settings: dict[str, Any]) -> None:
    assert Ditto(**settings).settings() == {**Ditto().settings(), **settings}
