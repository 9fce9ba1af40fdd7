"""DFedSalt: Shi et al., Towards More Suitable Personalization in Federated Learning via Decentralized Partial
Model Training (2023)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from coterie.algorithms.parts.heads import head_settings, pick, train_head_then_body
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING, require_at_least
from coterie.learning.updates import SharpnessAware
from coterie.protocol import Exchange, Facts, ModelAlgorithm, ModelState, Node, Presets, Round, average


@dataclass(frozen=True)
class DFedSalt(ModelAlgorithm):
    """Head and body in turns: the head stays at home, the body seeks flat places and is mixed.

        v_i <- v_i - lr_v grad_v F_i(u_i, v_i)                      K_v epochs, body frozen
        g = grad_u F_i(u_i, v_i);   u^ = u_i + rho g / ||g||        per mini-batch
        u_i <- u_i - lr grad_u F_i(u^, v_i)                         K_u epochs, head frozen
        u_i <- mean of u_j over j in N_i + i

    K_u is `training.epochs`, K_v is `head_epochs`. rho = 0 is DFedAlt. It is DFedPGP without push-sum, and
    with sharpness-aware minimisation of the body.

    Differs from the paper: models are averaged evenly over the neighbours and oneself; a doubly stochastic
    matrix, which the paper asks for, is the same where all have as many neighbours.
    """

    rho: float = 0.05
    head_epochs: int = 1  # K_v
    head_lr: float | None = None  # lr_v; None: training.lr

    facts = Facts(
        paper="Shi et al. 2023 (DFedSalt)",
        measured="after_mixing",
        communication="one body to each neighbour",
        free_running=True,
        architectures=True,
        partial=True,
        own_work=("head_epochs",),
    )
    presets: ClassVar[Presets] = {"dfedpgp": DFEDPGP_TRAINING}

    def __post_init__(self) -> None:
        require_at_least(0, self, "rho", "head_epochs", "head_lr")

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        head = head_settings(self.head_epochs, self.head_lr)
        body = {"around": partial(SharpnessAware, self.rho)} if self.rho else {}
        mine = train_head_then_body(state.params, node, head, body)
        node.measure(after_local=mine)
        inbox = yield Exchange(pick(mine, node.body))
        return ModelState(average(mine, inbox))
