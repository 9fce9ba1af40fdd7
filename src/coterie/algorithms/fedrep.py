"""FedRep: Collins et al., Exploiting Shared Representations for Personalized FL (ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.algorithms.fedper import FedPer
from coterie.algorithms.parts.heads import head_settings, train_head_then_body
from coterie.algorithms.parts.hub import of_sampled
from coterie.algorithms.parts.settings import require_at_least
from coterie.protocol import Facts, Node, Params, Presets


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer whose clients train their head first, then the body.

        v_i <- v_i - lr_v grad_v F_i(z, v_i)                 head_epochs, body frozen
        z_i <- z_i - lr grad_z F_i(z_i, v_i)                 training.epochs, head frozen
        z <- sum_i n_i z_i / sum_i n_i                       at the hub; v_i stays

    Differs from the paper: one head epoch by default, for parity with DFedPGP; the preset `paper` has the
    authors' 10 head epochs and 1 body epoch. Their final tuning of all heads is `head_tuning`.
    """

    head_epochs: int = 1
    head_lr: float | None = None  # None: training.lr

    facts = Facts(
        paper="Collins et al. 2021",
        measured="after_mixing",
        partial=True,
        communication="one body to and from each sampled client",
        hub=True,
        own_work=("head_epochs",),
    )
    presets: ClassVar[Presets] = {
        "paper": {
            "participation": 0.1,
            "head_epochs": 10,
            "training.epochs": 1,
            "training.batch_size": 10,
            "training.lr": 0.01,
            "training.momentum": 0.5,
            "training.clip": 0.0,
        },
        "dfedpgp": FedPer.presets["dfedpgp"],
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "head_epochs", "head_lr")

    def trained(self, received: Params, here: Tensor, node: Node) -> Params:
        head = head_settings(self.head_epochs, self.head_lr)
        share = of_sampled(node, self.participation)
        return train_head_then_body(received, node, head, {}, share=share, active=here)
