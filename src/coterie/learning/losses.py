"""Losses on (rows, batch, classes) logits: one value per row, so that one backward pass serves all."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from coterie.protocol.node import Batch


def sample_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(rows, batch) cross-entropy of each sample."""
    return functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """(rows,) mean cross-entropy of each row's batch."""
    return batch.mean(sample_cross_entropy(logits, batch.y))
