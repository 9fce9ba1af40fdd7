"""One call of `node.train` on some rows: its settings, its loss, its mini-batches and its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.data import Federation
from coterie.data.federation import at, bytes_of_one, gathered, unbound
from coterie.data.targets import positions_present
from coterie.errors import ConfigError
from coterie.inputs import Inputs
from coterie.learning.augmentation import Augmented
from coterie.learning.batched import BatchedModel
from coterie.learning.schedules import learning_rates
from coterie.learning.updates import (
    SGD,
    Adam,
    Gradients,
    Memory,
    Proximal,
    Rate,
    Update,
    clipped,
    mean_gradients,
    recall,
    remember,
)
from coterie.protocol.node import Batch, Loss, Prepare, Samples
from coterie.protocol.trees import Params
from coterie.randomness import Stream
from coterie.training import Training

_GATHER_BYTES = 4 << 20  # inputs of training batches that are gathered together
_PREPARED_BYTES = 256 << 20  # outputs of a teacher that are looked up together
_PREPARED_STEPS = 64  # local steps for which a loss prepares at once
_NOISE = 1 << 31  # index of the seeds of random layers; the indices from 0 on are the epochs' batches


def optimiser(training: Training) -> Update:
    """The rule that turns gradients into steps."""
    if training.optimizer == "sgd":
        return SGD(training.momentum, training.weight_decay, training.nesterov)
    return Adam(
        weight_decay=training.weight_decay,
        decoupled=training.optimizer == "adamw",
        counting=training.optimizer_state == "kept",
    )


@dataclass(frozen=True)
class LocalWork:
    """One call of `node.train`, resolved: the settings, and what the algorithm added."""

    training: Training
    update: Update
    round: int
    rounds: int
    stream: str = "batches"
    memory: str = "batches"  # whose optimiser's memory it goes on with, where that is kept
    epochs: Tensor | None = None  # (rows,) uneven compute
    augmented: Augmented | None = None
    batches_per_step: int = 1  # mini-batches that the update rule needs for what counts as one step
    batches: Tensor | None = None  # (rows,) mini-batches, where the round's budget says how many
    taken: Tensor | None = None  # (rows,) mini-batches of the epoch that an earlier call took

    @classmethod
    def resolve(
        cls,
        training: Training,
        round: int,
        settings: dict[str, Any],
        ids: Tensor | None = None,
        rounds: int = 1,
    ) -> LocalWork:
        """Combine the experiment's settings with an algorithm's overrides. ids: of the rows.

        rounds: how many the experiment has, over which learning rates are scheduled.
        """
        settings = dict(settings)
        groups = training.epoch_groups
        if {"epochs", "steps"} & settings.keys():
            groups = 0  # the algorithm's own number of epochs, for all
        update: Callable[[Training], Update] = settings.pop("update", optimiser)
        stream = settings.pop("stream", "batches")
        memory = settings.pop("memory", stream)
        uneven = settings["epochs"] if isinstance(settings.get("epochs"), Tensor) else None
        if uneven is not None:
            del settings["epochs"]
        elif groups and ids is not None:
            uneven = 1 + ids % groups
        mu, anchor = settings.pop("proximal", (0.0, None))
        per_step = settings.pop("batches_per_step", 1)
        around: Callable[[Update], Update] | None = settings.pop("around", None)
        merged = _changed(training, epoch_groups=groups, **settings)
        if settings.get("momentum") and merged.optimizer != "sgd":
            raise ConfigError(
                f"the algorithm has a momentum of its own, {settings['momentum']}, which training.optimizer "
                f"{merged.optimizer!r} has no use for; take 'sgd', or set the algorithm's momentum to 0"
            )
        rule = update(merged)
        if around is not None:
            rule = around(rule)
        if isinstance(mu, Tensor) or mu:
            rule = Proximal(mu, anchor, rule)
        augmented = Augmented.named(merged.augment) if merged.augment else None
        return cls(merged, rule, round, rounds, stream, memory, uneven, augmented, per_step)

    def rates(self, steps: Tensor) -> list[Rate]:
        """The learning rate of each step. steps: (rows,) of each row, sorted from most to least."""
        if self.training.schedule == "constant" and not self.training.warmup:
            return [self.training.lr * self.training.lr_decay ** max(self.round, 0)] * int(steps[0])
        return learning_rates(self.training, self.round, self.rounds, steps)


@lru_cache(maxsize=256)
def _changed(training: Training, **changes: Any) -> Training:
    """The experiment's settings with an algorithm's own: checked once, and not in every round.

    Nesterov's momentum goes where an algorithm takes steps without any.
    """
    if changes.get("momentum") == 0:
        changes["nesterov"] = False
    return Training(**{**vars(training), **changes})


@dataclass(frozen=True)
class Batches:
    """Mini-batches of some rows: positions in each row's training data."""

    index: Tensor  # (rows, steps, batch)
    sizes: Tensor  # (rows, steps) samples in each batch; the last batch of an epoch may be smaller

    def of(self, rows: slice, steps: int) -> Batches:
        """The first steps of some rows, without columns that none of them fills."""
        sizes = self.sizes[rows, :steps]
        return Batches(self.index[rows, :steps, : int(sizes.max())], sizes)

    def after(self, taken: Tensor) -> Batches:
        """Without the first so many steps of each row."""
        steps = self.sizes.shape[1] - int(taken.min())
        place = (taken[:, None] + torch.arange(steps)).clamp(max=self.sizes.shape[1] - 1)
        index = self.index.gather(1, place[..., None].expand(-1, -1, self.index.shape[2]))
        return Batches(index, self.sizes.gather(1, place))


