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
from coterie.simulation.blocks import Block


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
    open_mail = Block.open

    def spy(self: Block, *given: Any) -> Inbox:
        inbox = open_mail(self, *given)
        names.update(
            place.rpartition("/")[2] for parcel in inbox._parcels for place, _ in leaves(parcel.payload)
        )
        return inbox

    monkeypatch.setattr(Block, "open", spy)
    return names
