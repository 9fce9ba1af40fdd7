"""pFedGraph: the projection on the simplex, a round's weights and the cosine pull."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.algorithms.pfed_graph import CosinePull, PFedGraph, on_simplex
from coterie.errors import ConfigError
from coterie.learning import SGD, Gradients
from coterie.simulation import Simulation

Build = Callable[..., Simulation]
SIZES = (4, 7, 5)


def projected(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same by bisection: entries above a level, which is where they add up to 1."""
    low, high = values.min() - 1, values.max()
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.maximum(values - level, 0).sum() > 1 else (low, level)
    return np.maximum(values - low, 0)


def test_the_nearest_point_of_the_simplex() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 7)) * rng.choice([0.05, 1.0, 10.0], size=(50, 1))
    found = on_simplex(torch.from_numpy(values)).numpy()
    for row, mine in zip(values, found, strict=True):
        np.testing.assert_allclose(mine, projected(row), atol=1e-9)
    assert len({int((row > 0).sum()) for row in found}) > 3


def test_who_is_not_there_gets_nothing() -> None:
    values = torch.tensor([[0.3, -torch.inf, 0.5], [-torch.inf, 0.1, -torch.inf]])
    torch.testing.assert_close(on_simplex(values), torch.tensor([[0.4, 0.0, 0.6], [0.0, 1.0, 0.0]]))


@pytest.mark.parametrize("similarity", [0.8, 3.0])
def test_weights_of_a_round_by_hand(similarity: float, small_simulation: Build) -> None:
    run = small_simulation(PFedGraph(similarity=similarity, pull=0.0), "full", sizes=SIZES)
    start = by_hand.of(run.personal(), 0)
    run.step()
    trained = run.blocks[0].node.shown["after_local"]
    moves = [
        torch.cat([(trained[name][peer] - value).flatten() for name, value in start.items()])
        for peer in range(3)
    ]
    p = np.array(SIZES) / sum(SIZES)
    for i in range(3):
        cosines = [float(moves[i] @ moves[j] / (moves[i].norm() * moves[j].norm())) for j in range(3)]
        d = np.array([-1.0 if c > 0.9 or j == i else -c for j, c in enumerate(cosines)])
        w = projected(p - d / (2 * similarity))
        np.testing.assert_allclose(run.blocks[0].state.collaboration[i], w, atol=1e-6)
        for name in start:
            expected = sum(float(w[j]) * trained[name][j] for j in range(3))
            torch.testing.assert_close(run.personal()[name][i], expected, rtol=1e-6, atol=1e-6)


def test_the_pull_is_the_gradient_of_the_cosine() -> None:
    rng = torch.Generator().manual_seed(1)
    params = {
        "w": torch.randn(2, 3, 2, generator=rng).double(),
        "b": torch.randn(2, 3, generator=rng).double(),
    }
    anchor = {name: torch.randn(value.shape, generator=rng).double() for name, value in params.items()}
    start = {name: value.clone().requires_grad_() for name, value in params.items()}

    def flat(tree: dict[str, Tensor], row: int) -> Tensor:
        return torch.cat([value[row].flatten() for value in tree.values()])

    cosine = sum(torch.cosine_similarity(flat(start, row), flat(anchor, row), dim=0) for row in range(2))
    assert isinstance(cosine, Tensor)
    wanted = dict(zip(start, torch.autograd.grad(cosine, list(start.values())), strict=True))

    def nothing() -> Gradients:
        return {name: torch.zeros_like(value) for name, value in params.items()}

    rule = CosinePull(0.4, anchor, SGD())
    rule.step(params, rule.begin(params, torch.arange(2)), nothing, 0.5, 0)
    for name, value in params.items():
        torch.testing.assert_close(value, start[name].detach() + 0.5 * 0.4 * wanted[name])


@pytest.mark.parametrize("settings", [{"similarity": 0.0}, {"pull": -0.1}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PFedGraph(**settings)
