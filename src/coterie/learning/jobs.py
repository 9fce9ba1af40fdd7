"""Local training of one chunk of rows: its mini-batches, and all its steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.data import Federation
from coterie.learning.batched import BatchedModel
from coterie.learning.batches import Batches
from coterie.learning.settings import LocalWork
from coterie.learning.updates import Gradients, clipped
from coterie.protocol.node import Batch, Loss, Prepare, Samples
from coterie.protocol.trees import Params
from coterie.randomness import Stream

_GATHER_BYTES = 4 << 20  # inputs of training batches that are gathered together
_PREPARED_STEPS = 64  # local steps for which a loss prepares at once
_NOISE = 1 << 31  # index of the seeds of random layers; the indices from 0 on are the epochs' batches


@dataclass(frozen=True)
class Job:
    """Local training of one chunk of rows, sorted by falling number of steps."""

    model: BatchedModel
    federation: Federation
    rows: Tensor
    stream: Stream
    work: LocalWork
    loss: Loss
    only: tuple[str, ...]
    steps: Tensor
    prepare: Prepare | None
    batches: Batches

    def run(self, params: Params) -> Tensor:
        """Train in place; returns the mean loss over the steps of each row."""
        longest = int(self.steps[0])
        feed = self._feed(longest)
        memory = self.work.update.begin({name: params[name] for name in self.only}, self.rows)
        total = torch.zeros(len(self.rows))
        taking = (self.steps[:, None] > torch.arange(longest)).sum(0).tolist()  # rows at each step
        active = -1
        for step, rows in enumerate(taking):
            if rows != active:  # rows with fewer steps are at the end: drop them
                active = rows
                now = {name: value[:active] for name, value in params.items()}
                kept = {key: {n: v[:active] for n, v in tree.items()} for key, tree in memory.items()}
            batch = feed.batch(step, active)
            losses: list[Tensor] = []

            def gradient(batch: Batch = batch, now: Params = now, losses: list[Tensor] = losses) -> Gradients:
                found, gradients = self.model.gradients(now, batch, self.loss, self.only)
                losses.append(found)
                clip = self.work.training.clip
                return clipped(gradients, clip) if clip else gradients

            self.work.update.step(now, kept, gradient, self.work.lr, step)
            if losses:
                total[:active] += losses[-1].cpu()
        mean = total / self.steps
        return mean.masked_fill(mean.isnan(), float("inf"))  # NaN is kept for 'took no step'

    def _feed(self, longest: int) -> Feed:
        """The batches of all steps, as places in the pool."""
        split, batches = self.federation.train, self.batches
        index = batches.index.transpose(0, 1).contiguous()
        pool = split.index[split.offsets[self.rows][:, None] + index].to(self.federation.x.device)
        trims = self.model.one_by_one
        return Feed(
            self.federation,
            self.rows,
            index,
            pool,
            self.federation.y[pool],
            batches.sizes.T.contiguous(),
            (batches.sizes < index.shape[2]).any(0).tolist(),
            self._noise(longest) if trims else None,
            trims,
            self.prepare,
        )

    def _noise(self, longest: int) -> Tensor:
        own = replace(self.stream, ids=self.stream.ids[self.rows])
        return own.bits(longest, index=_NOISE).T.contiguous()


@dataclass
class Feed:
    """The mini-batches of one chunk, step by step.

    As much as possible is gathered for many steps in one go: small operations at every step cost more than
    the gathering itself.
    """

    federation: Federation
    rows: Tensor
    index: Tensor  # (steps, rows, batch) positions in each row's training data
    pool: Tensor  # (steps, rows, batch) positions in the pool
    y: Tensor  # (steps, rows, batch)
    sizes: Tensor  # (steps, rows)
    partial: list[bool]  # (steps,) whether some row's batch is smaller than the others
    noise: Tensor | None  # (steps, rows)
    trims: bool  # one row at a time: cut its batch instead of padding it
    prepare: Prepare | None

    def __post_init__(self) -> None:
        self._views = list(zip(self.index.unbind(), self.y.unbind(), strict=True))
        self._prepared: dict[str, tuple[Tensor, ...]] = {}  # by step, from the last one asked for on
        per_step = self.pool[0].numel() * self.federation.x[:1].nbytes
        self._ahead = max(1, _GATHER_BYTES // max(1, per_step))  # steps whose inputs are gathered together
        self._inputs: tuple[Tensor, ...] = ()

    def batch(self, step: int, active: int) -> Batch:
        """The batch of a step, which follow each other, of the first `active` rows."""
        x, prepared = self._x(step), self._what_the_loss_needs(step)
        index, y = self._views[step]
        present, rows = None, self.rows
        if active < len(rows):
            x, index, y, rows = x[:active], index[:active], y[:active], rows[:active]
            prepared = {name: found[:active] for name, found in prepared.items()}
        if self.partial[step]:
            sizes = self.sizes[step, :active]
            if self.trims:
                size = int(sizes[0])
                x, index, y = x[:, :size], index[:, :size], y[:, :size]
                prepared = {name: found[:, :size] for name, found in prepared.items()}
            else:
                present = self._present(sizes)
        noise = None if self.noise is None else self.noise[step, :active]
        return Batch(y, rows, index, present, x, noise, prepared)

    def _x(self, step: int) -> Tensor:
        """(rows, batch, ...) inputs of a step."""
        if step % self._ahead == 0:
            pool, x = self.pool[step : step + self._ahead], self.federation.x
            self._inputs = x.index_select(0, pool.flatten()).view(*pool.shape, *x.shape[1:]).unbind()
        return self._inputs[step % self._ahead]

    def _what_the_loss_needs(self, step: int) -> Params:
        """(rows, batch, ...) what `prepare` finds for the samples of a step."""
        if self.prepare is None:
            return {}
        if step % _PREPARED_STEPS == 0:
            ahead = slice(step, step + _PREPARED_STEPS)
            y, index, sizes = self.y[ahead], self.index[ahead], self.sizes[ahead]
            present = self._present(sizes.flatten()) if any(self.partial[ahead]) else None
            samples = Samples(y.flatten(0, 1), self.rows.repeat(len(y)), index.flatten(0, 1), present)
            found = self.prepare(samples)
            self._prepared = {n: value.unflatten(0, sizes.shape).unbind() for n, value in found.items()}
        return {name: found[step % _PREPARED_STEPS] for name, found in self._prepared.items()}

    def _present(self, sizes: Tensor) -> Tensor:
        return (torch.arange(self.index.shape[2]) < sizes[:, None]).float().to(self.y.device)
