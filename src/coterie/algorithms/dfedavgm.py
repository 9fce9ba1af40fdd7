"""DFedAvgM: Sun, Li and Wang, Decentralized Federated Averaging (TPAMI 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.parts.paper_settings import BLEND_DFL_TRAINING, DFEDPGP_TRAINING
from coterie.protocol import Presets

_BLEND_DFL = {
    **{key: value for key, value in BLEND_DFL_TRAINING.items() if key != "training.momentum"},
    "training.weight_decay": 0.0,
}


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

    facts = replace(DPSGD.facts, paper="Sun et al. 2022")
    presets: ClassVar[Presets] = {
        "blend-dfl": {"momentum": 0.9, **_BLEND_DFL},
        "dfedpgp": {"momentum": 0.9, **DFEDPGP_TRAINING},
    }

    def local_settings(self) -> dict[str, Any]:
        return {"momentum": self.momentum}
