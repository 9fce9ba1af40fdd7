"""Lies on purpose: `faults.byzantine` of an experiment says which peers tell which.

A lie changes what receivers get from a liar. The liar itself trains and mixes as the others do. Lies that
need to know the honest models know those that reach the same receiver, and the receiver's own: they are as
strong as in the papers, where attackers see everything and may tell everyone something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import torch
from torch import Tensor

from coterie.algorithms.robust.received import Messages
from coterie.protocol import Inbox, Node, Params
from coterie.protocol.trees import map_params


class Attack(Protocol):
    def __call__(self, messages: Messages, lies: Tensor, node: Node) -> Params:
        """The models that liars send: one for each message where `lies` holds, in their order."""


@dataclass(frozen=True)
class Lying:
    """liars: (k,) ids of those who tell this lie."""

    attack: Attack
    liars: tuple[int, ...]

    def __call__(self, messages: Messages, node: Node) -> Inbox:
        lies = torch.isin(messages.senders, torch.tensor(self.liars))
        if not bool(lies.any()):
            return messages.inbox
        return messages.replaced(lies, self.attack(messages, lies, node))


@dataclass(frozen=True)
class Scaling:
    """The model times a factor."""

    factor: float = 10.0

    def __call__(self, messages: Messages, lies: Tensor, node: Node) -> Params:
        return map_params(lambda leaf: leaf * self.factor, messages.stacked(lies))


@dataclass(frozen=True)
class SignFlip(Scaling):
    """The model with the opposite sign."""

    factor: float = -1.0


@dataclass(frozen=True)
class Gaussian:
    """Noise in the place of a model."""

    deviation: float = 1.0

    def __call__(self, messages: Messages, lies: Tensor, node: Node) -> Params:
        sent = messages.stacked(lies)
        size = sum(leaf[0].numel() for leaf in sent.values())
        drawn = []
        for row, sender in zip(messages.rows[lies].tolist(), messages.senders[lies].tolist(), strict=True):
            u = node.rng("byzantine").uniform(2 * size, index=sender)[row].double()
            radius = (-2 * u[:size].clamp(min=1e-12).log()).sqrt()  # Box and Muller
            drawn.append(self.deviation * radius * (2 * torch.pi * u[size:]).cos())
        parts = torch.stack(drawn).split([leaf[0].numel() for leaf in sent.values()], 1)
        return {
            name: part.reshape(leaf.shape).to(leaf)
            for (name, leaf), part in zip(sent.items(), parts, strict=True)
        }


class _Knowing:
    """Lies made of the honest models that reach the same receiver, and of its own."""

    def told(self, own: Params, honest: Params, liars: int) -> Params:
        """One model. own: (1, ...) the receiver's. honest: (k, ...) that reach it. liars: how many do."""
        raise NotImplementedError

    def __call__(self, messages: Messages, lies: Tensor, node: Node) -> Params:
        made: dict[int, Params] = {}
        for row, here in _by_row(messages.rows, lies):
            own = map_params(lambda leaf, row=row: leaf[row : row + 1], messages.mine)
            honest = messages.stacked((messages.rows == row) & ~lies)
            made[row] = self.told(own, honest, here)
        rows = messages.rows[lies].tolist()
        return {name: torch.stack([made[row][name] for row in rows]) for name in messages.mine}


def _by_row(rows: Tensor, lies: Tensor) -> Iterator[tuple[int, int]]:
    """Receivers of lies, and how many each gets."""
    receivers, counts = rows[lies].unique(return_counts=True)
    yield from zip(receivers.tolist(), counts.tolist(), strict=True)


def _all(own: Params, honest: Params) -> Params:
    return map_params(lambda a, b: torch.cat((a, b)), own, honest)


@dataclass(frozen=True)
class InnerProduct(_Knowing):
    """IPM (Xie et al. 2020): against the mean of the honest, -epsilon / k sum_j x_j."""

    epsilon: float = 0.1

    def told(self, own: Params, honest: Params, liars: int) -> Params:
        return map_params(lambda leaf: -self.epsilon * leaf.mean(0), _all(own, honest))


@dataclass(frozen=True)
class ALittleIsEnough(_Knowing):
    """ALIE (Baruch et al. 2019): mean - z deviation, coordinate by coordinate.

    z: 0: as large as still hides among the honest, by their number and that of the liars.
    """

    z: float = 0.0

    def told(self, own: Params, honest: Params, liars: int) -> Params:
        everyone = _all(own, honest)
        count = len(next(iter(everyone.values())))
        z = self.z or _hidden(count + liars, liars)
        return map_params(lambda leaf: leaf.mean(0) - z * leaf.std(0, correction=0), everyone)


def _hidden(nodes: int, liars: int) -> float:
    supporters = nodes // 2 + 1 - liars
    share = (nodes - liars - supporters) / (nodes - liars)
    return NormalDist().inv_cdf(share) if 0.5 < share < 1 else 0.0


@dataclass(frozen=True)
class Dissensus(_Knowing):
    """Away from agreement (He, Karimireddy and Jaggi 2022): x_i - epsilon sum_k (x_k - x_i) / liars."""

    epsilon: float = 1.0

    def told(self, own: Params, honest: Params, liars: int) -> Params:
        def away(mine: Tensor, others: Tensor) -> Tensor:
            return mine[0] - self.epsilon * (others - mine).sum(0) / liars

        return map_params(away, own, honest)


@dataclass(frozen=True)
class Mimic(_Knowing):
    """All liars repeat one honest peer (Karimireddy, He and Jaggi 2022): the first of those that reach it."""

    def told(self, own: Params, honest: Params, liars: int) -> Params:
        return map_params(lambda mine, others: torch.cat((others, mine))[0], own, honest)
