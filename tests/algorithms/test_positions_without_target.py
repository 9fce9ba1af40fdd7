"""Sequences of different lengths: methods that compare outputs leave their padding out, beside torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.algorithms.kd_pdfl import KDPDFL
from coterie.algorithms.pdfl import PDFL
from coterie.data import from_peers
from coterie.learning import Executor, Workers
from coterie.learning.tasks import NextToken
from coterie.protocol import Algorithm, Params
from coterie.simulation import Simulation
from coterie.topology import make
from coterie.training import Training

VOCABULARY, POSITIONS, FEATURES = 5, 4, 3
LENGTHS = ([4, 1, 2], [1, 3], [2, 2, 1, 4])  # of the sequences of each peer


def tagger(peer: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(peer)
        return nn.Sequential(nn.Embedding(VOCABULARY, FEATURES), nn.Linear(FEATURES, VOCABULARY)).double()


def sequences(peer: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCABULARY, (len(LENGTHS[peer]), POSITIONS + 1), generator=torch.manual_seed(peer))
    y = tokens[:, 1:].clone()
    for row, length in zip(y, LENGTHS[peer], strict=True):
        row[length:] = -100
    return tokens[:, :-1], y


def unpadded(peer: int) -> Tensor:
    """The tokens of all positions that have a target, one after the other."""
    x, y = sequences(peer)
    return x[y != -100]


def logits(model: Params, tokens: Tensor) -> Tensor:
    return model["0.weight"][tokens] @ model["1.weight"].T + model["1.bias"]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(1) as made:
        yield made


def after_a_round(algorithm: Algorithm[Any], workers: Workers) -> tuple[list[Params], Simulation]:
    """The models of all peers before it, and what came of it."""
    data = [{part: sequences(peer) for part in ("train", "test")} for peer in range(3)]
    run = Simulation(
        algorithm=algorithm,
        federation=from_peers(data, task="next-token", n_classes=VOCABULARY),
        module=tagger(0),
        topology=make("full", peers=3, seed=0),
        training=Training(epochs=0),
        executor=Executor("stacked", tagger(0), workers),
        seed=1,
        rounds=3,
        own_module=tagger,
        task=NextToken(),
    )
    models = [{name: value[peer].clone() for name, value in run.personal().items()} for peer in range(3)]
    run.step()
    return models, run


def test_pdfl_attends_by_positions_that_have_a_target(workers: Workers) -> None:
    models, run = after_a_round(PDFL(attention_temperature=0.3), workers)
    for peer in range(3):
        p = [torch.softmax(logits(model, unpadded(peer)) / 0.3, 1) for model in models]
        kl = torch.stack([(q * (q / p[peer]).log()).sum(1).mean() for q in p])
        a = torch.softmax(-kl / 0.3, 0)
        assert float(a.max() - a.min()) > 0.01  # even weights would not pass
        expected = sum(a[j] * models[j]["0.weight"] for j in range(3))
        torch.testing.assert_close(run.personal()["0.weight"][peer], expected)


@pytest.mark.parametrize("layer", [None, "0"])
def test_kd_pdfl_measures_distances_over_positions_that_have_a_target(
    layer: str | None, workers: Workers
) -> None:
    """Without a regulariser a weight loses eta mu1 d, and the star is the peer whose weights change."""
    algorithm = KDPDFL(mu1=0.1, mu2=0.0, step_rule="const", step_size=1.0, layer=layer)
    models, run = after_a_round(algorithm, workers)
    found = run.blocks[0].state.collaboration.double()
    (star,) = (found.sum(1) < 2 / 3 - 1e-4).nonzero().flatten().tolist()

    def compared(peer: int) -> Tensor:
        """Probabilities, or the layer's outputs so that d is per feature."""
        if layer is None:
            return torch.softmax(logits(models[peer], unpadded(star)), 1)
        return models[peer]["0.weight"][unpadded(star)] / FEATURES**0.5

    for other in {0, 1, 2} - {star}:
        d = float((compared(other) - compared(star)).square().sum(1).mean())
        assert 0 < d < 10 / 3  # neither equal, nor so far that the weight ends at zero
        assert float(found[star, other]) == pytest.approx(1 / 3 - 0.1 * d, abs=1e-6)
