"""FedAvg through a hub: McMahan et al., Communication-Efficient Learning of Deep Networks (AISTATS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor

from coterie.algorithms.gossip_fedavg import weighted
from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.paper_settings import DFEDPGP_TRAINING, PFEDKD_WCL_TRAINING
from coterie.errors import ConfigError
from coterie.protocol import (
    Facts,
    Inbox,
    ModelAlgorithm,
    ModelState,
    Node,
    Params,
    Presets,
    Round,
    everyone,
    from_hub,
    sample_clients,
    to_hub,
)
from coterie.protocol.trees import per_row, where_rows


@dataclass(frozen=True)
class HubAverage(ModelAlgorithm):
    """The rounds of FedAvg and of what differs from it only in how clients train or are measured.

    After local training, those that trained show their fresh copies; all others show the model that the hub
    began the round with, and of their own what never travels. What they last downloaded would depend on which
    rounds were measured.
    """

    participation: float = 1.0  # fraction of clients per round

    def __post_init__(self) -> None:
        require_fraction("participation", self.participation)

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        clients, shared = sample_clients(node, self.participation), self.shared(node)
        download = yield from_hub(pick(state.params, shared), node, clients)
        mine = adopt(state.params, download)
        here = download.count > 0
        trained = self.trained(mine, here, node)
        upload = yield to_hub(self.weighted(pick(trained, shared), node), node, here, clients)
        # What was downloaded is as it was; what never travels (a head, local statistics) stays as trained.
        downloaded = {name: mine[name] for name in shared if mine[name] is not state.params[name]}
        mine = self.at_hub({**trained, **downloaded}, upload)
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
        return node.train(received, active=here, **self.local_settings(received, node))

    def local_settings(self, received: Params, node: Node) -> dict[str, Any]:
        """What a variant changes in local training."""
        return {}

    def weighted(self, params: Params, node: Node) -> dict[str, Params]:
        """Each client's model times its weight at the hub, and that weight."""
        return weighted(params, node)

    def adapted(self, received: Params, node: Node) -> Params:
        """What each client makes of the hub's model before it is measured; the federation goes on without."""
        return received

    def at_hub(self, mine: Params, upload: Inbox) -> Params:
        """The hub's new model; all other rows keep theirs."""
        return mean_at_hub(mine, upload)


@dataclass(frozen=True)
class FedAvg(HubAverage):
    """The hub averages what a sample of clients trained from its model.

        S_t <- a fraction of the clients;  hub sends w to S_t
        w_i <- w after local SGD                             each client i in S_t
        w <- sum_i n_i w_i / sum_i n_i                       at the hub

    After local training, each client is measured with its freshly trained copy, or with w where it was not
    sampled; after mixing, with the new w. Handing out w for that is not counted as traffic.

    finetune_epochs > 0 (FedAvg-FT): after mixing, every client is measured with a copy of the new w that it
    trained for so many epochs on its own data; the federation goes on from w.

    Differs from the paper: the hub keeps w in a round in which nothing arrives, and the number of sampled
    clients is rounded to the nearest, at least 1.
    """

    finetune_epochs: int = 0

    facts = Facts(
        paper="McMahan et al. 2017",
        measured="after_mixing",
        communication="one model to and from each sampled client",
        personal=False,
        hub=True,
    )
    presets: ClassVar[Presets] = {
        "dfedpgp": {"participation": 0.1, **DFEDPGP_TRAINING},
        "pfedkd-wcl": {"participation": 0.25, **PFEDKD_WCL_TRAINING},  # MNIST: 5 of 20 clients
        "pfedkd-wcl-synthetic": {"participation": 0.1, **PFEDKD_WCL_TRAINING},  # 10 of 100
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetune_epochs < 0:
            raise ConfigError(f"finetune_epochs must be 0 or more, not {self.finetune_epochs}")

    def adapted(self, received: Params, node: Node) -> Params:
        return fine_tuned(received, node, self.finetune_epochs) if self.finetune_epochs else received


def mean_at_hub(mine: Params, upload: Inbox) -> Params:
    """Where models arrived, their mean weighted by numbers of samples; elsewhere one's own."""
    received = cast(dict[str, Params], upload.sum())
    if not received:
        return mine
    n = received["samples"]["n"]
    result = dict(mine)
    for name, total in received["model"].items():
        rows = per_row(n, total).to(total.device)
        result[name] = (total / rows.clamp(min=1)).where(rows > 0, mine[name])
    return result


def fine_tuned(params: Params, node: Node, epochs: int) -> Params:
    """A copy of each row's model after some epochs on its own data, to be measured."""
    return node.train(params, epochs=epochs, steps=None, stream="fine-tuning", purpose="measurement")


def adopt(mine: Params, inbox: Inbox, unsent: Params | None = None) -> Params:
    """Take over the one model that arrived, where one did; of another network, what one's own has too.

    unsent: a model to copy from what messages never hold, such as statistics that stay at home.
    """
    received, arrived = inbox.sum_fitting(mine)
    adopted = dict(mine)
    for name, value in mine.items():
        if name in received:
            here = per_row(arrived[name] > 0, value).to(value.device)
            adopted[name] = received[name].where(here, value)
        elif received and unsent is not None:
            adopted[name] = unsent[name].clone()
    return adopted


def require_fraction(name: str, value: float) -> None:
    """Refuse a share of clients that cannot be."""
    if not 0 < value <= 1:
        raise ConfigError(f"{name} must be a fraction above 0 and at most 1, not {value}")
