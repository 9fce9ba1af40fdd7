"""Validation data: the best model so far by their loss, which PPDL and its baselines report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.protocol import Node, Params
from coterie.protocol.trees import where_rows


@dataclass(frozen=True)
class Best:
    """Each row's model with the lowest validation loss; without validation data, the latest model."""

    params: Params
    loss: Tensor  # (rows,) infinite before the first measurement

    @classmethod
    def first(cls, params: Params, node: Node) -> Best:
        return cls(params, torch.full((node.rows,), float("inf"))).seen(params, node)

    def seen(self, params: Params, node: Node) -> Best:
        """Take over the rows whose validation loss improved."""
        loss = node.evaluate(params, "validation").loss
        improved = loss.isnan() | (loss < self.loss)
        return Best(
            where_rows(improved, params, self.params),
            torch.where(loss.isnan(), self.loss, loss.minimum(self.loss)),
        )


@dataclass(frozen=True)
class Guard:
    """Which of several models each row uses, by running means of their validation losses, with hysteresis.

    A row begins with the first, and stays with it where it has no validation data.
    """

    choice: Tensor  # (rows,)
    loss: Tensor  # (rows, models) NaN before the first measurement

    @classmethod
    def none(cls, rows: int, models: int) -> Guard:
        return cls(torch.zeros(rows, dtype=torch.long), torch.full((rows, models), float("nan")))

    def seen(self, loss: Tensor, memory: float, margin: float) -> Guard:
        """Another model takes over once its mean loss is lower by the margin, a share of the present one."""
        mean = torch.where(self.loss.isnan(), loss, memory * self.loss + (1 - memory) * loss)
        best = mean.nan_to_num(torch.inf).argmin(1)
        now, then = mean.gather(1, self.choice[:, None])[:, 0], mean.gather(1, best[:, None])[:, 0]
        return Guard(torch.where(then < (1 - margin) * now, best, self.choice), mean)

    def chosen(self, models: Sequence[Params]) -> Params:
        """Row by row the model of its choice."""
        result = dict(models[0])
        for number, model in enumerate(models[1:], 1):
            result = where_rows(self.choice == number, model, result)
        return result


def require_validation(node: Node, what: str) -> None:
    """Refuse to start where a peer has no validation data. what: the algorithm does with them."""
    without = node.evaluate(node.initial(), "validation").loss.isnan() & ~node.is_hub
    if bool(without.any()):
        raise ConfigError(
            f"this algorithm {what}, and a peer has no validation data; "
            "set splitting.validation to a fraction such as 0.2"
        )
