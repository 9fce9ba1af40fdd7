"""DFedPGP: Liu et al., Decentralized Directed Collaboration for Personalized FL (CVPR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.parts.heads import head_settings, pick, train_head_then_body
from coterie.algorithms.parts.push_sum import check_mass, merge, push, step_on
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING, require_at_least
from coterie.protocol import Algorithm, Exchange, Facts, Node, Params, Presets, Round, average

_AS_IN_THE_CODE = {"mixing": "uniform", "head_lr": 0.001, "training.augment": "crop(4)+flip"}


@dataclass(frozen=True)
class DirectedState:
    """Body z and head v in one model, and the push-sum mass of the body."""

    params: Params
    mass: Tensor  # (rows,) mu, float64


@dataclass(frozen=True)
class DFedPGP(Algorithm[DirectedState]):
    """Partial gradient push: the body is averaged by push-sum over directed links, the head stays at home.

        v_i <- v_i - lr_v grad_v F_i(z_i, v_i)              K_v epochs, body frozen        (line 6)
        z_i <- z_i - lr_u grad_u F_i(z_i, v_i)              K_u epochs, head frozen        (lines 9, 10)
        u_i <- mu_i z_i
        p_i = 1 / (out-degree of i + 1)                                                    (line 13)
        u_i <- p_i u_i + sum_j p_j u_j                      j: who sends to i              (line 15)
        mu_i <- p_i mu_i + sum_j p_j mu_j                                                  (line 16)
        z_i <- u_i / mu_i                                                                  (line 17)

    K_u is `training.epochs`, or 1 to 5 by peer with `training.epoch_groups = 5` (Table 3); K_v is
    `head_epochs`. All mu are 1 at first and sum to the number of peers ever after: shares of messages that do
    not arrive go back to their sender. BatchNorm statistics belong to the body. With all mu equal this is
    DFedAvgM-P; with an empty head it is OSGP.

    mixing "uniform" is what the authors' code does in the place of push-sum: z_i becomes the even mean of
    those bodies that arrive and one's own, and there is no mu. So if their tables come from that code, they
    say nothing about push-sum. Their code prints the best round; Coterie shows the last one.

    literal: u_i <- u_i - lr_u grad, as the paper writes it, moves z_i by lr_u / mu_i. With 10 random
    out-neighbours mu falls to 0.1, with 2 to 0.01: the rate explodes there. Use it with clipping.

    Differs from the paper: by default the step is taken on z, as in the code of stochastic gradient push; a
    node counts among its own out-neighbours, without which mu becomes 0; all peers start from the same
    weights unless the experiment says otherwise; weight decay 5e-4 and clipping at 10 as in the code of this
    family (the paper's 0.005 is the preset `paper-decay`). The paper does not give the head's rate, which is
    the body's by default. It is 0.001 in the authors' code: presets `code`, with 5 epochs as the paper says,
    and `code-as-shipped`, with the single one that is left because their script lacks a backslash.
    """

    head_epochs: int = 1  # K_v
    head_lr: float | None = None  # lr_v; None: training.lr
    literal: bool = False
    mixing: Literal["push-sum", "uniform"] = "push-sum"

    facts = Facts(
        paper="Liu et al. 2024",
        measured="after_mixing",
        partial=True,
        communication="one body and one number to each out-neighbour",
        directed=True,
        free_running=True,
        own_work=("head_epochs",),
    )
    presets: ClassVar[Presets] = {
        "paper": DFEDPGP_TRAINING,
        "paper-decay": {**DFEDPGP_TRAINING, "training.weight_decay": 5e-3},
        "code": {**DFEDPGP_TRAINING, **_AS_IN_THE_CODE},
        "code-as-shipped": {**DFEDPGP_TRAINING, **_AS_IN_THE_CODE, "training.epochs": 1},
    }

    def __post_init__(self) -> None:
        require_at_least(0, self, "head_epochs", "head_lr")

    def init(self, node: Node) -> DirectedState:
        return DirectedState(node.initial(), torch.ones(node.rows, dtype=torch.float64))

    def round(self, state: DirectedState, node: Node) -> Round[DirectedState]:
        head = head_settings(self.head_epochs, self.head_lr)
        body = step_on(self.literal, state.mass)
        mine = train_head_then_body(state.params, node, head, body)  # lines 5 to 12
        node.measure(after_local=mine)
        z = pick(mine, node.body)
        if self.mixing == "uniform":
            inbox = yield Exchange(z)
            return DirectedState(average(mine, inbox), state.mass)
        pushed = yield from push(z, state.mass, node)  # lines 13, 14
        z, mass = merge(z, pushed.stays, pushed.returned, pushed.received)  # lines 15 to 17
        check_mass(state.mass, mass, node)
        node.record(mass=mass)
        return DirectedState({**mine, **z}, mass)

    def personal(self, state: DirectedState) -> Params:
        return state.params

    def mass(self, state: DirectedState) -> Tensor:
        return state.mass
