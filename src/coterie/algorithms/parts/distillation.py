"""How others' models answer on one's own samples, and losses that learn from these answers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.algorithms.parts.received import completed
from coterie.protocol.inbox import Inbox
from coterie.protocol.node import Loss, Node, Samples
from coterie.protocol.trees import Params, Tree, map_params, per_row, some_rows, take
from coterie.training import PLAIN_STEP

_ROUNDING = 1e-10  # distances below this are those of equal models
_ALL_SAMPLES = 1 << 40  # a batch larger than any node's data


def remembered_logits(params: Params, active: Tensor, node: Node) -> Tensor:
    """(rows, n, classes) outputs on each active row's own training samples, to look up during training."""
    rows = active.nonzero().flatten()
    known = node.predict(cast(Params, take(params, rows)), rows=rows)
    return known.new_zeros(node.rows, *known.shape[1:]).index_copy_(0, rows.to(known.device), known)


def of_samples(table: Tensor, samples: Samples) -> Tensor:
    """(rows, batch, ...) entries of a (rows, n, ...) table for the samples of mini-batches."""
    place = samples.index + samples.rows[:, None] * table.shape[1]
    return some_rows(table.flatten(0, 1), place.flatten()).view(*place.shape, *table.shape[2:])


def class_weights(samples: Samples) -> Tensor:
    """(rows, batch) weight of each sample by the rarity of its class in the row's own batch.

    1 / count of the class, rescaled to mean 1 over the classes that are present; 0 for padding.
    """
    y, present = samples.y, even_weights(samples)
    counts = present.new_zeros(len(y), int(y.max()) + 1).scatter_add_(1, y, present)
    own = counts.gather(1, y).clamp(min=1)  # of each sample's class
    inverse = present / own
    # Over samples, 1 / count adds up to the number of classes and 1 / count^2 to the sum over classes.
    return inverse * (inverse.sum(1, keepdim=True) / (inverse / own).sum(1, keepdim=True))


def even_weights(samples: Samples) -> Tensor:
    """(rows, batch[, positions]) 1 for samples, 0 for padding."""
    if samples.present is not None:
        return samples.present
    return torch.ones(samples.index.shape, device=samples.y.device)


def outputs_of(peers: Tree, mine: Params, rows: Tensor, node: Node, *, layer: str | None = None) -> Tensor:
    """(messages, n, classes) logits of received models on the samples of the rows that received them.

    What was not sent is taken from the row's own model. layer: its outputs instead, as `node.predict` says.
    """
    return node.predict(completed(peers, mine, rows, node, layer), rows=rows, layer=layer)


def output_distances(node: Node, mine: Params, row: Tensor, inbox: Inbox, layer: str | None = None) -> Tensor:
    """(messages,) mean squared distance of received models' outputs from those of the receiving row (1,).

    Compared is what the task says, such as probabilities, or the outputs of a hidden layer, divided by the
    square root of their number. The mean is over samples, or over positions that have a target if there are
    outputs for each.
    """

    def compared(outputs: Tensor) -> Tensor:
        return node.task.answers(outputs) if layer is None else outputs / outputs.shape[-1] ** 0.5

    own = compared(node.predict({name: value[row] for name, value in mine.items()}, rows=row, layer=layer))
    answers = own.shape[1] if layer is not None and own.dim() == 3 else int(node.counted(row).sum())

    def distance(peers: Tree, rows: Tensor) -> Tensor:
        theirs = outputs_of(peers, mine, rows, node, layer=layer)  # (messages, n, features)
        difference = compared(theirs) - own
        return difference.square().sum(tuple(range(1, difference.dim()))) / max(1, answers)

    d = inbox.map(distance).double().cpu()
    return d.where(d > _ROUNDING, 0.0)


def mean_teacher_logits(node: Node, mine: Params, inbox: Inbox) -> Tensor:
    """(rows, n, classes) mean of one's own and the received models' logits on each row's training samples."""
    own = node.predict(mine)

    def teach(peers: Tree, rows: Tensor) -> Tensor:
        logits = outputs_of(peers, mine, rows, node)
        return padded(logits, own.shape[1])

    received = inbox.mean_of(teach)
    if received is None:
        return own
    count = per_row(inbox.count, own).to(own)
    return (own + count * received) / (count + 1)


def padded(table: Tensor, n: int) -> Tensor:
    """(rows, n, ...) with zeros for the samples that are missing."""
    return pad(table, (*(0, 0) * (table.dim() - 2), 0, n - table.shape[1]))


def full_gradient(node: Node, params: Params, loss: Loss, active: Tensor) -> Params:
    """Each active row's gradient of `loss` at `params` over its whole training data; else zeros.

    It is what one step with rate 1 takes away. Running statistics of BatchNorm (`node.buffers`) have no
    gradient: they come out as what one pass over the data takes away, which is to be subtracted whole, not
    times a learning rate.
    """
    stepped = node.train(
        params,
        loss=loss,
        active=active,
        purpose="gradient",
        steps=1,
        batch_size=_ALL_SAMPLES,
        lr=1.0,
        clip=0.0,
        **PLAIN_STEP,
    )
    return map_params(lambda before, after: before - after, params, stepped)
