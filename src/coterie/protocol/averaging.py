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
    home) are kept as they are. Senders may have other architectures: layers that they lack, or have in
    another shape, they did not send.
    """
    fused = None if inbox.sealed else _in_one_pass(mine, inbox, weights)
    if fused is not None:
        return fused
    if inbox.sealed:
        received = cast(Params, inbox.sum(weights))
        arrived = dict.fromkeys(received, inbox.count.double())
    else:
        received, arrived = inbox.sum_fitting(mine, weights)
    mixed = dict(mine)
    for name, total in received.items():
        if weights is None:
            share = 1.0 / (arrived[name] + 1)
            mixed[name] = total.add_(mine[name]).mul_(per_row(share, total).to(total))
        else:
            own = 1.0 - arrived[name]
            mixed[name] = total.addcmul_(mine[name], per_row(own, total).to(total))
    return mixed


def _in_one_pass(mine: Params, inbox: Inbox, weights: Tensor | None) -> Params | None:
    if weights is None:
        own = 1.0 / (inbox.count + 1).double()
        return inbox.mixed_into(mine, own, own[inbox.rows])
    return inbox.mixed_into(mine, 1.0 - share_per_row(inbox, weights), weights)


def share_per_row(inbox: Inbox, weights: Tensor) -> Tensor:
    """(rows,) sum of the weights of each row's messages, in double precision."""
    weights = weights.double()
    return weights.new_zeros(len(inbox.count)).index_add_(0, inbox.rows, weights)
