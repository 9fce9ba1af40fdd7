"""The stacked executor's own backward pass gives the bits of autograd's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from coterie.learning import CLASSIFICATION
from coterie.learning.stacked import StackedLayers
from coterie.learning.tasks import Classification
from coterie.learning.updates import Outer
from coterie.protocol.node import Batch, Loss

ROWS, BATCH, CLASSES = 3, 18, 5


class Doubled(Classification):
    """A loss of one's own, which is not plain cross-entropy."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return 2 * super().losses(outputs, y)


def squared(outputs: Tensor, batch: Batch) -> Tensor:
    return batch.mean(outputs.square().sum(-1))


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 40),
        nn.ReLU(),
        nn.Linear(40, 7, bias=False),
        nn.ReLU(),
        nn.Linear(7, CLASSES),
    )


def batch_of(present: bool, generator: torch.Generator, dtype: torch.dtype) -> Batch:
    x = torch.randn(ROWS, BATCH, 3, 4, generator=generator, dtype=dtype)
    y = torch.randint(CLASSES, (ROWS, BATCH), generator=generator)
    sizes = torch.tensor([BATCH, 4, 1])
    mask = (torch.arange(BATCH) < sizes[:, None]).float() if present else None
    return Batch(y, torch.arange(ROWS), torch.zeros_like(y), mask, x)


@pytest.mark.parametrize(
    "loss", [CLASSIFICATION.loss, Doubled().loss, squared], ids=["plain", "own task", "function"]
)
@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", [mlp, lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES))])
@pytest.mark.parametrize(
    "trains", [lambda name: True, lambda name: name.startswith("3"), lambda name: "bias" in name]
)
def test_gradients_have_the_bits_of_autograd(
    loss: Loss,
    present: bool,
    dtype: torch.dtype,
    build: Callable[[], nn.Sequential],
    trains: Callable[[str], bool],
) -> None:
    generator = torch.Generator().manual_seed(0)
    module, batch = build(), batch_of(present, generator, dtype)
    params = {
        name: torch.randn(ROWS, *value.shape, generator=generator, dtype=dtype)
        for name, value in module.named_parameters()
    }
    only = tuple(name for name in params if trains(name)) or tuple(params)
    by_hand = StackedLayers(module)
    by_autograd = StackedLayers(module)
    by_autograd._simple = False

    losses, gradients = by_hand.gradients(params, batch, loss, only)
    expected_losses, expected = by_autograd.gradients(params, batch, loss, only)

    assert torch.equal(losses, expected_losses)
    assert gradients.keys() == expected.keys() == set(only)
    for name, found in gradients.items():
        other = expected[name]
        if isinstance(found, Outer):
            assert isinstance(other, Outer)
            assert torch.equal(found.delta, other.delta)
            assert torch.equal(found.inputs, other.inputs)
            assert torch.equal(found.taken.outputs, other.taken.outputs)
        else:
            assert isinstance(other, Tensor)
            assert torch.equal(found, other)
        assert bool(torch.isfinite(other.delta if isinstance(other, Outer) else other).all())
