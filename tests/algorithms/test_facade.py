"""FACADE: heads that are averaged by their number and chosen by loss, beside torch."""

from __future__ import annotations

from collections.abc import Callable

import by_hand
import pytest
import torch

from coterie.algorithms.facade import FACADE, HeadsState
from coterie.errors import ConfigError
from coterie.protocol import Params
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
SIZES = (4, 7, 5, 6)
STILL = Training(epochs=0)


def test_all_nodes_start_with_the_same_heads_of_the_networks_size(small_simulation: Build) -> None:
    run = small_simulation(FACADE(clusters=3), "full", sizes=SIZES)
    state: HeadsState = run.blocks[0].state
    for name, heads in state.heads.items():
        assert all(torch.equal(heads[0], row) for row in heads)
        assert torch.equal(heads[:, 0], state.params[name])
        size = heads[0, 0].abs().max()
        assert not torch.equal(heads[0, 1], heads[0, 2])
        assert bool((heads[0, 1:].abs() <= 3**0.5 * size).all())


def test_two_rounds_by_hand(small_simulation: Build) -> None:
    """In the first all models are equal; in the second bodies and heads of one number are averaged."""
    run = small_simulation(FACADE(clusters=3), "full", sizes=SIZES)
    heads = [
        [
            {name: value[peer, k].clone() for name, value in run.blocks[0].state.heads.items()}
            for k in range(3)
        ]
        for peer in range(4)
    ]
    bodies = [{name: run.personal()[name][peer].clone() for name in by_hand.BODY} for peer in range(4)]
    cluster = [0] * 4
    for _ in range(3):
        body = by_hand.mean(*bodies)
        mixed = []
        for i in range(4):
            own = []
            for k in range(3):
                senders = [j for j in range(4) if j != i and cluster[j] == k]
                own.append(by_hand.mean(heads[i][k], *(heads[j][k] for j in senders)))
            mixed.append(own)
        heads, chosen = mixed, []
        for i in range(4):
            data = by_hand.data_of(run, i)
            chosen.append(min(range(3), key=lambda k: float(by_hand.loss({**body, **heads[i][k]}, *data))))
            model = by_hand.differentiable({**body, **heads[i][chosen[i]]})
            step = by_hand.gradient(model, by_hand.loss(model, *data))
            after = {name: value.detach() - 0.1 * step[name] for name, value in model.items()}
            bodies[i] = {name: after[name] for name in by_hand.BODY}
            heads[i][chosen[i]] = {name: after[name] for name in by_hand.HEAD}
        cluster = chosen
        run.step()
        assert run.blocks[0].state.cluster.tolist() == cluster
        for i in range(4):
            expected: Params = {**bodies[i], **heads[i][cluster[i]]}
            for name, value in expected.items():
                torch.testing.assert_close(run.personal()[name][i], value)


def test_one_head_is_gossip_of_whole_models(small_simulation: Build) -> None:
    run = small_simulation(FACADE(clusters=1), "full", sizes=SIZES)
    run.step()
    models = [by_hand.of(run.personal(), peer) for peer in range(4)]
    run.step(evaluate=True)
    shown = run.blocks[0].node.shown["after_mixing"]
    for name, value in by_hand.mean(*models).items():
        for peer in range(4):
            torch.testing.assert_close(shown[name][peer], value)


def test_no_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="clusters must be 1 or more"):
        FACADE(clusters=0)
