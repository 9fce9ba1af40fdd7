"""pFedKD-WCL on a network with BatchNorm: the hub's running statistics, and those of the teacher."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from coterie.algorithms.pfedkd_wcl import PFedKDWCL
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
FULL = Training(steps=1, batch_size=1000, lr=0.4, clip=0.0)


def network() -> nn.Sequential:
    """Normalises its inputs, so that the statistics are those of a client's data, whatever the weights."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).double()


def inputs(simulation: Simulation, client: int) -> Tensor:
    data = simulation.federation
    return data.x[data.train.of(client)]


def hub_model(simulation: Simulation) -> dict[str, Tensor]:
    return {name: value[-1].clone() for name, value in simulation.blocks[0].state.params.items()}


@pytest.mark.parametrize("update", ["kl_grad", "kl_grad_reverse_lastclient"])
def test_the_hub_takes_the_mean_of_its_clients_statistics(small_simulation: Build, update: Any) -> None:
    """Whatever its learning rate: one pass moves them by BatchNorm's momentum, 0.1."""
    algorithm = PFedKDWCL(participation=0.5, server_update=update)
    simulation = small_simulation(algorithm, "star", training=FULL, network=network())
    for _ in range(3):
        before = hub_model(simulation)
        sampled = simulation.step().traffic[0].receivers.tolist()
        assert len(sampled) == 3
        for name, of in (("0.running_mean", Tensor.mean), ("0.running_var", Tensor.var)):
            seen = torch.stack([of(inputs(simulation, client), dim=0) for client in sampled]).mean(0)
            torch.testing.assert_close(hub_model(simulation)[name], 0.9 * before[name] + 0.1 * seen)


def test_a_teacher_without_statistics_has_the_clients_own(small_simulation: Build) -> None:
    """alpha = 1: each client's step follows from what w says with theta's statistics."""
    net, lr = network(), FULL.lr
    algorithm = PFedKDWCL(alpha=1.0, server_lr=5.0)
    simulation = small_simulation(algorithm, "star", training=FULL, network=net, local_buffers=True)
    for _ in range(2):
        simulation.step()
    w, theta = hub_model(simulation), simulation.personal()
    simulation.step()
    for client in range(6):
        own = {name: value[client] for name, value in theta.items()}
        statistics = {name: value for name, value in own.items() if "running" in name}
        assert not torch.allclose(statistics["0.running_mean"], torch.zeros(3).double(), atol=0.01)
        teacher, student, x = copy.deepcopy(net), copy.deepcopy(net), inputs(simulation, client)
        teacher.load_state_dict({**w, **statistics}, strict=False)
        student.load_state_dict(own, strict=False)
        log_p = teacher.eval()(x).log_softmax(1).detach()
        kl_div(student(x).log_softmax(1), log_p, reduction="batchmean", log_target=True).backward()
        for name, value in student.named_parameters():
            expected = value.detach() - lr * value.grad
            torch.testing.assert_close(simulation.personal()[name][client], expected)
