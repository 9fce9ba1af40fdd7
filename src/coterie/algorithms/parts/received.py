"""Models that arrived: taken over, completed with one's own to be run, or remembered; weights of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from coterie.errors import ContractError
from coterie.protocol import Inbox, Node, Params, Tree
from coterie.protocol.trees import fitting, per_row, some_rows

MOST_IN_MATRIX = 5000  # nodes of which weights between all pairs are held: 37 GiB for 100,000


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


@dataclass(frozen=True)
class Met:
    """The weights that each row gives to those it met; it gives `otherwise` to all others."""

    ids: Tensor  # (rows, slots) int32; -1: free. Slots are filled from the first on
    weights: Tensor  # (rows, slots)
    otherwise: Tensor  # (rows,)

    @classmethod
    def nobody(cls, rows: int, slots: int, otherwise: float) -> Met:
        ids = torch.full((rows, slots), -1, dtype=torch.int32)
        return cls(ids, torch.zeros(rows, slots), torch.full((rows,), otherwise))

    def of(self, rows: Tensor, ids: Tensor) -> Tensor:
        """(pairs,) what each of these rows gives to the node beside it."""
        found = self.ids[rows] == ids[:, None]
        return torch.where(found.any(1), (self.weights[rows] * found).sum(1), self.otherwise[rows])

    def total(self, rows: Tensor, peers: int) -> Tensor:
        """(pairs,) the sum of what each of these rows gives to all other peers."""
        met = self.ids[rows] >= 0
        others = peers - 1 - met.sum(1)
        return (self.weights[rows] * met).double().sum(1) + others * self.otherwise[rows].double()

    def changed(self, rows: Tensor, ids: Tensor, weights: Tensor) -> Met:
        """With these pairs' weights; a pair occurs once."""
        found = self.ids[rows] == ids[:, None]
        known, slot = found.any(1), found.int().argmax(1)
        new = (~known).nonzero().flatten()
        slot[new] = (self.ids[rows[new]] >= 0).sum(1) + _rank(rows[new])
        if len(slot) and int(slot.max()) >= self.ids.shape[1]:
            raise ContractError(f"a row met more than {self.ids.shape[1]} nodes, for which there is room")
        all_ids, all_weights = self.ids.clone(), self.weights.clone()
        all_ids[rows, slot] = ids.int()
        all_weights[rows, slot] = weights.to(all_weights.dtype)
        return Met(all_ids, all_weights, self.otherwise)


def _rank(rows: Tensor) -> Tensor:
    """(n,) how many entries before it name the same row."""
    order = torch.argsort(rows, stable=True)
    ordered = rows[order]
    first = torch.searchsorted(ordered, ordered)  # the place of the first that is equal
    rank = torch.empty_like(rows)
    rank[order] = torch.arange(len(rows)) - first
    return rank
