"""From a prepared experiment to what all blocks of its simulation are made of."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from coterie.experiments.setup.groups import bound_of
from coterie.experiments.setup.prepare import Prepared
from coterie.learning import Executor, ExecutorName, Workers
from coterie.simulation import HostedNetwork
from coterie.simulation.blocks import Hosting


def ingredients(made_of: Hosting) -> dict[str, Any]:
    """What a simulation of it is made of, by name."""
    return {one.name: getattr(made_of, one.name) for one in fields(made_of)}


def hosting(prepared: Prepared, executor: ExecutorName, workers: Workers) -> Hosting:
    e, p = prepared.experiment, prepared
    return Hosting(
        algorithm=p.algorithm,
        federation=p.federation,
        module=p.module,
        topology=p.topology,
        training=e.training,
        executor=Executor(executor, p.module, workers, e.execution.precision),
        seed=e.seed,
        rounds=e.rounds,
        own_module=p.own_module,
        task=p.task,
        local_buffers=e.batchnorm == "local",
        shared=e.shared,
        sealing=e.execution.sealing,
        bound=bound_of(e),
        keep_best=e.stopping.keep == "best",
        architectures=[
            HostedNetwork(
                torch.tensor(other.peers), Executor(executor, other.module, workers, e.execution.precision)
            )
            for other in p.other_networks.values()
        ],
    )
