"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.parts.settings import require_at_least
from coterie.protocol import Facts, Node, Params, Presets


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients are pulled towards the model they received.

        w_i <- w_i - lr (grad F_i(w_i) + mu (w_i - w))       with w as received this round

    mu = 0 is FedAvg. Differs from the paper: no stragglers with partial work. Clipping (training.clip)
    is applied to the gradient of F_i, before the pull is added.
    """

    mu: float = 0.01

    facts = Facts(
        paper="Li et al. 2020",
        measured="after_mixing",
        communication="one model to and from each sampled client",
        personal=False,
        hub=True,
    )
    presets: ClassVar[Presets] = {
        name: {"mu": 0.01, **FedAvg.presets[name]} for name in ("pfedkd-wcl", "pfedkd-wcl-synthetic")
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "mu")

    def local_settings(self, received: Params, node: Node) -> dict[str, Any]:
        return {"proximal": (self.mu, received)}
