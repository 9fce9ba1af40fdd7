"""FedAvg without a server, by a star node that changes in every exchange: the baseline of KD-PDFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.algorithms.parts.received import adopt
from coterie.algorithms.parts.settings import KD_PDFL_EMNIST, KD_PDFL_IOT
from coterie.algorithms.parts.star import StarNode, require_interval, steps_between_exchanges
from coterie.protocol import (
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


@dataclass(frozen=True)
class StarFedAvg(ModelAlgorithm):
    """One random star node per exchange averages its neighbours' models and hands the mean back.

        i <- a random node;  N_i <- those that can reach it in this round (fading links)
        theta_i <- mean of theta_j over j in N_i + i
        theta_j <- theta_i                                   for j in N_i: broadcast with overwrite
        theta_k <- theta_k - lr grad f_k(theta_k)            T_ex - 2 times, on every node k

    A round is one exchange interval of T_ex iterations: exchange, broadcast, then T_ex - 2 local steps of
    one mini-batch each, which replace the experiment's `training.epochs` and `training.steps`, unless
    training.work is "equal", as it is in comparisons. Only one node mixes per round: curves are slow by
    design. A message that is lost is a neighbour less; a star that hears nobody changes nothing.

    Differs from the paper: it does not write this baseline down. The same star and links as in KD-PDFL, a
    uniform mean and a broadcast that overwrites were chosen here; so were learning rate and batch size.
    """

    exchange_every: int = 20  # T_ex

    facts = Facts(
        paper="Jeong and Kountouris 2023 (baseline)",
        measured="after_local",
        communication="one model to and from each neighbour of one node",
        personal=False,
        architectures=True,
        own_work=("exchange_every",),
    )
    presets: ClassVar[Presets] = {"paper": KD_PDFL_IOT, "emnist": KD_PDFL_EMNIST}

    def __post_init__(self) -> None:
        require_interval(self.exchange_every)

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        star = StarNode.draw(node)
        inbox = yield star.gather(state.params, node)
        mixed = self.mix(state.params, inbox, node)
        answer = yield star.broadcast(mixed, inbox, node)
        mine = adopt(mixed, answer)
        node.measure(after_mixing=mine)
        settings = self.local_settings(node)
        return ModelState(steps_between_exchanges(mine, node, self.exchange_every, **settings))

    def mix(self, mine: Params, inbox: Inbox, node: Node) -> Params:
        """The star's new model; all others, who received nothing, keep theirs."""
        return average(mine, inbox)

    def local_settings(self, node: Node) -> dict[str, Any]:
        """What a variant changes in local training."""
        return {}
