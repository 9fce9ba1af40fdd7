"""FedAvg through a hub: McMahan et al., Communication-Efficient Learning of Deep Networks (AISTATS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.algorithms.parts.hub import HubAverage, fine_tuned
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING, PFEDKD_WCL_TRAINING, require_at_least
from coterie.protocol import (
    Facts,
    Node,
    Params,
    Presets,
)


@dataclass(frozen=True)
class FedAvg(HubAverage):
    """The hub averages what a sample of clients trained from its model.

        S_t <- a fraction of the clients;  hub sends w to S_t
        w_i <- w after local SGD                             each client i in S_t
        w <- sum_i n_i w_i / sum_i n_i                       at the hub

    After local training, each client is measured with its freshly trained copy, or with w where it was not
    sampled; after mixing, with the new w. Handing out w for that is not counted as traffic.

    finetune_epochs > 0 (FedAvg-FT): after mixing, every client is measured with a copy of the new w that it
    trained for so many epochs on its own data; the federation goes on from w.

    Differs from the paper: the hub keeps w in a round in which nothing arrives, and the number of sampled
    clients is rounded to the nearest, at least 1.
    """

    finetune_epochs: int = 0

    facts = Facts(
        paper="McMahan et al. 2017",
        measured="after_mixing",
        communication="one model to and from each sampled client",
        personal=False,
        hub=True,
    )
    presets: ClassVar[Presets] = {
        "dfedpgp": {"participation": 0.1, **DFEDPGP_TRAINING},
        "pfedkd-wcl": {"participation": 0.25, **PFEDKD_WCL_TRAINING},  # MNIST: 5 of 20 clients
        "pfedkd-wcl-synthetic": {"participation": 0.1, **PFEDKD_WCL_TRAINING},  # 10 of 100
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "finetune_epochs")

    def adapted(self, received: Params, node: Node) -> Params:
        return fine_tuned(received, node, self.finetune_epochs) if self.finetune_epochs else received
