"""The best model so far by validation loss, which PPDL and its baselines report."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
