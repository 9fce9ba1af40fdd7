"""Which samples each row sees at each local step, drawn for many rows at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.learning.settings import LocalWork
from coterie.randomness import Stream


@dataclass(frozen=True)
class Batches:
    """Mini-batches of some rows: positions in each row's training data."""

    index: Tensor  # (rows, steps, batch)
    sizes: Tensor  # (rows, steps) samples in each batch; the last batch of an epoch may be smaller


def local_steps(n_samples: Tensor, work: LocalWork) -> Tensor:
    """(rows,) number of mini-batches; rows without data take none."""
    training = work.training
    if training.steps is not None:
        steps = torch.full_like(n_samples, training.steps)
    else:
        epochs = torch.full_like(n_samples, training.epochs) if work.epochs is None else work.epochs
        steps = epochs * _per_epoch(n_samples, training.batch_size)
    return torch.where(n_samples > 0, steps * work.batches_per_step, 0)


def draw_batches(stream: Stream, n_samples: Tensor, steps: Tensor, batch_size: int) -> Batches:
    """Shuffle each row's samples in every epoch and cut them into batches, until its steps are done."""
    rows, longest = len(n_samples), int(steps.max())
    width = int(n_samples.max())
    batch_size = min(batch_size, width)
    per_epoch = _per_epoch(n_samples, batch_size)
    position = torch.arange(width)
    index = torch.zeros(rows, longest, batch_size, dtype=torch.long)
    alike = bool((n_samples == width).all() and (steps == longest).all())
    for epoch in range(int((steps / per_epoch).ceil().max())):
        order = stream.permutation(n_samples, width, index=epoch)
        if alike:  # the batches of an epoch are the order itself, cut: no need to place every sample
            first = epoch * int(per_epoch[0])
            cut = pad(order, (0, int(per_epoch[0]) * batch_size - width)).view(rows, -1, batch_size)
            index[:, first : first + cut.shape[1]] = cut[:, : longest - first]
            continue
        step = epoch * per_epoch[:, None] + position // batch_size  # (rows, width)
        row, column = ((position < n_samples[:, None]) & (step < steps[:, None])).nonzero(as_tuple=True)
        index[row, step[row, column], column % batch_size] = order[row, column]
    within_epoch = torch.arange(longest) % per_epoch[:, None]
    sizes = (n_samples[:, None] - within_epoch * batch_size).clamp(max=batch_size)
    return Batches(index, sizes)


def _per_epoch(n_samples: Tensor, batch_size: int) -> Tensor:
    return (n_samples + batch_size - 1) // batch_size
