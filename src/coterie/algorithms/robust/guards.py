"""Guards against members who send bad models: `robust = "..."` of an experiment, around any method."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp
from typing import Protocol

import torch
from torch import Tensor

from coterie.algorithms.robust.received import Messages, middle_of_rows
from coterie.errors import ConfigError, ContractError
from coterie.protocol import Inbox, Node, Params
from coterie.protocol.trees import map_params, some_rows

_WEISZFELD_STEPS = 100
_CLOSE = 1e-8  # distance, relative to the largest, within which a point counts as the median itself


class Guard(Protocol):
    """Makes of what arrived what the method may mix."""

    def __call__(self, messages: Messages, node: Node) -> Inbox: ...


@dataclass(frozen=True)
class Watched:
    """A guard, and a record of how far each sender's model was from the receiver's.

    `far` in the diagnostics is (rows, nodes): the distance over the median distance of the row's messages.
    Rows with fewer than three messages record nothing: among two nobody can tell who is odd.
    """

    guard: Guard

    def __call__(self, messages: Messages, node: Node) -> Inbox:
        if node.rows == 1 or node.evaluating:
            node.record(far=self._far(messages, node))
        return self.guard(messages, node)

    def _far(self, messages: Messages, node: Node) -> Tensor:
        rows = messages.rows
        usual = middle_of_rows(messages.distance, rows, node.rows).clamp(min=1e-12)
        enough = torch.bincount(rows, minlength=node.rows) >= 3
        far = torch.zeros(node.rows, node.graph.nodes, dtype=torch.float64)
        far[rows, messages.senders] = (messages.distance / usual[rows]).nan_to_num(posinf=1e30) * enough[rows]
        return far


@dataclass(frozen=True)
class Clipping:
    """Self-centred clipping (He, Karimireddy and Jaggi 2022).

        z_ij = x_i + clip(x_j - x_i, tau)               clip(v, tau) = v min(1, tau / |v|)

    tau: 0, the default: the median distance of the messages of this round, so that fewer than half of the
    senders cannot move a model further than the others do.
    """

    tau: float = 0.0

    def __post_init__(self) -> None:
        if not self.tau >= 0:
            raise ConfigError(f"tau must be 0 or more, not {self.tau}")

    def __call__(self, messages: Messages, node: Node) -> Inbox:
        distance, rows = messages.distance, messages.rows
        usual = middle_of_rows(distance, rows, node.rows)[rows]
        tau = torch.full_like(distance, self.tau) if self.tau else usual
        return messages.shrunk(
            (tau / distance).nan_to_num(nan=1.0).clamp(max=1).where(distance.isfinite(), 0)
        )


@dataclass(frozen=True)
class Near:
    """The plainest guard: models further away than `times` the median distance are left out.

    The median is that of the messages of this round: fewer than half of the senders cannot move it beyond
    what the others do. Where fewer than three arrive nobody is left out.
    """

    times: float = 3.0

    def __post_init__(self) -> None:
        if not self.times >= 1:
            raise ConfigError(f"times must be 1 or more, not {self.times}")

    def __call__(self, messages: Messages, node: Node) -> Inbox:
        rows = messages.rows
        most = self.times * middle_of_rows(messages.distance, rows, node.rows)
        few = torch.bincount(rows, minlength=node.rows) < 3
        near = (messages.distance <= most[rows]) | (few[rows] & messages.distance.isfinite())
        return messages.shrunk(near.double())


@dataclass(frozen=True)
class Balance:
    """BALANCE (Fang et al. 2024): a model is taken if it is near one's own, and nearer as rounds go by.

    |x_i - x_j| <= gamma exp(-kappa t / T) |x_i|
    """

    gamma: float = 0.3
    kappa: float = 1.0

    def __post_init__(self) -> None:
        if not self.gamma > 0 or not self.kappa >= 0:
            raise ConfigError(f"gamma must be above 0, kappa 0 or more, not {self.gamma}, {self.kappa}")

    def __call__(self, messages: Messages, node: Node) -> Inbox:
        most = self.gamma * exp(-self.kappa * node.round / max(1, node.rounds)) * messages.norm
        return messages.shrunk((messages.distance <= most[messages.rows]).double())


@dataclass(frozen=True)
class Ubar:
    """UBAR (Guo et al. 2021): of the nearest models, those that are no worse on one's own training data.

    share: of the messages that are near enough. Where none is as good as one's own, the best is taken.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must be above 0 and at most 1, not {self.share}")

    def __call__(self, messages: Messages, node: Node) -> Inbox:
        if set(node.names()) - messages.mine.keys():
            raise ContractError("ubar tries models on one's own data, and this method sends parts of them")
        near = self._near(messages)
        rows = messages.rows[near]
        own = node.evaluate(messages.mine, "train").loss
        loss = node.evaluate(messages.stacked(near), "train", rows).loss
        loss = loss.where(loss.isfinite(), torch.inf)
        taken = loss <= own[rows]
        for row in rows.unique().tolist():
            here = (rows == row).nonzero().flatten()
            if not bool(taken[here].any()) and bool(loss[here].isfinite().any()):
                taken[here[loss[here].argmin()]] = True
        factor = torch.zeros(len(near), dtype=torch.float64)
        factor[near] = taken.double()
        return messages.shrunk(factor)

    def _near(self, messages: Messages) -> Tensor:
        near = torch.zeros(len(messages.rows), dtype=torch.bool)
        for row in messages.rows.unique().tolist():
            here = (messages.rows == row).nonzero().flatten()
            order = messages.distance[here].argsort(stable=True)
            near[here[order[: ceil(self.share * len(here))]]] = True
        return near & messages.distance.isfinite()


