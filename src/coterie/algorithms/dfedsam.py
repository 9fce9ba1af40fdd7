"""DFedSAM: Shi et al., Improving the Model Consistency of Decentralized Federated Learning (ICML 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.parts.settings import BLEND_DFL_TRAINING, require_at_least
from coterie.learning.updates import SharpnessAware
from coterie.protocol import Presets


@dataclass(frozen=True)
class DFedSAM(DPSGD):
    """D-PSGD whose local steps take their gradient where the loss is highest nearby.

        g = grad F_i(y);   y^ = y + rho g / ||g||           per mini-batch, norm over all parameters
        y <- y - lr grad F_i(y^)
        theta_i <- sum_j W_ij y_j                           over the neighbours and oneself

    Every step needs two gradients, so local training costs twice as much. rho = 0 is D-PSGD. Momentum and
    weight decay, where the experiment asks for them, belong to the second line; BlendDFL uses neither.

    Differs from the paper: one exchange per round; its variant with several (DFedSAM-MGS) is left out.
    """

    rho: float = 0.01

    facts = replace(DPSGD.facts, paper="Shi et al. 2023")
    presets: ClassVar[Presets] = {
        "blend-dfl": {
            "rho": 0.01,
            **BLEND_DFL_TRAINING,
            "training.weight_decay": 0.0,
            "training.clip": 0.0,
        }
    }

    def __post_init__(self) -> None:
        require_at_least(0, self, "rho")

    def local_settings(self) -> dict[str, Any]:
        return {"around": partial(SharpnessAware, self.rho)}
