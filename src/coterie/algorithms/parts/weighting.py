"""Means of models by numbers of samples: senders send n_i * theta_i and n_i, so two sums are enough."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from coterie.protocol import Inbox, Params
from coterie.protocol.plausible import Sized
from coterie.protocol.trees import Counters, map_params, per_row


def weighted(params: Params, n: Tensor) -> dict[str, Params]:
    """Each row's model times its weight n (rows,), such as its number of samples, and that weight."""
    return {"model": map_params(lambda p: p * per_row(n, p).to(p.device), params), "samples": Counters(n=n)}


def judged_by(mine: Params) -> Sized:
    """What a real peer asks of weighted models: without their weights they are about as large as its own."""
    return Sized(mine, "model", "samples/n")


def weighted_mean(mine: dict[str, Params], received: dict[str, Params], otherwise: Params) -> Params:
    """Mean of one's own weighted model and the received sum; `otherwise` where all weights are 0."""
    if not received:
        return otherwise
    n = mine["samples"]["n"] + received["samples"]["n"]
    mean = dict(otherwise)
    for name, total in received["model"].items():
        rows = per_row(n, total).to(total.device)
        mean[name] = ((mine["model"][name] + total) / rows.clamp(min=1)).where(rows > 0, otherwise[name])
    return mean


def mean_at_hub(mine: Params, upload: Inbox) -> Params:
    """Where weighted models arrived, their mean; elsewhere one's own."""
    received = cast(dict[str, Params], upload.sum())
    if not received:
        return mine
    n = received["samples"]["n"]
    result = dict(mine)
    for name, total in received["model"].items():
        rows = per_row(n, total).to(total.device)
        result[name] = (total / rows.clamp(min=1)).where(rows > 0, mine[name])
    return result


def softmax_of_messages(scores: Tensor, inbox: Inbox) -> tuple[Tensor, Tensor]:
    """(rows,) and (messages,) softmax over each row, whose own score is 0, and its messages."""
    highest = scores.new_zeros(len(inbox.count)).scatter_reduce(0, inbox.rows, scores, "amax")
    own, theirs = (-highest).exp(), (scores - highest[inbox.rows]).exp()
    total = own.index_add(0, inbox.rows, theirs)
    return own / total, theirs / total[inbox.rows]
