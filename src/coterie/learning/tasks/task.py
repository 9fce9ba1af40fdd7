"""Tasks: what a model's outputs mean, what is lost when they are wrong, and how they are scored.

Outputs are (rows, batch, outputs), and (rows, batch, positions, outputs) where there is a target at each
position of a sequence. Adding a task: a subclass of one of these; `docs/tasks.md` has an example.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import one_hot

from coterie.data import Federation
from coterie.data.targets import Targets
from coterie.errors import ConfigError
from coterie.metric import Metric
from coterie.protocol.node import Batch, Loss, Scores
from coterie.protocol.trees import Params, mean_per_row
from coterie.training import Training

_SMALLEST = 1e-12  # probabilities have a logarithm


@dataclass(frozen=True)
class MeanMetric(Metric):
    """A metric that is a mean over samples, or made of one, so that it is added up part by part."""

    of_samples: Callable[[Any, Tensor, Tensor], Tensor] = field(kw_only=True)  # task, outputs, y
    finish: Callable[[Tensor], Tensor] | None = None  # what makes the metric of the mean


@dataclass(frozen=True)
class WholeMetric(Metric):
    """A metric that has to see all of a peer's answers at once."""

    of_all: Callable[[NDArray[Any], NDArray[Any]], float] = field(kw_only=True)  # y, predictions


