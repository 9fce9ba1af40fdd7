"""DFedAvgM: Sun, Li and Wang, Decentralized Federated Averaging (TPAMI 2022).

DFedAvgM-P, with a head that stays at home, is the ablation of DFedPGP (Liu et al., CVPR 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.parts.heads import head_settings, pick, train_head_then_body
from coterie.algorithms.parts.settings import BLEND_DFL_TRAINING, DFEDPGP_TRAINING, require_at_least
from coterie.protocol import Exchange, Facts, ModelState, Node, Presets, Round

_BLEND_DFL = {
    **{key: value for key, value in BLEND_DFL_TRAINING.items() if key != "training.momentum"},
    "training.weight_decay": 0.0,
}

_RESTARTS = "by its equations momentum starts afresh in every round"


@dataclass(frozen=True)
class DFedAvgM(DPSGD):
    """D-PSGD whose local epochs use heavy-ball momentum, reset in every round.

        y^{k+1} = y^k - lr g(y^k) + momentum (y^k - y^{k-1}),   y^{-1} = y^0 = theta_i
        theta_i <- sum_j W_ij y_j

    With the same learning rate as D-PSGD, momentum 0.9 makes the effective rate ten times larger: match
    rates before comparing the two. `momentum` stands in the place of `training.momentum`, which has no
    effect; Adam has none and is refused.

    Differs from the paper: models are sent as they are; its optional quantised messages are left out, as
    in the papers that compare with it.
    """

    momentum: float = 0.9

    facts = replace(DPSGD.facts, paper="Sun et al. 2022", restarts=_RESTARTS)
    presets: ClassVar[Presets] = {
        "blend-dfl": {"momentum": 0.9, **_BLEND_DFL},
        "dfedpgp": {"momentum": 0.9, **DFEDPGP_TRAINING},
    }

    def local_settings(self) -> dict[str, Any]:
        return {"momentum": self.momentum}


@dataclass(frozen=True)
class DFedAvgMP(DFedAvgM):
    """DFedPGP on undirected links: only the body is mixed.

        v_i <- v_i - lr_v grad_v F_i(z_i, v_i)              K_v epochs, body frozen
        z_i <- z_i - lr_u grad_u F_i(z_i, v_i)              K_u epochs, head frozen
        z_i <- sum_j W_ij z_j                               over the neighbours and oneself

    Both with heavy-ball `momentum`, reset in every round, in the place of `training.momentum`. K_u is
    `training.epochs`, K_v is `head_epochs`.

    Differs from the paper: it names the method without describing it; the local part is taken from DFedPGP,
    so that the links are the only difference between the two.
    """

    head_epochs: int = 1  # K_v
    head_lr: float | None = None  # lr_v; None: training.lr

    facts = Facts(
        paper="Liu et al. 2024 (ablation)",
        measured="after_mixing",
        communication="one body to each neighbour",
        partial=True,
        free_running=True,
        architectures=True,
        own_work=("head_epochs",),
        restarts=_RESTARTS,
    )
    presets: ClassVar[Presets] = {"dfedpgp": DFedAvgM.presets["dfedpgp"]}

    def __post_init__(self) -> None:
        require_at_least(0, self, "head_epochs", "head_lr")

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        head = head_settings(self.head_epochs, self.head_lr)
        mine = train_head_then_body(state.params, node, head, {}, **self.local_settings())
        node.measure(after_local=mine)
        inbox = yield Exchange(pick(mine, node.body))
        return ModelState(self.mixed(mine, inbox, node))
