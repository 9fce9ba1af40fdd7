"""The tasks besides classification: yes or no, several labels, numbers, a class at each position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from coterie.data import Federation
from coterie.data.targets import Targets, positions_present
from coterie.errors import ConfigError
from coterie.learning.tasks.task import (
    ACCURACY,
    CLASSIFICATION,
    LOG_LOSS,
    Classification,
    MeanMetric,
    Task,
    class_weights_of,
    is_right,
    losses_of,
)
from coterie.protocol.node import Batch, Loss, Scores
from coterie.training import Training

PERPLEXITY = MeanMetric("perplexity", False, of_samples=losses_of, finish=torch.exp)
LABEL_ACCURACY = MeanMetric(
    "accuracy", percent=True, of_samples=lambda task, out, y: is_right(task, out, y).float().mean(-1)
)
RMSE = MeanMetric("rmse", False, of_samples=lambda _, out, y: (out - y).square().mean(-1), finish=torch.sqrt)
MAE = MeanMetric("mae", False, of_samples=lambda _, out, y: (out - y).abs().mean(-1))


@dataclass(frozen=True)
class _Sigmoid(Task):
    """Yes or no, once or several times. A model returns a logit of yes for each."""

    def softened(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """(..., 2 * outputs) log-probabilities of yes, then of no."""
        z = outputs / temperature
        return torch.cat((functional.logsigmoid(z), functional.logsigmoid(-z)), -1)

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        """The mean over the outputs of KL(p_teacher || p_student)."""
        total = functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
        return total / (teacher.shape[-1] // 2)

    def answers(self, outputs: Tensor) -> Tensor:
        """Probabilities of yes, then of no, as two classes would have them."""
        return torch.cat((outputs.sigmoid(), (-outputs).sigmoid()), -1)

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()


@dataclass(frozen=True)
class Binary(_Sigmoid):
    """Yes or no. A model returns one logit; labels are 0 and 1."""

    name: ClassVar[str] = "binary"
    labels_are_classes: ClassVar[bool] = True
    offers: ClassVar[tuple[MeanMetric, ...]] = (ACCURACY, LOG_LOSS)

    def outputs(self, n_classes: int) -> int:
        return 1

    def check(self, federation: Federation) -> None:
        if federation.n_classes != 2:
            raise ConfigError(
                f"task 'binary' needs labels 0 and 1, and the data has {federation.n_classes} classes; use "
                "task 'classification'"
            )

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        z = outputs[..., 0]
        return functional.binary_cross_entropy_with_logits(z, y.to(z), reduction="none")

    def weighted_loss(self, training: Training, federation: Federation) -> Loss:
        """That of two classes of which the first has logit 0."""
        weighted = CLASSIFICATION.weighted_loss(training, federation)
        return lambda outputs, batch: weighted(torch.cat((torch.zeros_like(outputs), outputs), -1), batch)

    def decided(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0] > 0


@dataclass(frozen=True)
class MultiLabel(_Sigmoid):
    """Any number of labels. A model returns a logit for each; y has a row of 0 and 1."""

    name: ClassVar[str] = "multi-label"
    targets: ClassVar[Targets] = "labels"
    offers: ClassVar[tuple[MeanMetric, ...]] = (LABEL_ACCURACY, LOG_LOSS)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy, the mean over the labels."""
        return functional.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(-1)

    def weighted_loss(self, training: Training, federation: Federation) -> Loss:
        """Weights are of a label's positives, as torch's pos_weight; balanced: negatives / positives."""
        smoothing, weights = training.label_smoothing, _weights_of_positives(training, federation)

        def loss(outputs: Tensor, batch: Batch) -> Tensor:
            y = batch.y * (1 - smoothing) + smoothing / 2
            own = weights[batch.rows.cpu()][:, None].to(outputs)
            of_labels = -(own * y * functional.logsigmoid(outputs))
            of_labels = of_labels - (1 - y) * functional.logsigmoid(-outputs)
            return batch.mean(of_labels.mean(-1))

        return loss

    def decided(self, outputs: Tensor) -> Tensor:
        return outputs > 0


@dataclass(frozen=True)
class Regression(Task):
    """Numbers. A model returns one for each; what is lost is their mean squared error."""

    name: ClassVar[str] = "regression"
    targets: ClassVar[Targets] = "numbers"
    offers: ClassVar[tuple[MeanMetric, ...]] = (RMSE, MAE)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().mean(-1)

    def softened(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """Numbers have no temperature: T^2 times the divergence of these is the squared error itself."""
        return outputs / temperature

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        return (student - teacher).square().mean(-1)

    def linear(self, softened: Tensor) -> Tensor:
        return softened

    def from_linear(self, averaged: Tensor) -> Tensor:
        return averaged

    def answers(self, outputs: Tensor) -> Tensor:
        """The numbers, scaled so that squared distances are means over them."""
        return outputs / outputs.shape[-1] ** 0.5

    def decided(self, outputs: Tensor) -> Tensor:
        return outputs

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs


@dataclass(frozen=True)
class NextToken(Classification):
    """A class at each position of a sequence, such as its next token. Padding does not count.

    A model returns (batch, positions, classes) logits; y is -100 where there is no target.
    """

    name: ClassVar[str] = "next-token"
    targets: ClassVar[Targets] = "tokens"
    labels_are_classes: ClassVar[bool] = False
    offers: ClassVar[tuple[MeanMetric, ...]] = (PERPLEXITY, ACCURACY, LOG_LOSS)

    # A table of targets for every class would be as large as the vocabulary.
    guidance, guided = Task.guidance, Task.guided

    def output_shape(self, federation: Federation) -> tuple[int, ...]:
        return (int(federation.y.shape[1]), federation.n_classes)

    def weighted_loss(self, training: Training, federation: Federation) -> Loss:
        if training.class_weights == "balanced":
            raise ConfigError(
                "training.class_weights 'balanced' is for one class per sample; task 'next-token' takes a "
                "list"
            )
        weighted = super().weighted_loss(training, federation)
        return lambda outputs, batch: weighted(outputs.flatten(1, 2), _one_position_each(batch))

    def counted(self, y: Tensor, present: Tensor) -> Tensor:
        return positions_present(y.to(present.device), present)

    def reward(self, scores: Scores) -> Tensor:
        """1 / perplexity, the mean probability of a token, unless the main metric is a share."""
        return super().reward(scores) if self.metrics[0].percent else (-scores.loss).exp()


def _one_position_each(batch: Batch) -> Batch:
    """Every position as a sample of its own; padding is not present."""
    assert batch.present is not None
    return Batch(batch.y.flatten(1).clamp(min=0), batch.rows, batch.index, batch.present.flatten(1), batch.x)


def _weights_of_positives(training: Training, federation: Federation) -> Tensor:
    """(rows, labels)."""
    if training.class_weights != "balanced":
        return class_weights_of(training, federation)
    train = federation.train
    y = federation.y[train.index].cpu()
    positives = y.new_zeros(federation.peers, y.shape[1]).index_add_(0, train.owner, y)
    negatives = train.sizes[:, None] - positives
    return torch.where(positives > 0, negatives / positives.clamp(min=1), 1.0)
