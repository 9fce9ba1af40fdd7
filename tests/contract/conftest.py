"""Who sits the exam, and with how many workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from algorithm_exam import Exam

from coterie.learning import Workers


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[int, Workers]]:
    pools = {count: Workers(count) for count in (1, 2)}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def sit(workers: dict[int, Workers]) -> Callable[..., Exam]:
    return lambda algorithm, dtype=torch.float64: Exam(algorithm, workers, dtype)
