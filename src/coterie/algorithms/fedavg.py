"""FedAvg through a hub: McMahan et al., Communication-Efficient Learning of Deep Networks (AISTATS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from coterie.algorithms.gossip_fedavg import weighted
from coterie.errors import ConfigError
from coterie.protocol import (
    Exchange,
    Facts,
    Inbox,
    ModelAlgorithm,
    ModelState,
    Node,
    Params,
    Round,
    from_hub,
    sample_clients,
    to_hub,
)
from coterie.protocol.trees import per_row


@dataclass(frozen=True)
class FedAvg(ModelAlgorithm):
    """The hub averages what a sample of clients trained from its model.

        S_t <- a fraction of the clients;  hub sends w to S_t
        w_i <- w after local SGD                             each client i in S_t
        w <- sum_i n_i w_i / sum_i n_i                       at the hub

    After mixing, the new w is measured on every client's own test data; handing it out for that is not
    counted as traffic. After local training, each client's freshly trained copy is.
    """

    participation: float = 1.0  # fraction of clients per round

    facts = Facts(
        paper="McMahan et al. 2017",
        measured="after_mixing",
        communication="one model to and from each sampled client",
        personal=False,
        hub=True,
    )

    def __post_init__(self) -> None:
        require_fraction("participation", self.participation)

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        clients = sample_clients(node, self.participation)
        download = yield Exchange(state.params, to=from_hub(node, clients))
        mine = adopt(state.params, download)
        here = download.count > 0
        trained = node.train(mine, active=here, **self.local_settings(mine, node))
        node.measure(after_local=trained)
        upload = yield Exchange(weighted(trained, node), to=to_hub(node, here))
        mine = self.at_hub(mine, upload)
        if node.evaluating:
            everyone = torch.arange(node.graph.nodes - 1)
            latest = yield Exchange(mine, to=from_hub(node, everyone), counted=False)
            mine = adopt(mine, latest)
        return ModelState(mine)

    def local_settings(self, received: Params, node: Node) -> dict[str, Any]:
        """What a variant changes in local training."""
        return {}

    def at_hub(self, mine: Params, upload: Inbox) -> Params:
        """The hub's new model; all other rows keep theirs."""
        received = cast(dict[str, Params], upload.sum())
        if not received:
            return mine
        n = received["samples"]["n"]
        result = dict(mine)
        for name, total in received["model"].items():
            rows = per_row(n, total).to(total.device)
            result[name] = (total / rows.clamp(min=1)).where(rows > 0, mine[name])
        return result


def adopt(mine: Params, inbox: Inbox) -> Params:
    """Take over the one model that arrived, where one did."""
    arrived = inbox.count > 0
    received = cast(Params, inbox.sum())
    return {
        name: received[name].where(per_row(arrived, value).to(value.device), value)
        if name in received
        else value
        for name, value in mine.items()
    }


def require_fraction(name: str, value: float) -> None:
    """Refuse a share of clients that cannot be."""
    if not 0 < value <= 1:
        raise ConfigError(f"{name} must be a fraction above 0 and at most 1, not {value}")
