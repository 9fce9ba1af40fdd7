"""Per-FedAvg: Fallah et al., Personalized Federated Learning with Theoretical Guarantees (NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from coterie.algorithms.parts.hub import HubAverage
from coterie.algorithms.parts.settings import PFEDKD_WCL_TRAINING, require_at_least
from coterie.learning.updates import Gradients, Memory, Rate, Update, add_
from coterie.protocol import Facts, Node, Params, Presets
from coterie.training import PLAIN_STEP

_PFEDKD: dict[str, Any] = {
    "adaptation_lr": 0.01,
    **PFEDKD_WCL_TRAINING,
    "training.lr": 0.002,
}


@dataclass(frozen=True)
class PerFedAvg(HubAverage):
    """FedAvg for a model that is good after one step on a client's own data.

        hub sends w to S_t, a fraction of the clients; each client i repeats
            theta' <- w_i - a grad F_i(w_i; batch D)               look ahead
            w_i <- w_i - lr grad F_i(theta'; batch D')             gradient at theta', applied at w_i
        w <- sum_i n_i w_i / sum_i n_i                             at the hub

    a is `adaptation_lr`. A step needs two mini-batches, and training.steps counts steps, so that it takes as
    many steps as other algorithms, and twice as many gradients; with training.work = "equal" half as many
    steps, on as many mini-batches. a = 0 is FedAvg.

    Before it is measured, each client takes one step with rate a from the new w on a mini-batch of its own
    TRAINING data (the often copied code of pFedMe adapts on test data); the federation goes on from w.
    After local training it is measured as it is: w_i, or w where it was not sampled.

    Differs from the paper: the first-order variant (FO), which leaves out the Hessian, as in the papers that
    compare with it. `training.lr` is its beta; with momentum, the rule acts on the gradients at theta'.
    """

    adaptation_lr: float = 0.01  # a

    facts = Facts(
        paper="Fallah et al. 2020",
        measured="after_mixing",
        communication="one model to and from each sampled client",
        hub=True,
    )
    presets: ClassVar[Presets] = {
        "pfedkd-wcl": {**_PFEDKD, "participation": 0.25},  # MNIST: 5 of 20 clients
        "pfedkd-wcl-synthetic": {**_PFEDKD, "participation": 0.1},  # 10 of 100
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, self, "adaptation_lr")

    def local_settings(self, received: Params, node: Node) -> dict[str, Any]:
        return {"around": partial(LookAhead, self.adaptation_lr), "batches_per_step": 2}

    def adapted(self, received: Params, node: Node) -> Params:
        return node.train(
            received,
            steps=1,
            lr=self.adaptation_lr,
            stream="adaptation",
            purpose="measurement",
            **PLAIN_STEP,
        )


@dataclass(frozen=True)
class LookAhead:
    """Another rule, with the gradient taken where one plain step on the batch before would lead.

    Even steps only find that place, odd steps change the parameters.
    """

    rate: float  # a
    inner: Update

    def begin(self, params: Params, rows: Tensor) -> Memory:
        ahead = {name: p.clone() for name, p in params.items()}
        return {**self.inner.begin(params, rows), "ahead": ahead}

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        ahead = memory["ahead"]
        if number % 2 == 0:
            for name, g in gradient().items():
                add_(ahead[name].copy_(params[name]), g, -self.rate)
            return

        def gradient_ahead() -> Gradients:
            here = {name: params[name].clone() for name in ahead}
            for name, there in ahead.items():
                params[name].copy_(there)
            found = gradient()
            for name, p in here.items():
                params[name].copy_(p)
            return found

        self.inner.step(params, memory, gradient_ahead, lr, number // 2)
