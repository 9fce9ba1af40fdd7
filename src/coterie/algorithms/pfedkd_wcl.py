"""pFedKD-WCL: Hu, Kothari and Banerjee, Personalized FL: Knowledge Distillation with Weighted Combination
Loss (2025)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from coterie.algorithms.parts.distillation import (
    full_gradient,
    of_samples,
    remembered_logits,
)
from coterie.algorithms.parts.hub import PersonalBesideHub, PersonalState, of_sampled
from coterie.algorithms.parts.received import adopt
from coterie.algorithms.parts.settings import PFEDKD_WCL_TRAINING, require_at_least, require_fraction
from coterie.errors import ConfigError
from coterie.protocol import (
    Batch,
    Facts,
    Inbox,
    Node,
    Params,
    Prepare,
    Presets,
    Round,
    from_hub,
    sample_clients,
    to_hub,
)
from coterie.protocol.trees import Counters, per_row

_PAPER: dict[str, Any] = {"alpha": 0.1, "server_lr": 0.01, **PFEDKD_WCL_TRAINING}


@dataclass(frozen=True)
class PFedKDWCL(PersonalBesideHub):
    """The hub's model teaches the clients' personal models, and learns from them.

        S_t <- a fraction of the clients;  hub sends w to S_t
        theta_i <- theta_i - lr grad [(1 - alpha) CE + alpha KL(p_w || p_theta)]    local steps, eq. 3
        G_i = grad_w KL(p_theta || p_w)    at w, theta_i fixed, on all of i's training samples, eq. 4
        w <- w - server_lr mean_i G_i                                              at the hub

    theta_i persists from round to round and never leaves the client. alpha = 0 is Local training of
    the sampled clients; for alpha near 1 the untrained w pulls everybody to uniform outputs.

    server_update: `kl_grad`, as above; `param_avg`, clients upload theta_i and w <- mean theta_i;
    `kl_grad_reverse_lastclient`, what the authors' code computes: the gradient of KL(p_w || p_theta),
    of which only one sampled client counts (the last in their loop), times 1 + n_i / sum n.

    Differs from the paper: its 20 local epochs are 20 mini-batch steps in the presets, as in the authors'
    code. Teachers and students are compared at temperature 1, for the paper names none. Its line 14 takes a
    data-dependent gradient at a server without data, so clients take it (as in the authors' code) and upload
    G_i instead of theta_i. All start from the same model unless the experiment says otherwise. The paper has
    no Local row, which must be compared with. Its networks have no BatchNorm: here the hub's running
    statistics become the mean of what the sampled clients make of them in one pass over their data; where
    statistics stay at home, w has those of theta_i at i.
    CE and KL are the loss and the divergence of the task: of a regression, squared errors both.
    """

    alpha: float = 0.1  # weight of the teacher
    server_lr: float = 0.01  # eta at the hub
    participation: float = 1.0  # fraction of clients per round
    server_update: Literal["kl_grad", "kl_grad_reverse_lastclient", "param_avg"] = "kl_grad"

    facts = Facts(
        paper="Hu et al. 2025",
        measured="after_local",
        communication="one model to, and one gradient or model from, each sampled client",
        hub=True,
    )
    presets: ClassVar[Presets] = {
        "paper": {**_PAPER, "participation": 0.25},  # MNIST: 5 of 20 clients
        "paper-synthetic": {**_PAPER, "participation": 0.1},  # 10 of 100 clients
        "authors-code": {
            **_PAPER,
            "participation": 0.25,
            "server_update": "kl_grad_reverse_lastclient",
        },
    }

    def __post_init__(self) -> None:
        require_fraction(self, "participation")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must be from 0 to 1, not {self.alpha}")
        require_at_least(0, self, "server_lr")

    def round(self, state: PersonalState, node: Node) -> Round[PersonalState]:
        clients = sample_clients(node, self.participation)  # line 3
        download = yield from_hub(state.params, node, clients)  # line 4
        w = adopt(state.params, download, unsent=state.personal)
        here = (download.count > 0) & (node.n_samples > 0)
        loss = partial(self.client_loss, node) if self.alpha else None  # None: cross-entropy alone
        prepare = self.teacher(w, here, node) if self.alpha else None
        share = of_sampled(node, self.participation)
        personal = node.train(state.personal, active=here, share=share, loss=loss, prepare=prepare)
        node.measure(after_local=personal)
        upload = yield to_hub(self.for_hub(w, personal, here, node), node, here, clients)
        return PersonalState(self.at_hub(w, upload, node), personal)

    def teacher(self, w: Params, here: Tensor, node: Node) -> Prepare:
        """The hub's model's outputs on the clients' samples, computed once."""
        p_w = node.task.softened(remembered_logits(w, here, node))
        return lambda samples: {"teacher": of_samples(p_w, samples)}

    def client_loss(self, node: Node, outputs: Tensor, batch: Batch) -> Tensor:
        """(rows,) eq. 3."""
        divergence = node.task.divergence(batch.prepared["teacher"], node.task.softened(outputs))
        return (1 - self.alpha) * node.loss(outputs, batch) + self.alpha * batch.mean(divergence)

    def for_hub(self, w: Params, personal: Params, here: Tensor, node: Node) -> dict[str, Params]:
        """What a client uploads."""
        if self.server_update == "param_avg":
            return {"model": personal}
        task, fixed = node.task, remembered_logits(personal, here, node)
        reverse = self.server_update == "kl_grad_reverse_lastclient"

        def loss(logits: Tensor, batch: Batch) -> Tensor:
            p_theta, p_w = task.softened(of_samples(fixed, batch)), task.softened(logits)
            return batch.mean(task.divergence(p_w, p_theta) if reverse else task.divergence(p_theta, p_w))

        gradient = full_gradient(node, w, loss, here)
        if reverse:
            return {"model": gradient, "samples": Counters(n=node.n_samples.float())}
        return {"model": gradient}

    def at_hub(self, w: Params, upload: Inbox, node: Node) -> Params:
        """Line 14: the hub's new model; all other rows keep theirs."""
        weights = 1.0 / upload.count[upload.rows].double()  # 1 / S, of those that arrived
        mean = _model(upload, weights)
        if self.server_update == "param_avg":
            heard = {name: per_row(upload.count > 0, value).to(value.device) for name, value in mean.items()}
            return {**w, **{name: value.where(heard[name], w[name]) for name, value in mean.items()}}
        if self.server_update == "kl_grad":
            gradient = mean
        else:
            gradient = _model(upload, last_client_weights(upload, node))
        result = dict(w)
        for name in mean:  # all are 0 where nothing arrived
            statistics = name in node.buffers
            result[name] = w[name] - (mean[name] if statistics else self.server_lr * gradient[name])
        return result


def _model(upload: Inbox, weights: Tensor) -> Params:
    """The weighted sum of what was uploaded in the place of a model."""
    return cast(dict[str, Params], upload.sum(weights)).get("model", {})


def last_client_weights(upload: Inbox, node: Node) -> Tensor:
    """(messages,) 1 + n_i / sum n for one client drawn uniformly, 0 for the others."""
    weights = torch.zeros(len(upload.senders), dtype=torch.double)
    if len(weights):
        n = upload.map(lambda payload, rows: cast(dict[str, Params], payload)["samples"]["n"])
        draw = node.rng("last client").uniform(1)[upload.rows[0], 0]
        last = upload.senders.argsort()[int(draw * len(weights))]  # by id: messages come in any order
        weights[last] = 1 + n[last].double() / n.double().sum()
    return weights
