"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers (2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.hub import HubAverage
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING, require_at_least
from coterie.protocol import Facts, Node, Params, Presets


@dataclass(frozen=True)
class FedPer(HubAverage):
    """FedAvg on the body; each client's head stays at home.

        hub sends the body z to S_t, a fraction of the clients
        (z_i, v_i) <- local SGD on body and head together, from (z, v_i)
        z <- sum_i n_i z_i / sum_i n_i                       at the hub; v_i stays

    After local training, clients that were not sampled are measured with z, after mixing all are with the new
    z; each with its own head.

    head_tuning > 0: before it is measured, each client trains a copy of its head for so many epochs on the
    new body. Where few clients are sampled, the head of a client that never was is otherwise untrained.

    Differs from the paper: the head is the last linear layer only, as in the papers that compare with it.
    """

    head_tuning: int = 0  # epochs

    facts = Facts(
        paper="Arivazhagan et al. 2019",
        measured="after_mixing",
        partial=True,
        communication="one body to and from each sampled client",
        hub=True,
    )
    presets: ClassVar[Presets] = {
        "dfedpgp": {"participation": 0.1, **DFEDPGP_TRAINING},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "head_tuning")

    def shared(self, node: Node) -> tuple[str, ...]:
        return node.body

    def adapted(self, received: Params, node: Node) -> Params:
        if not self.head_tuning:
            return received
        tuned = node.train(
            received,
            only=node.head,
            epochs=self.head_tuning,
            steps=None,
            stream="fine-tuning",
            purpose="measurement",
        )
        return {**received, **pick(tuned, node.head)}  # BatchNorm statistics belong to the body
