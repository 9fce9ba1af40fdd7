"""How much each row has trained in a round, and how much it may where all methods get equal local work.

Work is counted in mini-batches. One on which a method takes several gradients, as DFedSAM and pFedMe do,
counts once: the samples seen are what is equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WorkDone:
    """Local work of each row in a round; what was done before the first round is work of the first."""

    gradient_steps: Tensor  # (rows,) mini-batches
    samples_seen: Tensor  # (rows,)
    trained: Tensor  # (rows,) those of the mini-batches that were the round's own training

    @classmethod
    def none(cls, rows: int) -> WorkDone:
        return cls(*(torch.zeros(rows, dtype=torch.long) for _ in range(3)))

    def and_then(self, steps: Tensor, n_samples: Tensor, batch_size: int, trained: bool) -> WorkDone:
        """With the mini-batches of one more call; trained: it was the round's own training."""
        return WorkDone(
            self.gradient_steps + steps,
            self.samples_seen + samples_in(steps, n_samples, batch_size),
            self.trained + steps * trained,
        )


def samples_in(steps: Tensor, n_samples: Tensor, batch_size: int) -> Tensor:
    """(rows,) samples in so many mini-batches from the start of an epoch, whose last may be smaller."""
    per_epoch = ((n_samples + batch_size - 1) // batch_size).clamp(min=1)
    return steps // per_epoch * n_samples + (steps % per_epoch * batch_size).minimum(n_samples)


def due(budget: Tensor, share: float | Tensor, round: int, per_step: int = 1) -> Tensor:
    """(rows,) mini-batches of this round once `share` of its budget is used up.

    per_step: mini-batches in what counts as one step. What rounding takes from a round it gives to another:
    of a budget of one mini-batch, two phases with half of it take turns.
    """

    def until(round: int) -> Tensor:
        return (budget.double() * share * round / per_step + 0.5).floor().long() * per_step

    return until(round + 1) - until(round)