def local_steps(n_samples: Tensor, work: LocalWork) -> Tensor:
    """(rows,) number of mini-batches; rows without data take none."""
    training = work.training
    if work.batches is not None:
        return torch.where(n_samples > 0, work.batches, 0)
    if training.steps is not None:
        steps = torch.full_like(n_samples, training.steps)
    else:
        epochs = torch.full_like(n_samples, training.epochs) if work.epochs is None else work.epochs
        steps = epochs * _per_epoch(n_samples, training.batch_size)
    return torch.where(n_samples > 0, steps * work.batches_per_step, 0)


def draw_batches(
    stream: Stream, n_samples: Tensor, steps: Tensor, batch_size: int, taken: Tensor | None = None
) -> Batches:
    """Shuffle each row's samples in every epoch and cut them into batches, until its steps are done.

    taken: (rows,) batches of the first epoch that are left out.
    """
    if taken is not None and bool(taken.any()):
        return draw_batches(stream, n_samples, taken + steps, batch_size).after(taken)
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
    kept: Memory | None = None  # of all rows of the node, from the rounds before; changed in place

    def run(self, params: Params) -> Tensor:
        """Train in place; returns the mean loss over the steps of each row."""
        longest = int(self.steps[0])
        together = self.work.training.accumulate
        feed, rates = self._feed(longest), self.work.rates(-(-self.steps // together))
        memory = self.work.update.begin({name: params[name] for name in self.only}, self.rows)
        if self.kept is not None:
            recall(memory, self.kept, self.rows)
        total = torch.zeros(len(self.rows))
        taking = (self.steps[:, None] > torch.arange(longest)).sum(0).tolist()  # rows at each step
        active, update = -1, self.work.update
        for number, rate in enumerate(rates):
            first = number * together
            if taking[first] != active:  # rows with fewer steps are at the end: drop them
                active = taking[first]
                now = {name: value[:active] for name, value in params.items()}
                kept = {key: {n: v[:active] for n, v in tree.items()} for key, tree in memory.items()}
            steps = range(first, min(first + together, longest))
            batches = [(feed.batch(step, taking[step]), taking[step]) for step in steps]
            losses: list[Tensor] = []
            update.step(now, kept, partial(self._gradient, now, batches, losses), rate, number)
            # At the last place where the rule asked.
            for (_, rows), found in zip(batches, losses[-len(batches) :], strict=False):
                total[:rows].add_(found.cpu())
        if self.kept is not None:
            remember(memory, self.kept, self.rows)
        mean = total / self.steps
        return mean.masked_fill(mean.isnan(), float("inf"))  # NaN is kept for 'took no step'

    def _gradient(self, now: Params, batches: list[tuple[Batch, int]], losses: list[Tensor]) -> Gradients:
        """The mean over batches of so many rows each; the last ones may lack some. Notes the losses."""
        found, gradients = self.model.gradients(now, batches[0][0], self.loss, self.only)
        losses.append(found)
        if len(batches) > 1:
            parts = [gradients]
            for batch, rows in batches[1:]:
                own = {name: value[:rows] for name, value in now.items()}
                found, gradients = self.model.gradients(own, batch, self.loss, self.only)
                losses.append(found)
                parts.append(gradients)
            gradients = mean_gradients(parts, now)
        clip = self.work.training.clip
        return clipped(gradients, clip) if clip else gradients

    def _feed(self, longest: int) -> Feed:
        """The batches of all steps, as places in the pool."""
        held, batches = self.federation.held(self.federation.train, self.rows), self.batches
        index = batches.index.transpose(0, 1).contiguous()
        pool = held.places(index)
        trims = self.model.one_by_one
        own = replace(self.stream, ids=self.stream.ids[self.rows])
        return Feed(
            self.federation,
            self.rows,
            index,
            held.x,
            pool,
            held.targets(pool),
            batches.sizes.T.contiguous(),
            (batches.sizes < index.shape[2]).any(0).tolist(),
            own.bits(longest, index=_NOISE).T.contiguous() if trims else None,
            trims,
            self.prepare,
            self.work.augmented,
            own,
        )


@dataclass
class Feed:
    """The mini-batches of one chunk, step by step.

    As much as possible is gathered for many steps in one go: small operations at every step cost more than
    the gathering itself.
    """

    federation: Federation
    rows: Tensor
    index: Tensor  # (steps, rows, batch) positions in each row's training data
    samples: Inputs  # (pool, ...)
    pool: Tensor  # (steps, rows, batch) places in it
    y: Tensor  # (steps, rows, batch)
    sizes: Tensor  # (steps, rows)
    partial: list[bool]  # (steps,) whether some row's batch is smaller than the others
    noise: Tensor | None  # (steps, rows)
    trims: bool  # one row at a time: cut its batch instead of padding it
    prepare: Prepare | None
    augmented: Augmented | None
    stream: Stream  # of these rows

    def __post_init__(self) -> None:
        self._views = list(zip(self.index.unbind(), self.y.unbind(), strict=True))
        self._rows = len(self.rows)
        self._prepared: dict[str, tuple[Tensor, ...]] = {}  # by step, from the last one asked for on
        per_step = self.pool[0].numel() * bytes_of_one(self.samples)
        self._ahead = max(1, _GATHER_BYTES // max(1, per_step))  # steps whose inputs are gathered together
        self._inputs: tuple[Inputs, ...] = ()
        self.positions = self.federation.targets == "tokens"  # some of which may be padding
        teacher = 4 * self.y[0].numel() * self.federation.n_classes  # bytes of its outputs in a step
        self._steps_prepared = max(1, min(_PREPARED_STEPS, _PREPARED_BYTES // max(1, teacher)))

    def batch(self, step: int, active: int) -> Batch:
        """The batch of a step, which follow each other, of the first `active` rows."""
        x, prepared = self._x(step), self._what_the_loss_needs(step)
        index, y = self._views[step]
        present, rows = None, self.rows
        if active < self._rows:
            x = at(x, slice(active))
            index, y, rows = index[:active], y[:active], rows[:active]
            prepared = {name: found[:active] for name, found in prepared.items()}
        if self.partial[step]:
            sizes = self.sizes[step, :active]
            if self.trims:
                size = int(sizes[0])
                x = at(x, (slice(None), slice(size)))
                index, y = index[:, :size], y[:, :size]
                prepared = {name: found[:, :size] for name, found in prepared.items()}
            else:
                present = self._present(sizes)
        if self.augmented is not None:
            assert isinstance(x, Tensor)  # or the experiment was refused
            x = self.augmented(x, replace(self.stream, ids=self.stream.ids[:active]), step)
        if self.positions:
            present = positions_present(y, present)
        noise = None if self.noise is None else self.noise[step, :active]
        return Batch(y, rows, index, present, x, noise, prepared)

    def _x(self, step: int) -> Inputs:
        """(rows, batch, ...) inputs of a step."""
        if step % self._ahead == 0:
            self._inputs = unbound(gathered(self.samples, self.pool[step : step + self._ahead]))
        return self._inputs[step % self._ahead]

    def _what_the_loss_needs(self, step: int) -> Params:
        """(rows, batch, ...) what `prepare` finds for the samples of a step."""
        if self.prepare is None:
            return {}
        if step % self._steps_prepared == 0:
            ahead = slice(step, step + self._steps_prepared)
            y, index, sizes = self.y[ahead], self.index[ahead], self.sizes[ahead]
            present = self._present(sizes.flatten()) if any(self.partial[ahead]) else None
            if self.positions:
                present = positions_present(y.flatten(0, 1), present)
            samples = Samples(y.flatten(0, 1), self.rows.repeat(len(y)), index.flatten(0, 1), present)
            found = self.prepare(samples)
            self._prepared = {n: value.unflatten(0, sizes.shape).unbind() for n, value in found.items()}
        return {name: found[step % self._steps_prepared] for name, found in self._prepared.items()}

    def _present(self, sizes: Tensor) -> Tensor:
        return (torch.arange(self.index.shape[2]) < sizes[:, None]).float().to(self.y.device)
