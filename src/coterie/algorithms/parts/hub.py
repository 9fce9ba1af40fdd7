"""What methods with a hub share: the rounds of federated averaging, and personal models beside the hub's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.received import adopt
from coterie.algorithms.parts.settings import require_fraction
from coterie.algorithms.parts.weighting import judged_by, mean_at_hub, weighted
from coterie.protocol import (
    Algorithm,
    ModelAlgorithm,
    ModelState,
    Node,
    Params,
    Round,
    everyone,
    from_hub,
    sample_clients,
    to_hub,
)
from coterie.protocol.patterns import clients_per_round
from coterie.protocol.trees import where_rows


@dataclass(frozen=True)
class HubAverage(ModelAlgorithm):
    """The rounds of FedAvg and of what differs from it only in how clients train or are measured.

    After local training, those that trained show their fresh copies; all others show the model that the hub
    began the round with, and of their own what never travels. What they last downloaded would depend on which
    rounds were measured.
    """

    participation: float = 1.0  # fraction of clients per round

    def __post_init__(self) -> None:
        require_fraction(self, "participation")

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        clients, shared = sample_clients(node, self.participation), self.shared(node)
        download = yield from_hub(pick(state.params, shared), node, clients)
        mine = adopt(state.params, download)
        here = download.count > 0
        trained = self.trained(mine, here, node)
        upload = yield to_hub(
            weighted(pick(trained, shared), self.weights(node)), node, here, clients, judged_by(mine)
        )
        # What was downloaded is as it was; what never travels (a head, local statistics) stays as trained.
        downloaded = {name: mine[name] for name in shared if mine[name] is not state.params[name]}
        mine = mean_at_hub({**trained, **downloaded}, upload)
        if node.evaluating:
            begun = yield from_hub(pick(state.params, shared), node, everyone(node), counted=False)
            node.measure(after_local=where_rows(here, trained, adopt(trained, begun)))
            latest = yield from_hub(pick(mine, shared), node, everyone(node), counted=False)
            mine = adopt(mine, latest)
            node.measure(after_mixing=self.adapted(mine, node))
        return ModelState(mine)

    def shared(self, node: Node) -> tuple[str, ...]:
        """Names of what goes to the hub and back; the rest stays with each client."""
        return (*node.body, *node.head)

    def trained(self, received: Params, here: Tensor, node: Node) -> Params:
        """What each client that is `here` makes of the model it received."""
        share = of_sampled(node, self.participation)
        return node.train(received, active=here, share=share, **self.local_settings(received, node))

    def local_settings(self, received: Params, node: Node) -> dict[str, Any]:
        """What a variant changes in local training."""
        return {}

    def weights(self, node: Node) -> Tensor:
        """(rows,) how much each client counts at the hub."""
        return node.n_samples.float()

    def adapted(self, received: Params, node: Node) -> Params:
        """What each client makes of the hub's model before it is measured; the federation goes on without."""
        return received


def fine_tuned(params: Params, node: Node, epochs: int) -> Params:
    """A copy of each row's model after some epochs on its own data, to be measured."""
    return node.train(params, epochs=epochs, steps=None, stream="fine-tuning", purpose="measurement")


@dataclass(frozen=True)
class PersonalState:
    """The hub's model as each node last knew it, and a model of each node's own."""

    params: Params  # w
    personal: Params  # v_i, or theta_i


@dataclass(frozen=True)
class PersonalBesideHub(Algorithm[PersonalState]):
    """An algorithm whose nodes keep a model of their own beside the hub's, never the same tensors."""

    def init(self, node: Node) -> PersonalState:
        return PersonalState(node.initial(), node.initial())

    def personal(self, state: PersonalState) -> Params:
        return state.personal


def of_sampled(node: Node, participation: float) -> float:
    """A sampled client's share of a round's work, where all methods get equally much (`training.work`).

    It makes up for the rounds that the client sits out.
    """
    return (node.graph.nodes - 1) / clients_per_round(node, participation)
