"""pFedGraph: Ye et al., Personalized Federated Learning with Inferred Collaboration Graphs (ICML 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor

from coterie.algorithms.parts.settings import require_above_zero, require_at_least
from coterie.learning import Gradients, Memory, Rate, Update
from coterie.learning.updates import dense
from coterie.protocol import Algorithm, Exchange, Facts, Inbox, Node, Params, Presets, Round, Tree, average
from coterie.protocol.plausible import Sized
from coterie.protocol.trees import map_params, per_row, some_rows

_ALIKE = 0.9  # updates whose cosine is above this count as the same
_SMALLEST = 1e-12
_SAMPLES = "number of samples"  # beside the model in a payload; no parameter is called so


@dataclass(frozen=True)
class GraphState:
    """The model, and how much each node took from every other, and from itself."""

    params: Params
    collaboration: Tensor  # (rows, nodes)


@dataclass(frozen=True)
class PFedGraph(Algorithm[GraphState]):
    """Weigh the others by how much their models have moved in the direction of one's own.

        theta_i <- local SGD on F_i(theta) - mu cos(theta, a_i)                 a_i: what i started from
        d_ij = -cos(theta_i - theta_0, theta_j - theta_0),  -1 where it is below -0.9;  d_ii = -1
        w_i = argmin over the simplex of sum_j w_ij d_ij + lambda sum_j (w_ij - p_j)^2,  p_j = n_j / sum n
            = projection of p - d_i / (2 lambda) on the simplex
        theta_i <- a_i <- sum_j w_ij theta_j                                    over neighbours and oneself

    The quadratic programme needs no solver: its Hessian is a multiple of the identity. theta_0 is the model
    that all started from.

    Differs from the paper: there a server computes the graph from all models. Here every node computes its
    own row from those that reach it, which is the same where all links exist.
    """

    similarity: float = 0.8  # lambda: how far weights stay with the numbers of samples
    pull: float = 0.01  # mu

    facts = Facts(
        paper="Ye et al. 2023",
        measured="after_local",
        communication="one model and one number to each neighbour",
        free_running=True,
    )
    presets: ClassVar[Presets] = {"paper": {"similarity": 0.8, "pull": 0.01}}

    def __post_init__(self) -> None:
        require_above_zero(self, "similarity")
        require_at_least(0, self, "pull")

    def init(self, node: Node) -> GraphState:
        return GraphState(node.initial(), torch.zeros(node.rows, node.graph.nodes))

    def round(self, state: GraphState, node: Node) -> Round[GraphState]:
        mine = node.train(state.params, around=partial(CosinePull, self.pull, state.params))
        node.measure(after_local=mine)
        n = node.n_samples.float()
        inbox = yield Exchange({**mine, _SAMPLES: n}, check=Sized(mine))
        weights = self.weights(mine, n, inbox, node)
        if node.evaluating:
            node.record(collaboration=weights)
        return GraphState(average(mine, inbox, weights[inbox.rows, inbox.senders].double()), weights)

    def personal(self, state: GraphState) -> Params:
        return state.params

    def collaboration(self, state: GraphState) -> Tensor:
        return state.collaboration

    def weights(self, mine: Params, n: Tensor, inbox: Inbox, node: Node) -> Tensor:
        """(rows, nodes) w_i."""
        start = node.initial()
        trained = [name for name in mine if name not in (*node.buffers, *node.at_home)]

        def look(peers: Tree, rows: Tensor) -> Tensor:
            sent = cast(Params, peers)
            ours = [some_rows(mine[name] - start[name], rows).flatten(1) for name in trained]
            theirs = [(sent[name] - some_rows(start[name], rows)).flatten(1) for name in trained]
            cosine = torch.nn.functional.cosine_similarity(torch.cat(ours, 1), torch.cat(theirs, 1))
            return torch.stack((cosine.float().cpu(), sent[_SAMPLES].cpu()), 1)

        cosine, samples = inbox.map(look).reshape(-1, 2).unbind(1)
        rows, everyone = torch.arange(node.rows), (node.rows, node.graph.nodes)
        d, p = torch.full(everyone, torch.inf), torch.zeros(everyone)
        d[inbox.rows, inbox.senders] = (-cosine).where(cosine <= _ALIKE, -1.0)
        p[inbox.rows, inbox.senders] = samples
        d[rows, node.ids], p[rows, node.ids] = -1.0, n
        p = p / p.sum(1, keepdim=True).clamp(min=1)
        return on_simplex(p - d / (2 * self.similarity))


def on_simplex(values: Tensor) -> Tensor:
    """Each row's nearest point with entries of at least 0 that add up to 1; -inf stays out."""
    sorted_values = values.sort(1, descending=True).values
    above = (sorted_values.masked_fill(sorted_values.isinf(), 0.0).cumsum(1) - 1) / torch.arange(
        1, values.shape[1] + 1
    )
    support = (sorted_values > above).sum(1, keepdim=True)
    return (values - above.gather(1, support - 1)).clamp(min=0.0)


@dataclass(frozen=True)
class CosinePull:
    """Subtracts mu times the gradient of cos(theta, anchor) from the gradient of another rule."""

    mu: float
    anchor: Params  # stacked over all rows of the node
    inner: Update

    def begin(self, params: Params, rows: Tensor) -> Memory:
        anchors = {name: some_rows(self.anchor[name], rows) for name in params}
        return {**self.inner.begin(params, rows), "towards": anchors}

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        def pulled() -> Gradients:
            plain = {name: dense(g, params[name]) for name, g in gradient().items()}
            here = {name: params[name] for name in plain}
            there = {name: memory["towards"][name] for name in plain}
            length = _dot(here, here).clamp(min=_SMALLEST)
            product = (length * _dot(there, there).clamp(min=_SMALLEST)).sqrt()
            toward, back = self.mu / product, self.mu * _dot(here, there) / (product * length)
            return dict(
                map_params(
                    lambda g, w, a: g - per_row(toward, a) * a + per_row(back, w) * w, plain, here, there
                )
            )

        self.inner.step(params, memory, pulled, lr, number)


def _dot(first: Params, second: Params) -> Tensor:
    return torch.stack([(a * second[name]).flatten(1).sum(1) for name, a in first.items()]).sum(0)
