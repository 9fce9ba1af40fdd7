"""Samples of whole numbers, of several inputs and of different lengths: both executors beside plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_lab import Lab, assert_equal_models, batches_of, seeded, stacked, torch_training

from coterie.data import Federation, from_peers
from coterie.errors import ConfigError
from coterie.learning import Executor, LearningNode, Workers, cross_entropy
from coterie.topology import Graph
from coterie.training import Training

WORDS, CLASSES, FEATURES = 12, 3, 4
SIZES = (9, 5, 1, 7)
TRAINING = Training(lr=0.3, momentum=0.9, batch_size=4, epochs=2)


class Bag(nn.Module):
    """The mean of embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 5), nn.Linear(5, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens).mean(1))


class MaskedBag(Bag):
    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Any:
        mask = attention_mask[..., None].to(self.head.weight)
        return SimpleNamespace(logits=self.head((self.words(tokens) * mask).sum(1) / mask.sum(1)), loss=None)


class WithFeatures(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(FEATURES, 5)

    def forward(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, str]:
        return self.head(torch.tanh(self.words(tokens).mean(1) + self.table(features))), "and more"


class Recurrent(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.GRU(5, 5, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.reader(self.words(tokens))[0][:, -1])


@dataclass(frozen=True)
class Case:
    """A network, what its samples are, and how plain torch calls it."""

    network: Callable[[], nn.Module]
    sample: Callable[[np.random.Generator, int], Any]  # of n samples
    logits: Callable[[nn.Module, Any], Tensor]
    executors: tuple[str, ...] = ("stacked", "looped")

    def federation(self) -> Federation:
        rng = np.random.default_rng(3)
        pairs = [(self.sample(rng, n), rng.integers(0, CLASSES, n)) for n in SIZES]
        made = from_peers([{"train": pair, "test": pair} for pair in pairs], n_classes=CLASSES)
        if isinstance(made.x, Tensor):
            return made
        real = {name: x.double() if x.is_floating_point() else x for name, x in made.x.items()}
        return replace(made, x=real)


def words(rng: np.random.Generator, n: int) -> Any:
    return rng.integers(0, WORDS, (n, 6))


def sentences(rng: np.random.Generator, n: int) -> Any:
    return [rng.integers(0, WORDS, rng.integers(1, 8)) for _ in range(n)]


def both(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return words(rng, n), rng.normal(size=(n, FEATURES))


def masked_by_hand(net: nn.Module, x: dict[str, Tensor]) -> Tensor:
    """Each sentence alone, without its padding."""
    kept = [tokens[: int(mask.sum())] for tokens, mask in zip(x["0"], x["attention_mask"], strict=True)]
    return net.head(torch.stack([net.words(tokens).mean(0) for tokens in kept]))  # type: ignore[operator]


CASES = {
    "whole numbers": Case(Bag, words, lambda net, x: net(x)),
    "a tuple": Case(WithFeatures, both, lambda net, x: net(x["0"], x["1"])[0]),
    "a dict": Case(
        WithFeatures,
        lambda rng, n: dict(zip(("features", "tokens"), reversed(both(rng, n)), strict=True)),
        lambda net, x: net(x["tokens"], x["features"])[0],
    ),
    "different lengths": Case(MaskedBag, sentences, masked_by_hand),
    "recurrent": Case(Recurrent, words, lambda net, x: net(x), ("looped",)),
}
EACH = [(name, executor) for name, case in CASES.items() for executor in case.executors]


@pytest.fixture
def lab():
    with Workers(2) as workers:
        yield Lab(workers)


@pytest.mark.parametrize(("name", "executor"), EACH)
def test_training_equals_torch(lab: Lab, name: str, executor: Any) -> None:
    case = CASES[name]
    data, net = case.federation(), seeded(case.network)
    trained, losses = lab.coterie(net, executor, data, TRAINING)
    for peer in range(data.peers):
        sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9)  # noqa: E731
        expected, loss = torch_training(net, batches_of(data, peer, TRAINING), sgd, 0.0, case.logits)
        assert_equal_models(trained, peer, expected)
        assert float(losses[peer]) == pytest.approx(loss)


@pytest.mark.parametrize(("name", "executor"), EACH)
def test_predictions_equal_torch(lab: Lab, name: str, executor: Any) -> None:
    """In pieces, and padded where a peer has fewer samples than another."""
    case = CASES[name]
    data, net = case.federation(), seeded(case.network).eval()
    node = LearningNode(
        torch.arange(data.peers), data, net, Executor(executor, net, lab.workers), TRAINING, 0, 1
    )
    node.begin(0, Graph.from_links(4, torch.empty(0), torch.empty(0)), torch.ones(4, dtype=torch.bool))
    params = stacked(net, data.peers)
    found, scores = node.predict(params, "test"), node.evaluate(params)
    for peer in range(data.peers):
        index = data.test.of(peer)
        x = {key: x[index] for key, x in data.x.items()} if isinstance(data.x, dict) else data.x[index]
        with torch.no_grad():
            expected = case.logits(net, x)
        torch.testing.assert_close(found[peer, : len(index)], expected)
        right = (expected.argmax(1) == data.y[index]).double().mean()
        assert float(scores.metrics["accuracy"][peer]) == pytest.approx(float(right))


def test_words_are_evaluated_in_pieces_that_fit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word takes 8 bytes, and its vector of 5 numbers 40: four samples of 6 words take 960."""
    data, net = CASES["whole numbers"].federation(), seeded(Bag)
    monkeypatch.setattr("coterie.learning.executor._FORWARD_BYTES", 960)
    params, rows, seen = stacked(net, data.peers), torch.arange(data.peers), []
    runner = Executor("looped", net, lab.workers)
    runner.visit(params, data, data.test, rows, lambda visit: seen.append(visit.y.shape[1]))
    assert sum(seen) == sum(SIZES)
    assert max(seen) == 4


def test_the_loss_sees_the_mask(lab: Lab) -> None:
    data, net = CASES["different lengths"].federation(), seeded(MaskedBag)
    seen = []

    def loss(logits: Tensor, batch: Any) -> Tensor:
        assert batch.x["attention_mask"].shape == batch.x["0"].shape
        seen.append(batch.x["attention_mask"].sum())
        return cross_entropy(logits, batch)

    lab.coterie(net, "looped", data, Training(batch_size=50, epochs=1), loss=loss)
    assert isinstance(data.x, dict)
    assert sum(map(int, seen)) == int(data.x["attention_mask"][data.train.index].sum())


def test_what_a_forward_computes_from_the_whole_batch_is_not_stacked(lab: Lab) -> None:
    """Padding would enter it; found with inputs of any kind."""

    class Centred(WithFeatures):
        def forward(self, tokens: Tensor, features: Tensor) -> Any:
            logits, more = super().forward(tokens, features)
            return logits - logits.mean(0), more

    with pytest.raises(ConfigError, match="padding would enter"):
        lab.coterie(seeded(Centred), "stacked", CASES["a dict"].federation(), TRAINING)
