"""Who sits the exam, with how many workers, and what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from algorithm_exam import Exam

from coterie.learning import Workers
from coterie.protocol import Inbox
from coterie.protocol.trees import leaves
from coterie.simulation.router import Router


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[int, Workers]]:
    pools = {count: Workers(count) for count in (1, 2)}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def sit(workers: dict[int, Workers]) -> Callable[..., Exam]:
    return lambda algorithm, dtype=torch.float64: Exam(algorithm, workers, dtype)


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of all tensors that were in a message, counted or not."""
    names: set[str] = set()
    deliver = Router.deliver

    def spy(self: Router, *given: Any) -> tuple[list[Inbox], Any]:
        inboxes, traffic = deliver(self, *given)
        parcels = [parcel for inbox in inboxes for parcel in inbox._parcels]
        names.update(place.rpartition("/")[2] for parcel in parcels for place, _ in leaves(parcel.payload))
        return inboxes, traffic

    monkeypatch.setattr(Router, "deliver", spy)
    return names
