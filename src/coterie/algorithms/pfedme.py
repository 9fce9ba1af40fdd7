"""pFedMe: Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes (NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algorithms.parts.hub import PersonalBesideHub, PersonalState
from coterie.algorithms.parts.received import adopt
from coterie.algorithms.parts.settings import require_at_least, require_fraction
from coterie.algorithms.parts.weighting import judged_by, mean_at_hub, weighted
from coterie.errors import ConfigError
from coterie.learning.updates import Gradients, Memory, Rate, add_, for_each_row
from coterie.protocol import (
    Facts,
    Node,
    Params,
    Presets,
    Round,
    everyone,
    from_hub,
    sample_clients,
    to_hub,
)
from coterie.protocol.trees import map_params
from coterie.training import Training

_PAPER: dict[str, Any] = {
    "inner_steps": 5,
    "beta": 1.0,
    "training.steps": 20,
    "training.batch_size": 20,
    "training.lr": 0.005,
    "training.lr_decay": 1.0,
    "training.clip": 0.0,
}


@dataclass(frozen=True)
class PFedMe(PersonalBesideHub):
    """Each client's model theta_i is the best near w_i; w_i follows theta_i and is averaged at the hub.

        hub sends w to ALL clients;  w_i, theta_i <- w
        each mini-batch:  K times  theta_i <- theta_i - personal_lr (grad F_i(theta_i) + pull (theta_i - w_i))
                          then     w_i <- w_i - lr pull (w_i - theta_i)
        w <- (1 - beta) w + beta sum_i n_i w_i / sum_i n_i              over S_t, a fraction of the clients

    K is `inner_steps`, pull is lambda, lr is `training.lr` (eta). theta_i is what is measured. The inner
    loop needs personal_lr (pull + curvature) < 2, the outer step lr * pull < 1.

    Differs from the paper: as in the authors' code, all clients train and only the sampled ones are
    averaged, by numbers of samples, and theta_i goes on from one mini-batch to the next within a round.
    Weight decay, 0.001 in their code and `training.weight_decay` here, acts in the inner step.
    Their evaluation measures w_i by an aliasing mistake; here it is theta_i. Both steps are plain: momentum
    and Adam have no effect.
    """

    pull: float = 15.0  # lambda
    personal_lr: float = 0.05
    inner_steps: int = 5  # K
    beta: float = 1.0  # the hub's step towards the average
    participation: float = 1.0  # fraction of clients that are averaged

    facts = Facts(
        paper="Dinh et al. 2020",
        measured="after_local",
        communication="one model to every client, one from each sampled client",
        hub=True,
        restarts="its steps are plain, and have no memory",
    )
    presets: ClassVar[Presets] = {
        "paper": {**_PAPER, "pull": 15.0, "personal_lr": 0.1, "participation": 0.25},  # MNIST
        "paper-synthetic": {**_PAPER, "pull": 20.0, "personal_lr": 0.01, "participation": 0.1},
        "paper-synthetic-mlp": {**_PAPER, "pull": 30.0, "personal_lr": 0.01, "participation": 0.1},
    }

    def __post_init__(self) -> None:
        require_fraction(self, "participation")
        require_at_least(0, self, "pull", "personal_lr", "inner_steps", "beta")
        if self.personal_lr * self.pull >= 2:
            raise ConfigError(
                f"personal_lr * pull must be below 2 or the inner steps diverge, not "
                f"{self.personal_lr} * {self.pull}; make personal_lr smaller"
            )

    def round(self, state: PersonalState, node: Node) -> Round[PersonalState]:
        download = yield from_hub(state.params, node, everyone(node))
        w = adopt(state.params, download)
        here = download.count > 0
        rule = MoreauStep(self.pull, self.personal_lr, self.inner_steps)
        theta = node.train(adopt(state.personal, download), active=here, update=rule.with_settings)
        node.measure(after_local=theta)
        clients = sample_clients(node, self.participation)
        sending = here & torch.isin(node.ids, clients)
        centres = weighted(rule.centres(theta), node.n_samples.float())
        upload = yield to_hub(centres, node, sending, clients, judged_by(w))
        average = mean_at_hub(w, upload)
        mixed = map_params(lambda old, new: (1 - self.beta) * old + self.beta * new, w, average)
        return PersonalState(mixed, theta)


@dataclass(frozen=True)
class MoreauStep:
    """K steps on theta towards the minimum of F + pull / 2 ||theta - w||^2, then one step of w."""

    pull: float
    personal_lr: float
    inner_steps: int
    weight_decay: float = 0.0  # of theta
    finished: list[tuple[Tensor, Params]] = field(default_factory=list)  # rows and their w, from each chunk

    def with_settings(self, training: Training) -> MoreauStep:
        """With the experiment's weight decay; what it finishes is here, too."""
        return replace(self, weight_decay=training.weight_decay)

    def begin(self, params: Params, rows: Tensor) -> Memory:
        centre = {name: p.clone() for name, p in params.items()}
        self.finished.append((rows, centre))  # changes in place until the chunk is done
        return {"centre": centre}

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        centre, share = memory["centre"], self.personal_lr * self.pull
        kept = 1.0 - share - self.personal_lr * self.weight_decay
        for _ in range(self.inner_steps):
            for name, g in gradient().items():
                theta = params[name]
                add_(theta, g, -self.personal_lr, beta=kept)
                theta.add_(centre[name], alpha=share)
        for name, w in centre.items():
            w.lerp_(params[name], for_each_row(lr * self.pull, w))

    def centres(self, trained: Params) -> Params:
        """w_i of the rows that trained; what has no gradient, such as running statistics, as trained."""
        result = {name: value.clone() for name, value in trained.items()}
        for rows, centre in self.finished:
            for name, value in centre.items():
                result[name][rows] = value
        return result
