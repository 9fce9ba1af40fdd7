"""Sealed inboxes whose sums are those of a secure sum: quantised for speed, or computed under real masks.

The members of a receiver's group are all whom it asks, or who send to it in the exchange. The threshold is
their majority, and at least the smallest group. A member whose message is lost counts as one that drops out
before its vector arrives. A receiver with too few answers, or whose ledger would be overdrawn, receives
nothing: its sum is zero and so is its count, as if nobody had answered. So nobody ever learns a "sum" of one.
All kinds give the same bits, in any order of the messages and any sharding, since sums of integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from coterie.protocol.inbox import Bundled, SealedInbox, WeightedSum
from coterie.protocol.secure_sum import (
    FixedPoint,
    Form,
    agreed_encoding,
    check_members,
    magnitude_exponent,
    magnitude_exponents,
    majority,
    secure_sum_locally,
)
from coterie.protocol.trees import (
    Tree,
    flatten_row,
    leaves,
    map_tree,
    per_row,
    require_floats,
    some_rows,
    unflatten,
)

SealingKind: TypeAlias = Literal["plain", "quantised", "masked", "one-time"]


@dataclass(frozen=True)
class Terms:
    """When a sum is opened.

    smallest: fewest answers. asked: (rows,) how many each row asked; None: those who sent to it. allows:
    whether a row may have a sum over these nodes, beside those that it had; asked once for each sum.
    """

    smallest: int = 2
    asked: Tensor | None = None
    allows: Callable[[int, frozenset[int]], bool] | None = None


class QuantisedInbox(SealedInbox):
    """The sums that secure sums over each row's messages give, bit for bit, without hiding anything."""

    def __init__(
        self,
        parcels: Sequence[Bundled],
        n_rows: int,
        came_back: Callable[[], Tree] | None = None,
        *,
        missing: Sequence[Bundled] = (),
        terms: Terms | None = None,
    ) -> None:
        """missing: messages that were sent and did not arrive; they count as members that dropped out."""
        super().__init__(parcels, n_rows, came_back)
        self._missing = tuple(missing)
        self._terms = terms or Terms()

    def _counts(self) -> Tensor:
        return super()._counts().where(self._opened, 0)

    def _total(self) -> Tree:
        if not self._parcels:
            return {}
        for parcel in self._parcels:
            require_floats(parcel.payload)
        groups = [self._group(exponent) for exponent in self._exponents[self._opened].unique().tolist()]

        def add(*parts: Tensor) -> Tensor:
            total = parts[0].new_zeros(self._n_rows, *parts[0].shape[1:])
            for group in groups:
                total[group.rows] = group.sum(parts).to(total)
            return total

        return map_tree(add, *(parcel.payload for parcel in self._parcels))

    @cached_property
    def _opened(self) -> Tensor:
        """(rows,) whether enough members answered for the sum to be known, and it may be."""
        arrived, terms = super()._counts(), self._terms
        members = arrived + SealedInbox(self._missing, self._n_rows).count
        if len(members) and int(members.max()):
            check_members(int(members.max()), FixedPoint())
        threshold = majority(members if terms.asked is None else terms.asked).clamp(min=terms.smallest)
        opened = arrived >= threshold
        if terms.allows is not None:
            groups = self._groups(arrived)
            for row in opened.nonzero().flatten().tolist():
                opened[row] = terms.allows(row, frozenset(groups[row].tolist()))
        return opened

    def _groups(self, arrived: Tensor) -> Sequence[Tensor]:
        """Who sent to each row."""
        rows = torch.cat([parcel.rows for parcel in self._parcels])
        senders = torch.cat([parcel.senders for parcel in self._parcels])
        groups: Sequence[Tensor] = senders[torch.argsort(rows, stable=True)].split(arrived.tolist())
        return groups

    @cached_property
    def _exponents(self) -> Tensor:
        """(rows,) the range that the members of each row's group agree on."""
        agreed = torch.full((self._n_rows,), -(2**31))
        for parcel in (*self._parcels, *self._missing):
            used, place = parcel.source.unique(return_inverse=True)
            told = magnitude_exponents(_largest(parcel.payload, used))[place]
            agreed.scatter_reduce_(0, parcel.rows, told, "amax")
        return agreed

    def _group(self, exponent: int) -> _Group:
        chosen = self._opened & (self._exponents == exponent)
        rows = chosen.nonzero().flatten()
        number = chosen.cumsum(0) - 1  # of each chosen row among them
        routes = []
        for place, parcel in enumerate(self._parcels):
            kept = chosen[parcel.rows]
            if bool(kept.any()):
                used, source = parcel.source[kept].unique(return_inverse=True)
                bag = WeightedSum.over(source, number[parcel.rows[kept]], len(rows))
                routes.append(_Route(place, used, bag))
        return _Group(FixedPoint.within(exponent), rows, self.count[rows], routes)


