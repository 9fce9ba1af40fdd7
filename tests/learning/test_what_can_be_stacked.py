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
from coterie.experiments.runs.run import Run
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


class Own(nn.Module):
    """A linear classifier behind `change`, which is a step of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, CLASSES)
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(x.flatten(1)))

    def change(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Centred(Own):
    def change(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class CentredWithZeroHead(Centred):
    """All outputs are 0 at first, whatever the inputs are."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)


class FunctionalBatchNorm(Own):
    def change(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, None, None, training=True)


class InPlaceMean(Own):
    mean: Tensor

    def change(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


class AssignedMean(Own):
    def change(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class AssignedAtLast(AssignedMean):
    """Its outputs show nothing of the mean yet."""

    def change(self, x: Tensor) -> Tensor:
        return x + 0.0 * super().change(x)


class Attentive(nn.Module):
    """Attention over the samples of the batch, for `batch_first` was forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(3, 1), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0].flatten(1))


def instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4)),
        nn.InstanceNorm2d(1, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    )


def synchronised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.SyncBatchNorm(12), nn.Linear(12, CLASSES))


MIXING: dict[str, Callable[[], nn.Module]] = {
    "centred": Centred,
    "zero-head": CentredWithZeroHead,
    "functional-batch-norm": FunctionalBatchNorm,
    "in-place-mean": InPlaceMean,
    "assigned-mean": AssignedMean,
    "assigned-at-last": AssignedAtLast,
    "attention-over-the-batch": Attentive,
    "instance-norm": instance_norm,
    "sync-batch-norm": synchronised,
}


class Shift(Own):
    """Each sample alone; a buffer that stays, and counts that are no floating-point numbers."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def change(self, x: Tensor) -> Tensor:
        self.count += 1
        return torch.relu(x - self.mean)


class Words(nn.Module):
    """Takes its inputs for numbers of words, of which there are few."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x.abs().clamp(max=4).long()).mean((1, 2)))


class Attention(nn.Module):
    """Over the parts of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].flatten(1))


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.LayerNorm(5), nn.LazyLinear(CLASSES))


APART: dict[str, Callable[[], nn.Module]] = {
    "own": Shift,
    "words": Words,
    "attention": Attention,
    "lazy": lazy,
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


@pytest.mark.parametrize("name", MIXING)
def test_what_padding_would_enter_runs_looped(name: str) -> None:
    """Peers have different numbers of samples, so that some of their batches are padded when stacked."""
    assert simulate(MIXING[name], "auto").executor == "looped"
    with pytest.raises(ConfigError, match=r"'stacked' cannot run this model .*; use executor 'looped'$"):
        simulate(MIXING[name], "stacked")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("centred", "sample from the whole batch"), ("assigned-at-last", "its buffer 'mean'")],
)
def test_it_says_what_padding_would_enter(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"padding would enter .*{reason}"):
        simulate(MIXING[name], "stacked")


@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore:There is a performance drop")
@pytest.mark.parametrize("name", APART)
def test_where_each_sample_goes_alone_both_executors_agree(name: str) -> None:
    before = torch.get_rng_state()
    stacked, looped = simulate(APART[name], "stacked"), simulate(APART[name], "looped")
    assert torch.equal(before, torch.get_rng_state())
    for key, value in stacked.params.items():
        torch.testing.assert_close(value, looped.params[key], rtol=1e-4, atol=1e-6)


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
