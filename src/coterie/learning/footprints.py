"""Footprints: the last model that each row received from every other node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from coterie.protocol.inbox import Inbox
from coterie.protocol.trees import Params, per_row


@dataclass(frozen=True)
class Footprints:
    """A model of every peer at every row: rows * peers models in memory."""

    models: Params  # (rows, peers, ...)
    known: Tensor  # (rows, peers) bool

    @classmethod
    def none(cls, params: Params, peers: int) -> Footprints:
        """Nothing received yet, with room for so many peers; 0 to keep none at all."""
        rows = len(next(iter(params.values())))
        known = torch.zeros(rows, peers, dtype=torch.bool)
        if not peers:
            return cls({}, known)
        return cls({n: p.new_zeros(rows, peers, *p.shape[1:]) for n, p in params.items()}, known)

    def seen(self, inbox: Inbox) -> Footprints:
        """Remember what arrived."""
        if not len(inbox.rows):
            return self
        known, models = self.known.clone(), dict(self.models)
        known[inbox.rows, inbox.senders] = True
        for name in self.models:
            models[name] = self.models[name].clone()
            arrived = inbox.map(lambda peer, rows, name=name: cast(Params, peer)[name])  # type: ignore[misc]
            models[name][inbox.rows, inbox.senders] = arrived
        return Footprints(models, known)

    def mixed_with(self, mine: Params, weights: Tensor, share: Tensor) -> Params:
        """(1 - share) of one's own model and `share` of the known ones by their weights (rows, peers).

        Rows whose known models have no weight, or whose share is 0, keep their own.
        """
        weights = (weights * self.known).double()
        total = weights.sum(1)
        active = ((total > 0) & (share > 0)).nonzero().flatten()
        fractions = weights[active] * (share / total)[active, None]
        result = dict(mine)
        for name, remembered in self.models.items():
            rows = remembered[active].flatten(2)  # (active, peers, numbers)
            received = torch.einsum("rp,rpn->rn", fractions.to(rows), rows).view_as(mine[name][active])
            own = per_row(1 - share[active], received).to(received)
            result[name] = mine[name].clone()
            result[name][active] = own * mine[name][active] + received
        return result
