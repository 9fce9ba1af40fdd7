"""FedAvg+: Jiang et al., Improving Federated Learning Personalization via MAML (2019), around a star node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.algorithms.parts.settings import KD_PDFL_EMNIST, KD_PDFL_IOT, require_at_least, require_fraction
from coterie.algorithms.star_fedavg import StarFedAvg
from coterie.learning import Gradients, Memory, Rate, Update
from coterie.protocol import Facts, Inbox, Node, Params, Presets, average


@dataclass(frozen=True)
class FedAvgPlus(StarFedAvg):
    """Star FedAvg that switches to Reptile for fine-tuning, as KD-PDFL compares with.

        rounds before switch_at: star FedAvg
        then: theta_i <- theta_i + eps (mean of theta_j over j in N_i - theta_i)   star i, then broadcast
              local steps with a tenth of the learning rate

    The dip right after the switch is in the paper too. eps = 1 takes over the neighbours' mean.

    Differs from the paper: Jiang et al. have a server that runs SGD with momentum, then Adam, on the
    mean update; KD-PDFL does not say what it took. Here plain interpolation, eps 0.5 and rate / 10.
    """

    switch_at: int = 100  # rounds of the first phase
    interpolation: float = 0.5  # eps
    lr_scale: float = 0.1  # of the local learning rate in the second phase

    facts = Facts(
        paper="Jiang et al. 2019, decentralised",
        measured="after_local",
        communication="one model to and from each neighbour of one node",
        architectures=True,
        own_work=("exchange_every",),
    )
    presets: ClassVar[Presets] = {
        "paper": {**KD_PDFL_IOT, "switch_at": 100},  # iteration 2000
        "emnist": {**KD_PDFL_EMNIST, "switch_at": 30},  # iteration 150
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fraction(self, "interpolation")
        require_at_least(0, self, "lr_scale", "switch_at")

    def mix(self, mine: Params, inbox: Inbox, node: Node) -> Params:
        if node.round < self.switch_at:
            return super().mix(mine, inbox, node)
        return average(mine, inbox, self.interpolation / inbox.count[inbox.rows].double())

    def local_settings(self, node: Node) -> dict[str, Any]:
        if node.round < self.switch_at:
            return {}
        return {"around": lambda rule: ScaledRate(rule, self.lr_scale)}


@dataclass(frozen=True)
class ScaledRate:
    """Another rule with a multiple of the experiment's learning rate."""

    inner: Update
    scale: float

    def begin(self, params: Params, rows: Tensor) -> Memory:
        return self.inner.begin(params, rows)

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        self.inner.step(params, memory, gradient, self.scale * lr, number)
