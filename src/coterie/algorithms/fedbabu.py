"""FedBABU: Oh et al., Toward Enhanced Representation for Federated Image Classification (ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.algorithms.parts.hub import HubAverage, fine_tuned
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING
from coterie.errors import ConfigError
from coterie.protocol import Facts, Node, Params, Presets


@dataclass(frozen=True)
class FedBABU(HubAverage):
    """Body aggregation and body update: the head keeps its common random start until the very end.

        hub sends the body z to S_t, a fraction of the clients
        z_i <- z_i - lr grad_z F_i(z_i, v)                   head v frozen: neither trained nor decayed
        z <- mean of z_i over S_t                            at the hub
        before a measurement: (z_i, v_i) <- finetune_epochs of local SGD on body and head, from (z, v)

    After local training nobody is fine-tuned; clients that were not sampled are measured with (z, v) there.
    The fine-tuned copies are measured and dropped; the federation goes on from (z, v). So a model saved from
    a run is (z, v), which does poorly by design until its user fine-tunes it.

    All clients must start from the same head, as they do unless the experiment says init = "independent".

    Differs from the paper: the mean over clients is uniform, as in the authors' code.
    """

    finetune_epochs: int = 5

    facts = Facts(
        paper="Oh et al. 2022",
        measured="after_mixing",
        partial=True,
        communication="one body to and from each sampled client",
        hub=True,
    )
    presets: ClassVar[Presets] = {
        "dfedpgp": {"participation": 0.1, "finetune_epochs": 5, **DFEDPGP_TRAINING},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetune_epochs < 1:
            raise ConfigError(
                f"finetune_epochs must be 1 or more, not {self.finetune_epochs}: till then the head is random"
            )

    def shared(self, node: Node) -> tuple[str, ...]:
        return node.body

    def local_settings(self, received: Params, node: Node) -> dict[str, Any]:
        return {"only": node.body}

    def weights(self, node: Node) -> Tensor:
        return (node.n_samples > 0).float()

    def adapted(self, received: Params, node: Node) -> Params:
        return fine_tuned(received, node, self.finetune_epochs)
