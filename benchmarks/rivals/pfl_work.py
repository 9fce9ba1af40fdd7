"""pfl, of Apple's pfl-research. It has a server and no ring: everyone's models are averaged."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from work import BATCH, LR, PEERS, ROUNDS, Clock, images, torch_network

x, y = (torch.from_numpy(part) for part in images())
clock, turn = Clock(), itertools.cycle(range(PEERS))


class Network(nn.Module):
    """What pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch_network()

    def loss(self, batch: Any, labels: Any, is_eval: bool = False) -> Any:
        return nn.functional.cross_entropy(self.layers(batch), labels)

    def metrics(self, batch: Any, labels: Any) -> dict[str, Any]:
        return {}


class Ticking(TrainingProcessCallback[Any]):
    """Says when a round has ended."""

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        clock.tick()
        return False, Metrics()


everyone = FederatedDataset(lambda peer: Dataset([x[peer], y[peer]]), lambda: next(turn))
network = Network()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=ROUNDS,
        evaluation_frequency=10 * ROUNDS,
        train_cohort_size=PEERS,
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=everyone, val_data=everyone),
    model=PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0)),
    model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
    callbacks=[Ticking()],
)
clock.report()
