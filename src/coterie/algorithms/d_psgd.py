"""D-PSGD: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms? (NeurIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from coterie.algorithms.parts.settings import BLEND_DFL_TRAINING
from coterie.protocol import (
    Exchange,
    Facts,
    Inbox,
    ModelAlgorithm,
    ModelState,
    Node,
    Params,
    Presets,
    Round,
    average,
)
from coterie.topology import metropolis


@dataclass(frozen=True)
class DPSGD(ModelAlgorithm):
    """Train locally, then mix with the neighbours.

        y_i <- theta_i after local SGD
        theta_i <- sum_j W_ij y_j                           over the neighbours and oneself

    W is uniform, 1 / (degree + 1), or Metropolis, 1 / (1 + the larger degree) with the rest for oneself,
    which is doubly stochastic on any undirected graph. A neighbour whose message is missing counts
    as oneself (Metropolis) or is left out (uniform).

    Differs from the paper: the original takes one gradient step per exchange, at the un-mixed point.
    As in the papers that use it as a baseline (BlendDFL, DisPFL), a round here has whole local epochs.
    """

    mixing: Literal["uniform", "metropolis"] = "uniform"

    facts = Facts(
        paper="Lian et al. 2017",
        measured="after_mixing",
        communication="one model to each neighbour",
        personal=False,
        free_running=True,
        architectures=True,
    )
    presets: ClassVar[Presets] = {"blend-dfl": dict(BLEND_DFL_TRAINING)}

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        mine = node.train(state.params, **self.local_settings())
        node.measure(after_local=mine)
        inbox = yield Exchange(mine)
        return ModelState(self.mixed(mine, inbox, node))

    def mixed(self, mine: Params, inbox: Inbox, node: Node) -> Params:
        """sum_j W_ij y_j, for the part of the model that was sent."""
        weights = None
        if self.mixing == "metropolis":
            weights = metropolis(node.graph, inbox.senders, node.ids[inbox.rows])
        return average(mine, inbox, weights)

    def needs_both_ways(self) -> bool:
        return self.mixing == "metropolis"

    def local_settings(self) -> dict[str, Any]:
        """What a variant changes in local training."""
        return {}