class _OfAll:
    """Every message becomes one model for each row: made of all that arrived there, and of its own."""

    def of(self, models: Params) -> Params:
        """models: (messages + 1, ...), the row's own first. One model, without an axis of rows."""
        raise NotImplementedError

    def __call__(self, messages: Messages, node: Node) -> Inbox:
        made: dict[int, Params] = {}
        for row in messages.rows.unique().tolist():
            others = messages.stacked((messages.rows == row) & messages.distance.isfinite())
            own = map_params(lambda leaf, row=row: leaf[row : row + 1], messages.mine)
            made[row] = self.of(map_params(lambda a, b: torch.cat((a, b)), own, others))
        rows = list(made)
        stacked = {name: torch.stack([made[row][name] for row in rows]) for name in messages.mine}
        place = torch.searchsorted(torch.tensor(rows), messages.rows)
        models = map_params(lambda leaf: some_rows(leaf, place), stacked)
        return messages.replaced(torch.ones(len(messages.rows), dtype=torch.bool), models)


@dataclass(frozen=True)
class TrimmedMean(_OfAll):
    """Coordinate by coordinate the mean without the `trim` largest and the `trim` smallest values.

    What arrived and one's own model count alike (Yin et al. 2018). The median remains where too few arrived.
    """

    trim: int = 1

    def __post_init__(self) -> None:
        if self.trim < 0:
            raise ConfigError(f"trim must be 0 or more, not {self.trim}")

    def of(self, models: Params) -> Params:
        return map_params(self._mean, models)

    def _mean(self, values: Tensor) -> Tensor:
        trim = min(self.trim, (len(values) - 1) // 2)
        return values.sort(0).values[trim : len(values) - trim].mean(0)


@dataclass(frozen=True)
class GeometricMedian(_OfAll):
    """The model with the smallest sum of distances to all, by Weiszfeld's iteration (Pillutla et al.)."""

    def of(self, models: Params) -> Params:
        points = torch.cat([leaf.double().flatten(1) for leaf in models.values()], 1)
        flat = geometric_median(points)
        parts = flat.split([leaf[0].numel() for leaf in models.values()])
        return {
            name: part.reshape(leaf.shape[1:]).to(leaf)
            for (name, leaf), part in zip(models.items(), parts, strict=True)
        }


def geometric_median(points: Tensor) -> Tensor:
    """(d,) of (n, d) points in double precision; begun at the coordinate-wise median."""
    centre = points.median(0).values
    for _ in range(_WEISZFELD_STEPS):
        distance = (points - centre).norm(dim=1)
        weight = 1 / distance.clamp(min=_CLOSE * max(float(distance.max()), 1e-12))
        moved = (weight[:, None] * points).sum(0) / weight.sum()
        if float((moved - centre).norm()) <= 1e-12 * float(points.norm()):
            return moved
        centre = moved
    return centre
