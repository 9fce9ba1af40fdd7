"""Validation data: the best model so far by their loss, which PPDL and its baselines report."""

from __future__ import annotations

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


def require_validation(node: Node, what: str) -> None:
    """Refuse to start where a peer has no validation data. what: the algorithm does with them."""
    without = node.evaluate(node.initial(), "validation").loss.isnan() & ~node.is_hub
    if bool(without.any()):
        raise ConfigError(
            f"this algorithm {what}, and a peer has no validation data; "
            "set splitting.validation to a fraction such as 0.2"
        )