@dataclass(frozen=True)
class _Route:
    """Which rows of a parcel's payload go into the sums of a group of receivers."""

    parcel: int
    used: Tensor
    bag: WeightedSum


@dataclass(frozen=True)
class _Group:
    """Receivers whose members agreed on the same range, so that each payload is encoded once for all."""

    encoding: FixedPoint
    rows: Tensor  # (receivers,)
    members: Tensor  # (receivers,)
    routes: Sequence[_Route]

    def sum(self, parts: Sequence[Tensor]) -> Tensor:
        """(receivers, ...) in double precision, of one tensor in each parcel's payload."""
        words = [
            route.bag(self.encoding.quantise(some_rows(parts[route.parcel], route.used)))
            for route in self.routes
        ]
        total = reduce(torch.add, words)
        return self.encoding.restore(total, per_row(self.members, total).to(total.device))


class MaskedInbox(QuantisedInbox):
    """Each row's sum by a secure sum among its senders, message by message: slow, and nothing is left out.

    Members mask with every other one, as in Bonawitz et al. (2017).
    """

    form: ClassVar[Form] = "pairwise"

    def _total(self) -> Tree:
        if not self._parcels:
            return {}
        total = map_tree(lambda leaf: leaf.new_zeros(self._n_rows, *leaf.shape[1:]), self._parcels[0].payload)
        for row in self._opened.nonzero().flatten().tolist():
            for (_, target), (_, value) in zip(leaves(total), leaves(self._secure_sum(row)), strict=True):
                target[row] = value[0]
        return total

    def _secure_sum(self, row: int) -> Tree:
        """A tree of one row."""
        answering = [flatten_row(*message) for message in _messages_to(row, self._parcels)]
        silent = [flatten_row(*message) for message in _messages_to(row, self._missing)]
        vectors = [vector for vector, _ in (*answering, *silent)]
        total = secure_sum_locally(
            vectors,
            majority(len(vectors)),
            dropped=dict.fromkeys(range(len(answering), len(vectors)), "mask"),
            form=self.form,
            encoding=agreed_encoding(map(magnitude_exponent, vectors)),
        )
        return unflatten(total, answering[0][1])


class OneTimeInbox(MaskedInbox):
    """The secure sum that PPDL describes: each member adds a mask of its own and shares it with the group."""

    form = "one-time"


SEALED_INBOXES: dict[SealingKind, type[QuantisedInbox]] = {
    "quantised": QuantisedInbox,
    "masked": MaskedInbox,
    "one-time": OneTimeInbox,
}


def _messages_to(row: int, parcels: Sequence[Bundled]) -> Iterator[tuple[Tree, int]]:
    for parcel in parcels:
        for source in parcel.source[parcel.rows == row].tolist():
            yield parcel.payload, source


def _largest(tree: Tree, rows: Tensor) -> Tensor:
    """(rows,) the largest absolute value in each of the given rows of a payload."""
    largest = torch.zeros(len(rows), dtype=torch.float64)
    for _, leaf in leaves(tree):
        if leaf.numel() and len(rows):
            values = some_rows(leaf, rows).reshape(len(rows), -1)
            largest = torch.maximum(
                largest, torch.linalg.vector_norm(values, torch.inf, dim=1).double().cpu()
            )
    return largest
