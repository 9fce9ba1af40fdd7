"""Layers by name: what they return, in every executor, and what they depend on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from coterie.errors import ConfigError
from coterie.learning.batched import BatchedModel, OneByOne, Vmapped, model_tree
from coterie.learning.stacked import StackedLayers
from coterie.models import find_layer, largest_output

ROWS, BATCH = 3, 5


def ones(shape: tuple[int, ...]) -> Tensor:
    return torch.ones(2, *shape)


class Table(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"it": x}


class Logits(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 30)

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(x))


class Contrary(nn.Module):
    """Registers its layers in another order than it uses them, one of them without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.uncalled = nn.Linear(4, 4)
        self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.first = nn.Linear(3, 4)
        self.pair = nn.GRU(4, 4, batch_first=True)
        self.table = Table()
        self.idle = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = linear(self.first(x), self.uncalled.weight)
        x = self.second(x)
        return self.head(self.table(self.pair(x[:, None])[0][:, 0])["it"])


def dense() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 40), nn.BatchNorm1d(40), nn.ReLU(inplace=True), nn.Linear(40, 2)
    )


def images() -> nn.Sequential:
    block = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU())
    return nn.Sequential(block, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2))


def test_a_layer_needs_what_its_outputs_depend_on() -> None:
    assert find_layer(Contrary(), "first", ones((3,))).needs == ("first.weight", "first.bias")
    up_to_second = {"second.0.weight", "second.0.bias", "first.weight", "first.bias", "uncalled.weight"}
    assert set(find_layer(Contrary(), "second", ones((3,))).needs) == up_to_second
    assert set(find_layer(Contrary(), "second.1", ones((3,))).needs) == up_to_second
    assert set(find_layer(dense(), "2", ones((2, 3))).needs) == {
        *("1.weight", "1.bias", "2.weight", "2.bias", "2.running_mean", "2.running_var")
    }
    assert find_layer(images(), "0", ones((1, 6, 6))).features == 2 * 4 * 4
    assert find_layer(Contrary(), "pair", ones((3,))).features == 4  # the first tensor that a GRU returns


def test_the_model_is_left_as_it_was() -> None:
    module = dense()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    find_layer(module, "3", ones((2, 3)))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.training


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("frst", "did you mean first\\? Its layers: head, uncalled, second, second.0, .*idle"),
        ("zzzzzz", "choose from: first, head"),
        ("", "no layer ''"),
        ("idle", "never called"),
        ("table", "must return a tensor .*, not dict"),
    ],
)
def test_layers_that_cannot_be_used(layer: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_layer(Contrary(), layer, ones((3,)))


def test_the_largest_output_decides_about_memory() -> None:
    """Of float32: what the convolutions return, not the GRU's state, and logits inside an object."""
    assert largest_output(images(), ones((1, 6, 6))) == 2 * 4 * 4 * 4
    assert largest_output(nn.Sequential(nn.Embedding(3, 7), Table()), torch.zeros(2, 5).long()) == 5 * 7 * 4
    assert largest_output(Logits(), ones((3,))) == 30 * 4


def test_a_layer_before_all_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="before all that trains"):
        find_layer(dense(), "0", ones((2, 3)))


@pytest.mark.parametrize("layer", ["1", "2", "3", "4"])
@pytest.mark.parametrize("way", [StackedLayers, OneByOne])
def test_outputs_of_a_dense_layer(way: type, layer: str) -> None:
    check_outputs(dense, way, layer, (2, 3), int(layer) + 1)


@pytest.mark.parametrize(("layer", "depth"), [("0", 1), ("1", 2), ("3", 4)])
@pytest.mark.parametrize("way", [Vmapped, OneByOne])
def test_outputs_of_a_layer_on_images(way: type, layer: str, depth: int) -> None:
    check_outputs(images, way, layer, (1, 6, 6), depth)


def check_outputs(build: type, way: type, layer: str, shape: tuple[int, ...], depth: int) -> None:
    """Against the plain modules up to there; the model need not be whole."""
    modules = [build().eval() for _ in range(ROWS)]
    trees = [model_tree(module) for module in modules]
    needs = find_layer(modules[0], layer, ones(shape)).needs
    params = {name: torch.cat([tree[name] for tree in trees]) for name in needs}
    x = torch.randn(ROWS, BATCH, *shape)
    model: BatchedModel = way(build())
    for row, module in enumerate(modules):
        one = slice(row, row + 1) if model.one_by_one else slice(None)
        outputs = model.outputs({name: value[one] for name, value in params.items()}, x[one], layer)
        with torch.no_grad():
            expected = module[:depth](x[row]).flatten(1)
        torch.testing.assert_close(outputs[0 if model.one_by_one else row], expected)
