"""The experiment's own loss: cross-entropy with class weights and label smoothing, as torch computes it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from coterie.data import Federation
from coterie.errors import ConfigError
from coterie.learning.local_steps import cross_entropy
from coterie.protocol.node import Batch, Loss
from coterie.training import Training


def loss_of(training: Training, federation: Federation) -> Loss:
    """The loss that `training` asks for. federation: data of the rows that are to be trained."""
    if training.class_weights == "even" and not training.label_smoothing:
        return cross_entropy
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
