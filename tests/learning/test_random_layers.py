"""Models with Dropout: repeatable, whatever the number of workers, in any torch thread."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.data import Federation, from_peers
from coterie.errors import ConfigError
from coterie.learning import Executor, Workers, cross_entropy, model_tree
from coterie.learning.local_steps import LocalWork
from coterie.learning.own_randomness import OwnRandomness
from coterie.protocol import Params
from coterie.randomness import stream
from coterie.simulation import fastest_executor
from coterie.training import Training

FEATURES, CLASSES, PEERS = 12, 3, 5

WITHOUT_COMPILER = """
import sys, torch
from coterie.learning.own_randomness import OwnRandomness
with OwnRandomness(0, torch.device("cpu")) as randomness:
    torch.rand(2)
assert randomness.drew
sys.exit("torch._dynamo" in sys.modules)
"""


def test_no_compiler_is_imported() -> None:
    """PyTorch's own compiler takes 70 MB and seconds in each process, and nothing here uses it."""
    subprocess.run([sys.executable, "-c", WITHOUT_COMPILER], check=True)


class Functional(nn.Module):
    """Dropout by a function, and noise: no layer says that this module is random."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(FEATURES, 10), nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.hidden(x))
        if self.training:
            hidden = hidden + 0.1 * torch.randn_like(hidden) * torch.rand(1)
        return self.head(nn.functional.dropout(hidden, 0.4, self.training))


class Attention(nn.Module):
    """Attention over the three parts of a sample."""

    def __init__(self, dropout: float = 0.0, need_weights: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)
        self.head, self.need_weights = nn.Linear(FEATURES, CLASSES), need_weights

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(1, (3, 4))
        mixed, _ = self.attention(parts, parts, parts, need_weights=self.need_weights)
        return self.head(mixed.flatten(1))


def encoder() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 4)),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(FEATURES, CLASSES),
    )


def layered() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, CLASSES))


def channels() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 4, 2),
        nn.Dropout2d(0.5),
        nn.Flatten(),
        nn.Linear(4 * 2 * 3, CLASSES),
    )


MODELS: list[Callable[[], nn.Module]] = [layered, channels, Functional]


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def peers() -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, FEATURES)), rng.integers(0, CLASSES, 8)
    return from_peers([{"train": (x, y), "test": (x, y)}] * PEERS, n_classes=CLASSES)  # all the same data


def train(
    module: nn.Module, count: int, *, seed: int = 1, round: int = 0, steps: int = 6, **more: Any
) -> Params:
    data = peers()
    start = {
        name: value.repeat(PEERS, *[1] * (value.dim() - 1)) for name, value in model_tree(module).items()
    }
    with Workers(count) as workers:
        executor = Executor("looped", module, workers)
        numbers = stream(seed, "batches", round, torch.arange(PEERS))
        work = LocalWork.resolve(Training(batch_size=8, steps=steps, lr=0.1), round, more)
        rows = torch.arange(PEERS)
        return executor.train(start, data, rows, numbers, work, cross_entropy, executor.trainable)[0]


def equal(a: Params, b: Params) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("build", MODELS)
def test_repeatable_on_any_number_of_workers(build: Callable[[], nn.Module]) -> None:
    module = seeded(build)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        one = train(module, 1)
        torch.manual_seed(6)  # the global generator is not asked ...
        before = torch.get_rng_state()
        assert equal(one, train(module, 2))
        assert equal(one, train(module, 4))
        assert torch.equal(before, torch.get_rng_state())  # ... and not used up


@pytest.mark.parametrize("build", MODELS)
def test_seed_round_and_peer_have_their_own_masks(build: Callable[[], nn.Module]) -> None:
    """One full-batch step on the same data: without random layers all of these would be equal."""
    module = seeded(build)
    one = train(module, 1, steps=1)
    name = next(name for name in one if name.endswith("weight"))
    assert len({tuple(row.flatten().tolist()) for row in one[name]}) == PEERS
    assert not equal(one, train(module, 1, steps=1, seed=2))
    assert not equal(one, train(module, 1, steps=1, round=1))


def test_steps_have_different_masks() -> None:
    """With lr 0 and equal batches, the gradient differs between steps only by its mask."""
    seen: list[Tensor] = []

    class Spy:
        def begin(self, params: Params, rows: Tensor) -> dict[str, Params]:
            return {}

        def step(self, params: Params, memory: Any, gradient: Any, lr: float, number: int) -> None:
            first, again = gradient()["0.weight"], gradient()["0.weight"]
            assert torch.equal(first, again), "asked twice in one step, the mask must be the same"
            if not seen or len(seen) < 4:
                seen.append(first.clone())

    train(seeded(layered), 1, steps=4, update=lambda training: Spy())
    assert all(not torch.allclose(a, b) for i, a in enumerate(seen) for b in seen[:i])


def test_masks_have_the_asked_for_rate() -> None:
    with OwnRandomness(3, torch.device("cpu")) as randomness:
        dropped = nn.functional.dropout(torch.ones(100_000), 0.3)
    assert randomness.drew
    assert float((dropped == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(dropped.max()) == pytest.approx(1 / 0.7)


@pytest.mark.parametrize("build", [Attention, encoder])
def test_attention_without_dropout_draws_nothing(build: Callable[[], nn.Module]) -> None:
    module = seeded(build)
    one = train(module, 1)
    assert equal(one, train(module, 1))
    assert equal(one, train(module, 2))
    x = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(0))
    with OwnRandomness(3, torch.device("cpu")) as randomness:
        module.train()(x)
    assert not randomness.drew


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_with_dropout_is_repeatable(need_weights: bool) -> None:
    module = seeded(lambda: Attention(0.5, need_weights))
    one = train(module, 1)
    assert equal(one, train(module, 2))
    assert not equal(one, train(module, 1, seed=2))
    with OwnRandomness(3, torch.device("cpu")) as randomness:
        module.train()(torch.zeros(2, FEATURES))
    assert randomness.drew


def test_a_random_operation_without_a_generator_is_refused() -> None:
    """Fused attention with dropout, as a GPU has it, asked for by name or by place."""
    attend, parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, torch.zeros(1, 1, 2, 4)
    with OwnRandomness(3, torch.device("cpu")):
        attend(parts, parts, parts)
        with pytest.raises(ConfigError, match="cannot be repeated"):
            attend(parts, parts, parts, dropout_p=0.5)
        with pytest.raises(ConfigError, match="cannot be repeated"):
            attend(parts, parts, parts, 0.5)


def test_stacked_refuses_dropout_and_calibration_takes_looped() -> None:
    with Workers(1) as workers:
        for build in (layered, channels):
            with pytest.raises(ConfigError, match="looped"):
                Executor("stacked", seeded(build), workers)
        for build in MODELS:
            assert fastest_executor(seeded(build), peers(), Training(), workers) == "looped"


def test_evaluation_has_no_dropout() -> None:
    module = seeded(layered)
    tree = model_tree(module)
    x = torch.randn(1, 20, FEATURES, generator=torch.Generator().manual_seed(0))
    with Workers(1) as workers:
        logits = Executor("looped", module, workers)._model.outputs(tree, x)
    torch.testing.assert_close(logits[0], module.eval()(x[0]).detach())
