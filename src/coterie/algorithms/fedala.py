"""FedALA: Zhang et al., Adaptive Local Aggregation for Personalized Federated Learning (AAAI 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.parts.heads import pick, proportion
from coterie.algorithms.parts.settings import require_above_zero, require_at_least
from coterie.learning import Gradients, Memory, Rate
from coterie.learning.updates import dense
from coterie.protocol import Algorithm, Exchange, Facts, Node, Params, Presets, Round, average
from coterie.protocol.trees import map_params, some_rows

_NO_DIFFERENCE = 1e-6  # where two models agree so well, a weight between them can be neither seen nor learned


@dataclass(frozen=True)
class ALAState:
    """The model, and how much of the others' each of its adaptive weights takes."""

    params: Params
    weights: Params  # W in [0, 1], of the adaptive layers


@dataclass(frozen=True)
class FedALA(Algorithm[ALAState]):
    """Learn on one's own data, weight by weight, how much of the mean model the top layers take.

        theta_bar = mean of theta_j over j in N_i + i;   D = theta_bar - theta_i
        theta^ = theta_bar in the lower layers,  theta_i + W * D in the top layers      W = 1 at first
        W <- clip(W - eta grad F_i(theta^) * D, 0, 1)                                    mini-batches of i
        theta_i <- local training from theta^

    W stays from round to round. It is learned for `first_epochs` in the first round, in which anybody differs
    from the mean, and for `mixing_epochs` in each later one.

    Differs from the paper: the mean of the neighbours takes the place of the server's model, and is even. W
    is learned on all training samples, not on 80 % of them. At first it is learned for a fixed number of
    epochs, where the paper waits until the loss no longer changes. With equal local work the mini-batches
    for W are part of it.
    """

    adaptive: Literal["head", "all"] = "head"  # the top layers
    eta: float = 1.0
    mixing_epochs: int = 1
    first_epochs: int = 5

    facts = Facts(
        paper="Zhang et al. 2023",
        measured="after_mixing",
        communication="one model to each neighbour",
        free_running=True,
        partial=True,
        own_work=("mixing_epochs", "first_epochs"),
    )
    presets: ClassVar[Presets] = {"paper": {"eta": 1.0, "adaptive": "head"}}

    def __post_init__(self) -> None:
        require_above_zero(self, "eta")
        require_at_least(0, self, "mixing_epochs", "first_epochs")

    def init(self, node: Node) -> ALAState:
        params = node.initial()
        return ALAState(params, map_params(torch.ones_like, pick(params, self.top(node))))

    def round(self, state: ALAState, node: Node) -> Round[ALAState]:
        inbox = yield Exchange(state.params)
        mean = average(state.params, inbox)
        start, weights = self.adapted(state, mean, node)
        node.measure(after_mixing=start)
        return ALAState(node.train(start), weights)

    def personal(self, state: ALAState) -> Params:
        return state.params

    def top(self, node: Node) -> tuple[str, ...]:
        names = (*node.body, *node.head) if self.adaptive == "all" else node.head
        return tuple(name for name in names if name not in node.buffers)

    def adapted(self, state: ALAState, mean: Params, node: Node) -> tuple[Params, Params]:
        """theta^ and W, both after W was learned."""
        own = pick(state.params, self.top(node))
        step = map_params(torch.sub, pick(mean, tuple(own)), own)
        between = map_params(torch.addcmul, own, step, state.weights)
        epochs = self.first_epochs if node.round <= 1 else self.mixing_epochs
        settings: dict[str, Any] = {"epochs": epochs, "steps": None, "clip": 0.0, "stream": "mixing"}
        rule = partial(LearnedMixing, self.eta, own, step, state.weights)
        share = proportion(epochs, node.epochs)
        learned = node.train(
            {**mean, **between}, only=tuple(own), share=share, update=lambda training: rule(), **settings
        )
        kept = pick(learned, tuple(own))
        return {**mean, **kept}, map_params(_weight, kept, own, step, state.weights)


def _weight(between: Tensor, own: Tensor, step: Tensor, before: Tensor) -> Tensor:
    """W, read off where it led."""
    visible = step.abs() > _NO_DIFFERENCE
    return ((between - own) / step.where(visible, 1.0)).clamp(0.0, 1.0).where(visible, before)


@dataclass(frozen=True)
class LearnedMixing:
    """Moves each weight on the line from one's own model to the mean, between the two."""

    eta: float
    own: Params
    step_to_mean: Params
    weights: Params  # all three stacked over all rows of the node

    def begin(self, params: Params, rows: Tensor) -> Memory:
        tables = {"own": self.own, "step": self.step_to_mean, "weights": self.weights}
        return {key: {n: some_rows(v, rows).clone() for n, v in t.items()} for key, t in tables.items()}

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        for name, factored in gradient().items():
            step, weights, p = memory["step"][name], memory["weights"][name], params[name]
            weights.addcmul_(dense(factored, p), step, value=-self.eta).clamp_(0.0, 1.0)
            p.copy_(torch.addcmul(memory["own"][name], step, weights))
