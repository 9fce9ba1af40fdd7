"""DBE: Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space (2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor

from coterie.algorithms.parts.settings import require_at_least, require_fraction
from coterie.algorithms.parts.weighting import judged_by, weighted, weighted_mean
from coterie.errors import ConfigError
from coterie.learning import Gradients, Memory, Rate, Update
from coterie.learning.updates import dense
from coterie.protocol import Algorithm, Batch, Exchange, Facts, Loss, Node, OnFeatures, Params, Presets, Round
from coterie.protocol.trees import some_rows

_MEAN = "mean of features"  # beside the model in a payload
_BIAS, _OFFSET = "bias before the head", "offset of the head"  # beside the model in training


@dataclass(frozen=True)
class BiasState:
    """The model that is shared, and what a node adds to its features."""

    params: Params
    bias: Tensor  # (rows, features) b
    mean: Tensor  # (rows, features) m
    begun: Tensor  # (rows,) bool: has trained once, so that it has a mean
    personal: Params  # the head's offset with the bias folded in


@dataclass(frozen=True)
class DBE(Algorithm[BiasState]):
    """FedAvg among neighbours; a personal bias takes what is one's own out of the features.

        z_i(x) = f(x; theta_i)                               features: the input of the head, W and c
        logits = W (z_i(x) + b_i) + c                        b_i starts as 0 and never leaves the node
        zbar_i <- (1 - mu) zbar_i + mu (mean of z_i over a mini-batch)                  0 in each round
        (theta_i, b_i) <- local SGD on F_i + kappa / 2 |zbar_i - m_i|^2 / width
        theta_i <- sum_j n_j theta_j / sum_j n_j             over the neighbours and oneself
        m_i <- sum_j n_j m_j / sum_j n_j                     in the same sealed sum

    m_i starts as the mean of node i's features after its first round, in which it trains without bias and
    pull. Where all are neighbours it is the mean over the network from then on; elsewhere it comes near one,
    round by round.

    The network itself is run with the offset c + W b_i, which gives the same logits. Its gradients G of W and
    g of the offset say all: those of W, c and b_i are G + g b_i^T, g and W^T g. So a bias before the head can
    do what a personal offset c_i can, as far as the columns of W reach; but it learns at another rate, W
    feels it, and it turns with W when W is mixed.

    Keep lr * kappa small: the preset's 50 goes with a rate of 0.005, and took an MLP at 0.1 apart.
    sealed=False: as for gossip-fedavg.

    Differs from the paper: there is no server; the first round is what it calls initialisation, and its
    training is kept. The first m_i is over all of a node's samples, where the authors' code takes the running
    mean of mini-batches. The factor 1/2, and that zbar starts from 0 in each round, are as in that code.
    training.clip bounds the gradients of the network as it is run. The head needs an offset.
    """

    kappa: float = 1.0
    mu: float = 1.0
    sealed: bool = True

    facts = Facts(
        paper="Zhang et al. 2023",
        measured="after_mixing",
        communication="one model and the mean of its features to each neighbour",
        sealed=True,
        free_running=True,
    )
    presets: ClassVar[Presets] = {
        "code": {
            "kappa": 50.0,
            "mu": 1.0,
            "training.epochs": 1,
            "training.batch_size": 10,
            "training.lr": 0.005,
            "training.momentum": 0.0,
            "training.weight_decay": 0.0,
            "training.clip": 0.0,
        },
    }

    def __post_init__(self) -> None:
        require_at_least(0, self, "kappa")
        require_fraction(self, "mu")

    def init(self, node: Node) -> BiasState:
        params, head = node.initial(), Head.of(node)
        none = torch.zeros_like(params[head.weight][:, 0])
        return BiasState(
            params, none, none, torch.zeros(node.rows, dtype=torch.bool), head.with_bias(params, none)
        )

    def round(self, state: BiasState, node: Node) -> Round[BiasState]:
        head = Head.of(node)
        mine = node.train(state.params, active=~state.begun)
        mine, bias = self.trained(mine, state, node)
        node.measure(after_local={**mine, **head.with_bias(mine, bias)})
        mine[_MEAN] = self.first_means(state, mine, node)
        payload = weighted(mine, node.n_samples.float())
        inbox = yield Exchange(payload, sealed=self.sealed, check=judged_by(mine))
        mixed = weighted_mean(payload, cast(dict[str, Params], inbox.sum()), mine)
        mean = mixed.pop(_MEAN)
        begun = torch.ones_like(state.begun)
        return BiasState(mixed, bias, mean, begun, head.with_bias(mixed, bias))

    def personal(self, state: BiasState) -> Params:
        return {**state.params, **state.personal}

    def needs_step(self) -> bool:
        return self.sealed

    def trained(self, params: Params, state: BiasState, node: Node) -> tuple[Params, Tensor]:
        """theta and b after local training of those who have begun."""
        head = Head.of(node)
        beside = {_OFFSET: params[head.offset], _BIAS: state.bias}
        result = node.train(
            {**params, **head.with_bias(params, state.bias), **beside},
            active=state.begun,
            loss=self.loss(state, node),
            around=partial(BiasBeforeHead, head, state.bias),
        )
        offset, bias = result.pop(_OFFSET), result.pop(_BIAS)
        return {**result, head.offset: offset}, bias

    def first_means(self, state: BiasState, params: Params, node: Node) -> Tensor:
        """m of all rows, where those that have just begun get their own.

        Row by row, since the samples of another must not change the bits of a sum.
        """
        means = state.mean.clone()
        for row in (~state.begun).nonzero().flatten().split(1):
            own = {name: some_rows(value, row) for name, value in params.items()}
            features, counted = node.predict(own, rows=row, layer=node.features), node.counted(row)
            means[row] = _mean(features, counted.to(features))
        return means

    def loss(self, state: BiasState, node: Node) -> Loss:
        """F_i and the pull towards m_i."""
        running = torch.zeros_like(state.mean)

        def pulled(outputs: Tensor, features: Tensor, batch: Batch) -> Tensor:
            rows = batch.rows.to(running.device)
            zbar = (1 - self.mu) * running[rows] + self.mu * _mean(features, batch.present)
            running[rows] = zbar.detach()
            away = zbar - state.mean[rows]
            return node.loss(outputs, batch) + self.kappa / 2 * away.square().mean(1)

        return OnFeatures(pulled)


@dataclass(frozen=True)
class Head:
    """The names of the last linear layer: W and c."""

    weight: str
    offset: str

    @classmethod
    def of(cls, node: Node) -> Head:
        names = {name.rpartition(".")[2]: name for name in node.last_layer}
        if not {"weight", "bias"} <= names.keys():
            raise ConfigError(
                "this algorithm adds a bias to what the last linear layer is given, and needs that layer to "
                "train and to have a bias of its own; this model's has "
                f"{', '.join(sorted(names)) or 'nothing that trains'}"
            )
        return cls(names["weight"], names["bias"])

    def with_bias(self, params: Params, bias: Tensor) -> Params:
        """The offset c + W b, by its name."""
        return {self.offset: torch.einsum("roi,ri->ro", params[self.weight], bias) + params[self.offset]}


@dataclass(frozen=True)
class BiasBeforeHead:
    """Lets another rule train W, c and b, from gradients of a network whose offset is c + W b."""

    head: Head
    bias: Tensor  # (rows, features) of all rows of the node
    inner: Update

    def begin(self, params: Params, rows: Tensor) -> Memory:
        return self.inner.begin({**params, _BIAS: some_rows(self.bias, rows)}, rows)

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        head = self.head
        whole = {**params, head.offset: params[_OFFSET]}

        def fold() -> None:
            params[head.offset].copy_(head.with_bias(whole, whole[_BIAS])[head.offset])

        def of_all() -> Gradients:
            fold()
            found = gradient()
            weight, bias, slope = (
                whole[head.weight],
                whole[_BIAS],
                dense(found[head.offset], params[head.offset]),
            )
            return {
                **found,
                head.weight: dense(found[head.weight], weight) + slope[:, :, None] * bias[:, None],
                _BIAS: torch.einsum("roi,ro->ri", weight, slope),
            }

        self.inner.step(whole, memory, of_all, lr, number)
        fold()


def _mean(features: Tensor, present: Tensor | None) -> Tensor:
    """(rows, features) mean over samples and positions that are present."""
    if present is not None and present.dim() != features.dim() - 1:
        raise ConfigError("this algorithm needs a network whose last linear layer makes its outputs")
    values = features.flatten(1, -2)
    if present is None:
        return values.mean(1)
    shares = present.flatten(1)
    return (values * shares[..., None]).sum(1) / shares.sum(1, keepdim=True).clamp(min=1)
