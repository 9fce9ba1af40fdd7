"""Frozen parameters: training beside them equals torch, they are never stacked, and never change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from training_lab import (
    CLASSES,
    FEATURES,
    Branches,
    Lab,
    assert_equal_models,
    batches_of,
    peers,
    seeded,
    torch_training,
)

from coterie.errors import ConfigError
from coterie.learning import Executor, ExecutorName, Workers, model_tree
from coterie.learning.batched import OneByOne, Vmapped
from coterie.learning.stacked import StackedLayers
from coterie.models import frozen_names
from coterie.training import Training


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Workers(2) as workers:
        yield Lab(workers)


def normalised() -> nn.Module:
    """Statistics that are not those of an untrained layer show whether they are used."""
    net = nn.Sequential(
        nn.Linear(FEATURES, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, 6),
        nn.ReLU(),
        nn.Linear(6, CLASSES),
    )
    net[1].running_mean.normal_()  # type: ignore[union-attr, operator]
    net[1].running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr, operator]
    return net


def without(*frozen: str) -> Callable[[nn.Module], nn.Module]:
    def freeze(module: nn.Module) -> nn.Module:
        for name, value in module.named_parameters():
            value.requires_grad_(not name.startswith(frozen))
        return module

    return freeze


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], nn.Module], type]] = {
    "first layers": (normalised, without("0", "1"), StackedLayers),
    "a layer between": (normalised, without("3"), StackedLayers),
    "the last layer": (normalised, without("5"), StackedLayers),
    "a weight without its bias": (normalised, without("3.weight", "0.bias"), StackedLayers),
    "half of a norm": (normalised, without("1.weight"), StackedLayers),
    "a forward of one's own": (Branches, without("second", "gate.weight"), Vmapped),
}


def in_evaluation_mode(module: nn.Module) -> nn.Module:
    """As torch's own users freeze a BatchNorm: it stays in evaluation mode, whatever `train()` says."""
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(layer, nn.BatchNorm1d) and not any(value.requires_grad for value in own):
            layer.eval()
            layer.train = lambda mode=True, layer=layer: layer  # type: ignore[method-assign, assignment]
    return module


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("case", CASES)
def test_training_equals_torch(case: str, executor: ExecutorName, lab: Lab) -> None:
    build, freeze, kind = CASES[case]
    module, data = freeze(seeded(build)), peers()
    before = copy.deepcopy(module.state_dict())
    training = Training(epochs=2, batch_size=4, lr=0.05, momentum=0.9, weight_decay=0.1, clip=1.0)
    params, losses = lab.coterie(module, executor, data, training)
    assert type(Executor(executor, module, lab.workers)._model) is (
        kind if executor == "stacked" else OneByOne
    )
    assert params.keys() == model_tree(module).keys()
    assert not set(params) & frozen_names(module)
    for peer in range(data.peers):
        net, loss = torch_training(
            in_evaluation_mode(copy.deepcopy(module)),
            batches_of(data, peer, training),
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
            training.clip,
        )
        assert_equal_models(params, peer, net)
        assert float(losses[peer]) == pytest.approx(loss, rel=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("way", [OneByOne, Vmapped, StackedLayers])
def test_outputs_are_those_of_the_module(way: type) -> None:
    plain = without("0", "3.bias")(seeded(lambda: normalised()))
    module = nn.Sequential(*(layer for layer in plain if not isinstance(layer, nn.BatchNorm1d))).eval()
    x = torch.randn(1, 4, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = way(module).outputs(model_tree(module), x)
    torch.testing.assert_close(found[0], module(x[0]))


def test_a_frozen_norm_can_be_stacked_in_any_module(lab: Lab) -> None:
    """Its statistics do not move, so padding cannot enter them."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x))

    module = without("norm")(seeded(Own))
    assert Vmapped.supports(module)
    assert not Vmapped.supports(seeded(Own))
    found = [lab.coterie(module, executor, peers(), Training())[0] for executor in ("stacked", "looped")]
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name])


def test_worker_threads_share_what_is_frozen(lab: Lab) -> None:
    module = without("0", "1")(seeded(normalised))
    model = Executor("looped", module, lab.workers)._model
    copies = lab.workers.map(lambda _: model._bound(model_tree(module)), range(4))  # type: ignore[attr-defined]
    for each in copies:
        assert each is not module
        assert each.get_parameter("0.weight") is module.get_parameter("0.weight")
        assert each.get_buffer("1.running_mean") is module.get_buffer("1.running_mean")
        assert each.get_parameter("3.weight") is not module.get_parameter("3.weight")


@pytest.mark.parametrize("assigns", [True, False])
def test_a_frozen_layer_that_changes_its_buffer_is_refused(assigns: bool, lab: Lab) -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(FEATURES, FEATURES)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            if assigns:
                self.seen = self.seen + 1
            else:
                self.seen += 1
            return super().forward(x)

    module = nn.Sequential(Counting(), nn.Linear(FEATURES, CLASSES)).double()
    module[0].requires_grad_(False)
    with pytest.raises(
        ConfigError, match=r"training changes the model's buffer '0.seen', and its layer is frozen"
    ):
        lab.coterie(module, "looped", peers(), Training())


def test_everything_frozen_is_refused() -> None:
    from coterie import simulate

    with pytest.raises(ConfigError, match="no parameters to train"):
        simulate(data=two_peers(), model=nn.Linear(FEATURES, CLASSES).requires_grad_(False), rounds=1)


def two_peers() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(2, 12, FEATURES, generator=torch.Generator().manual_seed(1))
    return [(part, torch.arange(12) % CLASSES) for part in x]
