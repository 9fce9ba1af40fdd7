"""Convolutional networks: how images lie in memory is ours to choose and must not change the numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.learning import cross_entropy
from coterie.learning.batched import OneByOne, Vmapped, model_tree, trainable_names
from coterie.models import build
from coterie.protocol import Batch

CLASSES, IMAGES = 5, 6


class WithView(nn.Module):
    """A user's own network, whose `view` fails unless the channels of an image come first in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 30 * 30, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x)).view(len(x), -1))


NETWORKS: dict[str, tuple[tuple[int, ...], Callable[[tuple[int, ...]], nn.Module]]] = {
    "three channels": ((3, 32, 32), lambda shape: build("ppdl-cnn", shape, CLASSES, seed=0)),
    "one channel": ((1, 28, 28), lambda shape: build("ppdl-cnn", shape, CLASSES, seed=0)),
    "batch norm": ((1, 28, 28), lambda shape: build("emnist-cnn-bn", shape, CLASSES, seed=0)),
    "group norm": ((3, 32, 32), lambda shape: build("blend-cnn", shape, CLASSES, seed=0)),
    "own class": ((3, 32, 32), lambda shape: WithView()),
}


@pytest.mark.parametrize("which", NETWORKS)
def test_outputs_and_gradients_are_those_of_plain_torch(which: str) -> None:
    shape, make = NETWORKS[which]
    module = make(shape).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(1, IMAGES, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (1, IMAGES), generator=generator)
    params, plain = model_tree(module), copy.deepcopy(module)

    with torch.no_grad():
        expected = plain.eval()(x[0])
    torch.testing.assert_close(OneByOne(module).outputs(params, x)[0], expected)

    loss = functional.cross_entropy(plain.train()(x[0]), y[0])
    slopes = torch.autograd.grad(loss, list(plain.parameters()))
    batch = Batch(y, torch.arange(1), torch.arange(IMAGES)[None], None, x)
    found, gradients = OneByOne(module).gradients(params, batch, cross_entropy, trainable_names(module))
    torch.testing.assert_close(found[0], loss.detach())
    for name, slope in zip(trainable_names(module), slopes, strict=True):
        gradient = gradients[name]
        assert isinstance(gradient, Tensor)
        torch.testing.assert_close(gradient[0], slope, msg=name)
    for name, value in plain.named_buffers():
        if value.is_floating_point():  # running statistics
            torch.testing.assert_close(params[name][0], value, msg=name)


@pytest.mark.parametrize("which", [name for name in NETWORKS if name != "batch norm"])
def test_many_rows_are_evaluated_as_each_alone(which: str) -> None:
    shape, make = NETWORKS[which]
    module = make(shape).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(3, IMAGES, *shape, generator=generator, dtype=torch.float64)
    params = {
        name: value * torch.rand(3, *value.shape[1:], generator=generator, dtype=torch.float64)
        for name, value in model_tree(module).items()
    }
    found = Vmapped(module).outputs(params, x)
    for row in range(3):
        own = {name: value[row] for name, value in params.items()}
        with torch.no_grad():
            expected = torch.func.functional_call(module, own, (x[row],))
        torch.testing.assert_close(found[row], expected)
