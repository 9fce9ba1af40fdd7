"""Which samples each row sees at each local step, drawn for many rows at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

    def of(self, rows: slice, steps: int) -> Batches:
        """The first steps of some rows, without columns that none of them fills."""
        sizes = self.sizes[rows, :steps]
        return Batches(self.index[rows, :steps, : int(sizes.max())], sizes)


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
    batch_size = min(batch_size, int(n_samples.max()))
    per_epoch = _per_epoch(n_samples, batch_size)
    index = torch.zeros(rows, longest, batch_size, dtype=torch.long)
    alike = bool((n_samples == n_samples[0]).all() and (steps == longest).all())
    for epoch in range(int((steps / per_epoch).ceil().max())):
        going = (epoch * per_epoch < steps).nonzero().flatten()  # few, if some have far less data than others
        samples, width = n_samples[going], int(n_samples[going].max())
        order = replace(stream, ids=stream.ids[going]).permutation(samples, width, index=epoch)
        if alike:  # the batches of an epoch are the order itself, cut: no need to place every sample
            first = epoch * int(per_epoch[0])
            cut = pad(order, (0, int(per_epoch[0]) * batch_size - width)).view(rows, -1, batch_size)
            index[:, first : first + cut.shape[1]] = cut[:, : longest - first]
            continue
        position = torch.arange(width)
        step = epoch * per_epoch[going, None] + position // batch_size  # (going, width)
        row, column = ((position < samples[:, None]) & (step < steps[going, None])).nonzero(as_tuple=True)
        index[going[row], step[row, column], column % batch_size] = order[row, column]
    within_epoch = torch.arange(longest) % per_epoch[:, None]
    sizes = (n_samples[:, None] - within_epoch * batch_size).clamp(max=batch_size)
    return Batches(index, sizes)


def _per_epoch(n_samples: Tensor, batch_size: int) -> Tensor:
    return (n_samples + batch_size - 1) // batch_size