def is_right(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    return task.decided(outputs) == y


def losses_of(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    return task.losses(outputs, y)


ACCURACY = MeanMetric("accuracy", percent=True, of_samples=is_right)
LOG_LOSS = MeanMetric("log_loss", False, of_samples=losses_of)


@dataclass(frozen=True)
class Task:
    """What learning means. The defaults are those of a loss and a divergence that a subclass gives."""

    name: ClassVar[str] = ""
    targets: ClassVar[Targets] = "classes"
    labels_are_classes: ClassVar[bool] = False  # so that each class may have a weight of its own
    offers: ClassVar[tuple[MeanMetric, ...]] = ()  # metrics that need no extra; the first is the default

    metrics: tuple[Metric, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", self.offers[:1])

    def scored_by(self, metrics: Sequence[Metric]) -> Self:
        """The same task with other metrics, the main one first."""
        task = copy.copy(self)
        object.__setattr__(task, "metrics", tuple(metrics))
        return task

    def outputs(self, n_classes: int) -> int:
        """How many outputs a model must have. n_classes: or labels, or numbers that a sample has."""
        return n_classes

    def output_shape(self, federation: Federation) -> tuple[int, ...]:
        """Of what a model returns for one sample."""
        return (self.outputs(federation.n_classes),)

    def check(self, federation: Federation) -> None:
        """Raise ConfigError if the data cannot be this task's."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(rows, batch[, positions]) loss of each."""
        raise self._lacks("losses")

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(rows,) mean of each row's batch."""
        return mean_per_row(self.losses(outputs, batch.y), batch.present)

    def weighted_loss(self, training: Training, federation: Federation) -> Loss:
        """As `loss`, with the class weights and the label smoothing that `training` asks for."""
        raise ConfigError(
            f"training.class_weights and training.label_smoothing are for classes, and task {self.name!r} "
            "has none; leave them out"
        )

    def counted(self, y: Tensor, present: Tensor) -> Tensor:
        """(rows, batch[, positions]) 1 for what counts in a mean, 0 for padding."""
        return present

    def softened(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """What a model says at a temperature, as `divergence` takes it."""
        raise self._lacks("softened")

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        """(rows, batch[, positions]) how far a student is from its teacher, as `softened` gives both."""
        raise self._lacks("divergence")

    def linear(self, softened: Tensor) -> Tensor:
        """In the form in which what several models say is averaged: probabilities, or numbers."""
        return softened.exp()

    def from_linear(self, averaged: Tensor) -> Tensor:
        """As `softened` would give it."""
        return averaged.clamp(min=_SMALLEST).log()

    def answers(self, outputs: Tensor) -> Tensor:
        """(..., numbers) what two models are compared by, with squared distances."""
        raise self._lacks("answers")

    def decided(self, outputs: Tensor) -> Tensor:
        """What is predicted, as y has it."""
        raise self._lacks("decided")

    def predictions(self, outputs: Tensor) -> Tensor:
        """What metrics such as AUC and `coterie peer predict` are given: probabilities, or numbers."""
        return self.answers(outputs)

    def _lacks(self, method: str) -> ConfigError:
        return ConfigError(
            f"task {self.name or type(self).__name__!r} has no method {method}, which is needed here; "
            "docs/tasks.md says what a task has"
        )

    def reward(self, scores: Scores) -> Tensor:
        """(rows,) from 0 to 1, the higher the better: the main metric if it is a share, else by the loss."""
        main, by_loss = self.metrics[0], 1 / (1 + scores.loss)
        if not (main.percent and main.higher_is_better):
            return by_loss
        found = scores.metrics[main.name]
        return torch.where(found.isnan(), by_loss, found)

    def guidance(self, y: Tensor, own: Tensor, teacher: Tensor, taught: Tensor) -> Params:
        """What `guided` needs to know of samples.

        own, taught: (rows, batch[, positions]) the weights of the targets and of the teacher, which is as
        `softened` gives it.
        """
        return {"own": own, "teacher": teacher, "taught": taught}

    def guided(self, outputs: Tensor, batch: Batch, temperature: float) -> Tensor:
        """(rows, batch[, positions]) own * loss + taught * divergence from the teacher, at a temperature."""
        given = batch.prepared
        divergence = self.divergence(given["teacher"], self.softened(outputs, temperature))
        return given["own"] * self.losses(outputs, batch.y) + given["taught"] * divergence


@dataclass(frozen=True)
class Classification(Task):
    """One of several classes. A model returns a logit for each; labels are whole numbers from 0."""

    name: ClassVar[str] = "classification"
    labels_are_classes: ClassVar[bool] = True
    offers: ClassVar[tuple[MeanMetric, ...]] = (ACCURACY, LOG_LOSS)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy.

        With classes before samples: along a last axis of ten numbers PyTorch takes eight times as long.
        """
        if outputs.dim() == 3:
            return functional.cross_entropy(outputs.mT, y, reduction="none")
        return functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)

    def weighted_loss(self, training: Training, federation: Federation) -> Loss:
        weights = class_weights_of(training, federation).to(federation.device)
        return partial(weighted_cross_entropy, weights=weights, smoothing=training.label_smoothing)

    def softened(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities at a temperature."""
        return (outputs if temperature == 1.0 else outputs / temperature).log_softmax(-1)

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        """KL(p_teacher || p_student) of log-probabilities."""
        return functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)

    def answers(self, outputs: Tensor) -> Tensor:
        """Probabilities."""
        return outputs.softmax(-1)

    def decided(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def guidance(self, y: Tensor, own: Tensor, teacher: Tensor, taught: Tensor) -> Params:
        p, label = teacher.exp(), one_hot(y, teacher.shape[-1])
        weighted = torch.stack((own[..., None] * label, taught[..., None] * p), -2)
        targets = weighted.movedim(1, -1).contiguous().movedim(-1, 1)  # in memory as `guided` reads them
        return {"targets": targets, "neg_entropy": taught * (p * teacher).sum(-1)}

    def guided(self, outputs: Tensor, batch: Batch, temperature: float) -> Tensor:
        """In one pass: both are cross-entropies, with the label and with the teacher's p as targets.

        The targets carry the weights. What is left of the divergence, sum p log p, does not depend on the
        model: it is `neg_entropy`. Samples are the last axis in memory, as in `losses`.
        """
        z = outputs.movedim(1, -1)
        log_q = torch.stack((z, z / temperature), -3).log_softmax(-2)
        divergence = (batch.prepared["targets"].movedim(1, -1) * log_q).sum((-3, -2))
        return batch.prepared["neg_entropy"] - divergence.movedim(-1, 1)


CLASSIFICATION = Classification()
cross_entropy: Loss = CLASSIFICATION.loss


def with_slopes(loss: Loss, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(rows,) losses, and their derivatives with respect to the outputs.

    By autograd but for plain cross-entropy: for that by the operations that autograd would call, so that the
    bits are the same, in a fraction of the time.
    """
    task = getattr(loss, "__self__", None)
    plain = isinstance(task, Classification) and loss == task.loss and _is_cross_entropy(type(task))
    if plain and outputs.dim() == 3 and batch.y.dim() == 2:
        return _cross_entropy_with_slopes(outputs, batch)
    leaf = outputs.detach().requires_grad_()
    losses = loss(leaf, batch)
    (slopes,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), slopes


def _is_cross_entropy(kind: type[Task]) -> bool:
    """Whether a task has the loss of classification, and none of its own."""
    return kind.loss is Task.loss and kind.losses is Classification.losses


def _cross_entropy_with_slopes(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    log_p, y = outputs.mT.log_softmax(1), batch.y[:, None]  # (rows, classes, batch) and (rows, 1, batch)
    slopes, losses = torch.zeros_like(log_p), -log_p.gather(1, y)[:, 0]
    if batch.present is None:
        slopes.scatter_(1, y, -1.0 / y.shape[2])
    else:
        share = (losses.new_ones(len(losses)) / batch.present.sum(1))[:, None] * batch.present
        slopes.scatter_(1, y, -share[:, None])
    slopes = torch.ops.aten._log_softmax_backward_data(slopes, log_p, 1, outputs.dtype)
    return mean_per_row(losses, batch.present), slopes.mT


def loss_of(task: Task, training: Training, federation: Federation) -> Loss:
    """The loss that `training` asks for. federation: data of the rows that are to be trained."""
    if training.class_weights == "even" and not training.label_smoothing:
        return task.loss
    return task.weighted_loss(training, federation)


def weighted_cross_entropy(logits: Tensor, batch: Batch, *, weights: Tensor, smoothing: float) -> Tensor:
    """(rows,) of each row's batch. weights: (all rows, classes).

    torch's cross_entropy(weight=..., label_smoothing=...): every class takes its share of the smoothing by
    its weight, and the mean is over the weights of the samples' classes. 0 where none of these has any.
    """
    own = weights[batch.rows.to(weights.device)][:, None].to(logits)  # (rows, 1, classes)
    log_p = logits.log_softmax(-1) * own
    loss = -(1 - smoothing) * log_p.gather(2, batch.y[..., None])[..., 0]
    if smoothing:
        loss = loss - smoothing / logits.shape[2] * log_p.sum(2)
    of_samples = own.expand_as(log_p).gather(2, batch.y[..., None])[..., 0]
    if batch.present is not None:
        loss, of_samples = loss * batch.present, of_samples * batch.present
    total = of_samples.sum(1)
    return loss.sum(1) / total.where(total > 0, 1.0)


def class_weights_of(training: Training, federation: Federation) -> Tensor:
    """(rows, classes)."""
    given, rows, classes = training.class_weights, federation.peers, federation.n_classes
    if given == "even":
        return torch.ones(rows, classes)
    if given == "balanced":
        counts = federation.label_histogram().double()
        even = counts.sum(1, keepdim=True) / (counts > 0).sum(1, keepdim=True).clamp(min=1)
        return torch.where(counts > 0, even / counts.clamp(min=1), 0.0)
    if len(given) != classes:
        raise ConfigError(f"training.class_weights has {len(given)} numbers, and the data {classes} classes")
    return torch.tensor(given).expand(rows, classes)


def given(values: Any) -> str:
    """The shape and type of an array or tensor, for those who write a function of it."""
    return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"


def require_task(found: Any, shown: str) -> None:
    """Refuse what a user's file defines and what is no task."""
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigError(f"{shown} is no task: make it a subclass of coterie.Task, or of one that exists")
