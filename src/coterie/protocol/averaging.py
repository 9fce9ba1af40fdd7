"""Averages of one's own model with those that arrived."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from coterie.protocol.inbox import Inbox
from coterie.protocol.trees import Params, per_row


def average(mine: Params, inbox: Inbox, weights: Tensor | None = None) -> Params:
    """Mix each row's model with its inbox; what is missing from the inbox counts as one's own.

    Without weights: the uniform mean over the senders and oneself. With one weight per message: the
    weighted sum, and oneself with what is left to 1. Names that were not sent (a head that stays at
    home) are kept as they are.
    """
    if weights is None:
        share = 1.0 / (inbox.count + 1).double()
        received = cast(Params, inbox.sum())
        own = share
    else:
        share = None
        received = cast(Params, inbox.sum(weights))
        own = 1.0 - share_per_row(inbox, weights)
    mixed = dict(mine)
    for name, total in received.items():
        if share is None:
            mixed[name] = total.addcmul_(mine[name], per_row(own, total).to(total.dtype))
        else:
            mixed[name] = total.add_(mine[name]).mul_(per_row(share, total).to(total.dtype))
    return mixed


def share_per_row(inbox: Inbox, weights: Tensor) -> Tensor:
    """(rows,) sum of the weights of each row's messages, in double precision."""
    weights = weights.double()
    return weights.new_zeros(len(inbox.count)).index_add_(0, inbox.rows, weights)
