"""Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization (ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.algorithms.parts.heads import pick, proportion
from coterie.algorithms.parts.hub import PersonalBesideHub, PersonalState, of_sampled
from coterie.algorithms.parts.received import adopt
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING, require_at_least, require_fraction
from coterie.algorithms.parts.weighting import judged_by, mean_at_hub, weighted
from coterie.protocol import (
    Facts,
    Node,
    Presets,
    Round,
    from_hub,
    sample_clients,
    to_hub,
)


@dataclass(frozen=True)
class Ditto(PersonalBesideHub):
    """FedAvg, and beside it a personal model that is pulled towards the hub's.

        S_t <- a fraction of the clients;  hub sends w to S_t
        w_i <- w after local SGD                                    each client i in S_t
        v_i <- v_i - lr (grad F_i(v_i) + pull (v_i - w))            with w as received this round
        w <- sum_i n_i w_i / sum_i n_i                              at the hub

    v_i persists and never leaves the client; it is what is measured. pull = 0 is Local training of the
    sampled clients. Keep lr * pull below 1.

    Differs from the paper: the authors alternate the two updates batch by batch; as they do not influence
    each other within a round, here one follows the other, on the same batches. `pull` is lambda, one value
    for all; clipping is applied to the gradient of F_i, before the pull is added; the paper's choice of
    lambda per client on validation data is left out.
    """

    pull: float = 1.0  # lambda
    participation: float = 1.0  # fraction of clients per round
    global_epochs: int | None = None  # None: as much as `training` says
    personal_epochs: int | None = None

    facts = Facts(
        paper="Li et al. 2021",
        measured="after_local",
        communication="one model to and from each sampled client",
        hub=True,
        own_work=("global_epochs", "personal_epochs"),
    )
    presets: ClassVar[Presets] = {
        "paper": {"pull": 1.0},
        "dis-pfl": {
            "pull": 0.5,
            "global_epochs": 2,
            "personal_epochs": 3,
            "training.batch_size": 128,
            "training.lr": 0.1,
            "training.lr_decay": 0.998,
            "training.weight_decay": 5e-4,
            "training.clip": 10.0,
        },
        "dfedpgp": {
            "pull": 0.5,
            "participation": 0.1,
            "global_epochs": 2,  # 5 in all, like the others; split as in Dis-PFL's comparison
            "personal_epochs": 3,
            **DFEDPGP_TRAINING,
        },
    }

    def __post_init__(self) -> None:
        require_fraction(self, "participation")
        require_at_least(0, self, "pull", "global_epochs", "personal_epochs")

    def round(self, state: PersonalState, node: Node) -> Round[PersonalState]:
        clients = sample_clients(node, self.participation)
        download = yield from_hub(state.params, node, clients)
        w = adopt(state.params, download)
        here = download.count > 0
        share = of_sampled(node, self.participation)
        epochs = (node.epochs if own is None else own for own in (self.global_epochs, self.personal_epochs))
        first = share * proportion(*epochs)
        trained = node.train(w, active=here, share=first, **_epochs(self.global_epochs))
        pulled = {"proximal": (self.pull, w), "memory": "personal", **_epochs(self.personal_epochs)}
        personal = node.train(state.personal, active=here, share=share, **pulled)
        node.measure(after_local=personal)
        upload = yield to_hub(weighted(trained, node.n_samples.float()), node, here, clients, judged_by(w))
        w = {**w, **pick(trained, node.at_home)}
        return PersonalState(mean_at_hub(w, upload), personal)


def _epochs(count: int | None) -> dict[str, Any]:
    return {} if count is None else {"epochs": count, "steps": None}
