"""Models that arrived: taken over, completed with one's own to be run, or remembered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from coterie.protocol import Inbox, Node, Params, Tree
from coterie.protocol.trees import fitting, per_row, some_rows


def adopt(mine: Params, inbox: Inbox, unsent: Params | None = None) -> Params:
    """Take over the one model that arrived, where one did; of another network, what one's own has too.

    unsent: a model to copy from what messages never hold, such as statistics that stay at home.
    """
    received, arrived = inbox.sum_fitting(mine)
    adopted = dict(mine)
    for name, value in mine.items():
        if name in received:
            here = per_row(arrived[name] > 0, value).to(value.device)
            adopted[name] = received[name].where(here, value)
        elif received and unsent is not None:
            adopted[name] = unsent[name].clone()
    return adopted


def completed(received: Tree, mine: Params, rows: Tensor, node: Node, layer: str | None = None) -> Params:
    """Received models that can be run: what was not sent, as BatchNorm statistics, is the receiver's own.

    rows: which row received each. layer: complete up to this layer only.
    """
    sent = cast(Params, received)
    return {
        name: sent[name] if name in sent else some_rows(mine[name], rows)
        for name in node.names(layer, of=sent)
    }


@dataclass(frozen=True)
class Footprints:
    """A model of every peer at every row: rows * peers models in memory."""

    models: Params  # (rows, peers, ...)
    known: Tensor  # (rows, peers) bool
    fits: Params  # (rows, peers) bool for each name: the peer has this layer in the row's own shape

    @classmethod
    def none(cls, params: Params, peers: int) -> Footprints:
        """Nothing received yet, with room for so many peers; 0 to keep none at all."""
        rows = len(next(iter(params.values())))
        known = torch.zeros(rows, peers, dtype=torch.bool)
        if not peers:
            return cls({}, known, {})
        models = {n: p.new_zeros(rows, peers, *p.shape[1:]) for n, p in params.items()}
        return cls(models, known, {name: known.clone() for name in params})

    def seen(self, inbox: Inbox) -> Footprints:
        """Remember what arrived."""
        if not len(inbox.rows):
            return self
        place = (inbox.rows, inbox.senders)
        known = self.known.clone()
        known[place] = True
        mine = {name: remembered[:, 0] for name, remembered in self.models.items()}  # for the shapes
        models, fits = dict(self.models), dict(self.fits)
        for name in mine:
            models[name], fits[name] = self.models[name].clone(), self.fits[name].clone()
            models[name][place] = inbox.map(partial(_arrived, name, mine))
            fits[name][place] = inbox.map(partial(_fits, name, mine))
        return Footprints(models, known, fits)

    def mixed_with(self, mine: Params, weights: Tensor, share: Tensor) -> Params:
        """(1 - share) of one's own model and `share` of the known ones by their weights (rows, peers).

        Rows whose known models have no weight, or whose share is 0, keep their own. What a known model of
        another architecture lacks counts as one's own.
        """
        weights = (weights * self.known).double()
        total = weights.sum(1)
        active = ((total > 0) & (share > 0)).nonzero().flatten()
        fractions = weights[active] * (share / total)[active, None]
        result = dict(mine)
        for name, remembered in self.models.items():
            rows = remembered[active].flatten(2)  # (active, peers, numbers)
            shares = fractions * self.fits[name][active]
            received = torch.einsum("rp,rpn->rn", shares.to(rows), rows).view_as(mine[name][active])
            own = per_row(1 - shares.sum(1), received).to(received)
            result[name] = mine[name].clone()
            result[name][active] = own * mine[name][active] + received
        return result


def _arrived(name: str, mine: Params, models: Tree, rows: Tensor) -> Tensor:
    """(messages, ...) the named tensor of received models; zeros if their layer is unlike one's own."""
    found = fitting(models, mine)
    return found[name] if name in found else mine[name].new_zeros(len(rows), *mine[name].shape[1:])


def _fits(name: str, mine: Params, models: Tree, rows: Tensor) -> Tensor:
    """(messages,) bool."""
    return torch.full((len(rows),), name in fitting(models, mine))
