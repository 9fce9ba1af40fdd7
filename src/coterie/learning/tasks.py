"""Tasks: what a model's outputs mean, what is lost when they are wrong, and how they are scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from coterie.data import Federation
from coterie.errors import ConfigError
from coterie.metric import Metric
from coterie.protocol.node import Batch, Loss, Scores
from coterie.protocol.trees import mean_per_row
from coterie.training import Training


@dataclass(frozen=True)
class MeanMetric(Metric):
    """A metric that is a mean over samples, so that it can be added up part by part."""

    of_samples: Callable[[Tensor, Tensor], Tensor] = field(kw_only=True)  # outputs, y -> (rows, batch)


def _is_right(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.argmax(-1) == y


ACCURACY = MeanMetric("accuracy", percent=True, of_samples=_is_right)


@dataclass(frozen=True)
class Classification:
    """One of several classes. A model returns a logit for each; labels are whole numbers from 0."""

    metrics: tuple[MeanMetric, ...] = (ACCURACY,)

    name: ClassVar[str] = "classification"

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(rows, batch) cross-entropy of each sample."""
        return functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(rows,) mean of each row's batch."""
        return mean_per_row(self.losses(outputs, batch.y), batch.present)

    def softened(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities at a temperature."""
        return (outputs if temperature == 1.0 else outputs / temperature).log_softmax(-1)

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        """KL(p_teacher || p_student) of log-probabilities."""
        return functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)

    def answers(self, outputs: Tensor) -> Tensor:
        """Probabilities."""
        return outputs.softmax(-1)

    def reward(self, scores: Scores) -> Tensor:
        return scores.metrics[self.metrics[0].name]


CLASSIFICATION = Classification()
cross_entropy: Loss = CLASSIFICATION.loss


def loss_of(task: Classification, training: Training, federation: Federation) -> Loss:
    """The loss that `training` asks for. federation: data of the rows that are to be trained."""
    if training.class_weights == "even" and not training.label_smoothing:
        return task.loss
    weights = _class_weights(training, federation).to(federation.device)
    return partial(weighted_cross_entropy, weights=weights, smoothing=training.label_smoothing)


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


def _class_weights(training: Training, federation: Federation) -> Tensor:
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
