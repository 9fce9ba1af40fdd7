"""Any module runs with executor auto; where it cannot be batched, executor stacked says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import coterie
from coterie.errors import ConfigError
from coterie.experiments.running import Run
from coterie.learning.batched import Vmapped, model_tree

SHAPE, CLASSES, PEERS = (4, 3), 3, 4


class Recurrent(nn.Module):
    """The last output of a recurrent layer, classified."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.recurrent, self.head = kind(3, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


def spectral() -> nn.Module:
    return nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(12, 5)), nn.Tanh(), nn.Linear(5, CLASSES))


class Unlike(nn.Module):
    """Tells by an error of Python's own that it does not know what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(x):
            raise TypeError("not a plain tensor")
        return self.head(x.flatten(1))


UNBATCHED: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn": lambda: Recurrent(nn.RNN),
    "spectral-norm": spectral,
    "own-error": Unlike,
}


def data(sizes: tuple[int, ...] = (11, 4, 7, 8)) -> list[Any]:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, *SHAPE)), rng.integers(0, CLASSES, n)) for n in sizes]
    return [{"train": pair, "test": pair} for pair in pairs]


def simulate(model: Callable[[], nn.Module], executor: str, workers: int = 1) -> Run:
    return coterie.simulate(
        algorithm="d-psgd",
        data=data(),
        model=model,
        topology="ring",
        peers=PEERS,
        rounds=2,
        training={"batch_size": 4, "lr": 0.1},
        execution={"executor": executor, "workers": workers},
    )


@pytest.mark.parametrize("name", UNBATCHED)
def test_what_cannot_be_batched_runs_looped(name: str) -> None:
    assert simulate(UNBATCHED[name], "auto").executor == "looped"
    with pytest.raises(
        ConfigError, match=r"'stacked' cannot run this model \(\S.*\); use executor 'looped'$"
    ):
        simulate(UNBATCHED[name], "stacked")


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("full"), RuntimeError("can't allocate memory")]
)
def test_too_little_memory_is_not_blamed_on_the_model(error: Exception) -> None:
    class Greedy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    module = Greedy(3, CLASSES)
    with pytest.raises(type(error)) as caught:
        Vmapped(module).outputs(model_tree(module), torch.zeros(1, 2, 3))
    assert caught.value is error
