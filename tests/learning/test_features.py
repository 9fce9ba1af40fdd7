"""A loss that sees the features: its gradients are torch's, in both executors and for a user's own module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from training_lab import (
    CLASSES,
    FEATURES,
    SIZES,
    Branches,
    Lab,
    assert_equal_models,
    batches_of,
    dense,
    numbers,
    peers,
    seeded,
    stacked,
)

from coterie.errors import ConfigError
from coterie.learning import Executor, ExecutorName, LearningNode, Workers, cross_entropy
from coterie.protocol import Batch, OnFeatures
from coterie.training import Training

PLAIN = Training(epochs=2, batch_size=3, lr=0.1, clip=0.0)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as pool:
        yield pool


class Keyword(nn.Module):
    """Gives its head what it takes by name, and the head is not what comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * self.head(input=torch.relu(self.body(x)))


def pulled(outputs: Tensor, features: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy and the squared length of the mean feature, without padding."""
    present = torch.ones(batch.index.shape) if batch.present is None else batch.present
    mean = (features * present[..., None]).sum(1) / present.sum(1, keepdim=True)
    return cross_entropy(outputs, batch) + mean.square().sum(1)


def seen(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and the input of the last linear layer, as a loop of torch would note it."""
    inputs: list[Tensor] = []
    last = [part for part in net.modules() if isinstance(part, nn.Linear)][-1]
    own = last.forward
    last.forward = lambda input: (inputs.append(input), own(input))[1]  # type: ignore[method-assign]
    outputs = net(x)
    del last.forward
    return outputs, inputs[-1]


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("build", [dense, Branches, Keyword])
def test_training_is_that_of_torch(build: type[nn.Module], executor: ExecutorName, workers: Workers) -> None:
    module, data = seeded(build), peers()
    found, losses = Lab(workers).coterie(module, executor, data, PLAIN, loss=OnFeatures(pulled))
    plain, _ = Lab(workers).coterie(module, executor, data, PLAIN)
    for peer in range(len(SIZES)):
        net, values = seeded(build), []
        steps = torch.optim.SGD(net.parameters(), 0.1)
        for x, y in batches_of(data, peer, PLAIN):
            outputs, features = seen(net, x)
            loss = nn.functional.cross_entropy(outputs, y) + features.mean(0).square().sum()
            steps.zero_grad()
            loss.backward()
            steps.step()
            values.append(loss.item())
        assert_equal_models(found, peer, net)
        assert float(losses[peer]) == pytest.approx(sum(values) / len(values))
    name = next(iter(found))
    assert not torch.allclose(found[name], plain[name], atol=1e-4)  # the features count


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("build", [dense, Branches, Keyword])
def test_they_can_be_looked_at(build: type[nn.Module], executor: ExecutorName, workers: Workers) -> None:
    module, data = seeded(build), peers()
    runner = Executor(executor, module, workers)
    node = LearningNode(numbers(data).ids, data, module, runner, PLAIN, seed=1, rounds=1)
    shown = node.predict(stacked(module, data.peers), layer=node.features)
    for peer, size in enumerate(SIZES):
        _, features = seen(module, data.x[data.train.of(peer)])
        torch.testing.assert_close(shown[peer, :size], features.detach())
        assert not bool(shown[peer, size:].any())


def test_a_network_without_a_linear_layer_has_none(workers: Workers) -> None:
    module = nn.Sequential(nn.Flatten(), nn.LayerNorm(FEATURES)).double()
    with pytest.raises(ConfigError, match="no linear layer"):
        Lab(workers).coterie(module, "looped", peers(), PLAIN, loss=OnFeatures(pulled))
