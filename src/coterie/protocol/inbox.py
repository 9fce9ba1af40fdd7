"""What a round receives back for an Exchange: the messages of other nodes, for all rows at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from coterie.errors import SealedError
from coterie.protocol.exchange import Links
from coterie.protocol.trees import Params, Tree, fitting, map_tree, per_row, row_bytes, take

_MAP_CHUNK_BYTES = 64 << 20
_SUM_BLOCK_BYTES = 2 << 20  # columns of all payloads that are summed together: they stay in cache
_FEWEST_SUMMED = 1024  # columns

Spread: TypeAlias = Callable[[Callable[[Any], object], Sequence[Any]], object]
"""Does a piece of work on each of several things, perhaps beside each other, and waits for all."""


def one_after_another(work: Callable[[Any], object], things: Sequence[Any]) -> None:
    """The plainest way to spread work."""
    for thing in things:
        work(thing)


class Bundled(Protocol):
    """Messages whose payloads are rows of one stacked tree, in memory (`Bundle`) or elsewhere."""

    @property
    def payload(self) -> Tree: ...

    @property
    def source(self) -> Tensor: ...

    @property
    def rows(self) -> Tensor: ...

    @property
    def senders(self) -> Tensor: ...


@dataclass(frozen=True)
class Bundle:
    """Messages whose payloads are rows of one stacked tree."""

    payload: Tree  # (source rows, ...)
    source: Tensor  # (messages,) row of the payload
    rows: Tensor  # (messages,) row that receives it
    senders: Tensor  # (messages,) global id of the sender
    home: Tree | None = None  # what the receiving rows sent themselves, if these are the payload's first rows


class Inbox:
    """The messages that reached this process's rows in one exchange.

    `senders` and `rows` are aligned: message m came from node `senders[m]` to row `rows[m]`. Weights
    and the results of `map` have that order too. Absent peers are simply not there.
    """

    sealed = False

    def __init__(
        self,
        parcels: Sequence[Bundled],
        n_rows: int,
        came_back: Callable[[], Tree] | None = None,
        spread: Spread = one_after_another,
        order: Tensor | None = None,
    ) -> None:
        """order: (messages,) their places among all messages, where rows elsewhere receive others."""
        self._parcels = tuple(parcels)
        self._n_rows = n_rows
        self._came_back = came_back
        self._spread = spread
        self._order = order

    @cached_property
    def returned(self) -> Tree:
        """Sum of each row's OWN payloads that did not arrive, of a conserved exchange; {} if there are none.

        In the simulator they are of this exchange. Between real peers, which learn late that a message was
        not taken, they may be of earlier rounds, so a round must add them as they are.
        """
        return {} if self._came_back is None else self._came_back()

    @cached_property
    def senders(self) -> Tensor:
        """(messages,) ids of the senders."""
        return torch.cat([parcel.senders for parcel in self._parcels] or [torch.empty(0, dtype=torch.long)])

    @cached_property
    def rows(self) -> Tensor:
        """(messages,) rows that received them."""
        return torch.cat([parcel.rows for parcel in self._parcels] or [torch.empty(0, dtype=torch.long)])

    @cached_property
    def count(self) -> Tensor:
        """(rows,) number of messages that each row received."""
        return self._counts()

    def _counts(self) -> Tensor:
        counts = torch.zeros(self._n_rows, dtype=torch.long)
        for parcel in self._parcels:
            counts += torch.bincount(parcel.rows, minlength=self._n_rows)
        return counts

    @property
    def links(self) -> Links:
        """The senders as addresses, to answer them."""
        return Links(self.rows, self.senders, self._order)

    def sum(self, weights: Tensor | None = None) -> Tree:
        """Sum of the payloads that each row received, each message times its weight (default 1)."""
        parts = list(zip(self._parcels, self._split(weights), strict=True))
        arrived = [part for part in parts if len(part[0].rows)]  # other networks may have sent nothing
        total: Tree | None = None
        for parcel, part in arrived or parts[:1]:
            added = map_tree(WeightedSum.of(parcel, part, self._n_rows, self._spread), parcel.payload)
            total = added if total is None else map_tree(torch.add, total, added)
        return {} if total is None else total

    def sum_fitting(self, mine: Params, weights: Tensor | None = None) -> tuple[Params, Params]:
        """`sum` of models, without the layers that `mine` lacks or has in another shape.

        Senders may have other architectures, so the second result says for each name how much arrived:
        the (rows,) sum of the weights of those messages that hold it, in double precision.
        """
        total: Params = {}
        arrived: Params = {}
        for parcel, part in zip(self._parcels, self._split(weights), strict=True):
            add = WeightedSum.of(parcel, part, self._n_rows, self._spread)
            weight = None if part is None else part.double()
            share = torch.bincount(parcel.rows, weight, minlength=self._n_rows).double()
            for name, leaf in fitting(parcel.payload, mine).items():
                total[name] = total[name] + add(leaf) if name in total else add(leaf)
                arrived[name] = arrived[name] + share if name in arrived else share
        return total, arrived

    def mixed_into(self, mine: Params, own: Tensor, weights: Tensor) -> Params | None:
        """`own * mine` plus the weighted sum in one pass over the models, if what was sent is `mine` itself.

        So it is in a simulation. None where it is not: use `sum_fitting`. own: (rows,).
        """
        if len(self._parcels) != 1 or isinstance(self._parcels[0].payload, Tensor):
            return None
        (parcel,) = self._parcels
        home = parcel.home if isinstance(parcel, Bundle) else None
        sent = cast(Mapping[str, Tree], parcel.payload if home is None else home)
        if not sent or any(leaf is not mine.get(name) for name, leaf in sent.items()):
            return None
        table = cast(Params, parcel.payload)
        oneself = torch.arange(self._n_rows)
        add = WeightedSum.over(
            torch.cat((parcel.source, oneself)),
            torch.cat((parcel.rows, oneself)),
            self._n_rows,
            torch.cat((weights.double(), own.double())),
            self._spread,
        )
        return {**mine, **{name: add(table[name]) for name in sent}}

    def map(self, fn: Callable[[Tree, Tensor], Tensor]) -> Tensor:
        """`fn(payloads, rows)` on many messages at once; one result per message.

        `payloads` is stacked over messages, `rows` says which row received each, to look up the
        row's own state and data, as in `node.predict(payloads, rows=rows)`.
        """
        results = [fn(payload, rows) for payload, rows in self._chunks()]
        return torch.cat(results) if results else torch.empty(0)

    def mean_of(self, fn: Callable[[Tree, Tensor], Tensor]) -> Tensor | None:
        """Mean of `fn` over each row's messages, in bounded memory; rows without any get zeros.

        None when no row received anything, since the shape of the result is then unknown.
        """
        total = self.sum_of(fn)
        return None if total is None else total / per_row(self.count.clamp(min=1), total).to(total.device)

    def sum_of(self, fn: Callable[[Tree, Tensor], Tensor], weights: Tensor | None = None) -> Tensor | None:
        """Sum of `fn` over each row's messages, each times its weight; otherwise as `mean_of`."""
        total: Tensor | None = None
        first = 0
        for payload, rows in self._chunks():
            value = fn(payload, rows)
            if weights is not None:
                value = value * per_row(weights[first : first + len(rows)], value).to(value)
            if total is None:
                total = value.new_zeros(self._n_rows, *value.shape[1:])
            total.index_add_(0, rows.to(total.device), value)
            first += len(rows)
        return total

    def pick(self, chosen: Tensor) -> Bundle:
        """Copies of the chosen messages, (messages,) bool, in their order; all must have the same names."""
        parts = zip(self._parcels, chosen.split([len(p.rows) for p in self._parcels]), strict=True)
        taken = [
            take(parcel.payload, parcel.source[mine])
            for number, (parcel, mine) in enumerate(parts)
            if bool(mine.any()) or not number  # so that of no messages there are at least the names
        ]
        payload = map_tree(lambda *leaves: torch.cat(leaves), taken[0], *taken[1:])
        return Bundle(payload, torch.arange(int(chosen.sum())), self.rows[chosen], self.senders[chosen])

    def having(self, kept: Tensor, others: Bundle) -> Inbox:
        """Another inbox: the messages where `kept`, (messages,) bool, holds, and then others."""
        parcels: list[Bundled] = []
        for parcel, mine in zip(self._parcels, kept.split([len(p.rows) for p in self._parcels]), strict=True):
            left = Bundle(parcel.payload, parcel.source[mine], parcel.rows[mine], parcel.senders[mine])
            parcels.append(parcel if bool(mine.all()) else left)
        parcels += [others] if len(others.rows) else []
        return Inbox(parcels, self._n_rows, self._came_back, self._spread)

    def through(self, change: Callable[[Tree], Tree]) -> Inbox:
        """Another inbox: the same messages with changed payloads."""
        parcels = [Bundle(change(p.payload), p.source, p.rows, p.senders) for p in self._parcels]
        return Inbox(parcels, self._n_rows, self._came_back, self._spread, self._order)

    def _chunks(self) -> list[tuple[Tree, Tensor]]:
        chunks = []
        for parcel in self._parcels:
            size = max(1, _MAP_CHUNK_BYTES // max(1, row_bytes(parcel.payload)))
            for source, rows in zip(parcel.source.split(size), parcel.rows.split(size), strict=True):
                if len(rows):
                    chunks.append((take(parcel.payload, source), rows))
        return chunks

    def _split(self, weights: Tensor | None) -> Sequence[Tensor | None]:
        if weights is None:
            return [None] * len(self._parcels)
        return list(weights.split([len(parcel.rows) for parcel in self._parcels]))


class SealedInbox(Inbox):
    """An inbox of which only the sum over each row's messages, and their number, may be known.

    This one adds up floats; see `sealing` for those that do as a secure sum does.
    """

    sealed = True

    @property
    def senders(self) -> Tensor:
        raise SealedError("a sealed inbox does not tell who sent what; use sum() and count")

    @property
    def rows(self) -> Tensor:
        raise SealedError("a sealed inbox does not tell single messages apart; use sum() and count")

    def sum(self, weights: Tensor | None = None) -> Tree:
        if weights is not None:
            raise SealedError(
                "a sealed sum has no weights at the receiver; senders must scale what they send"
            )
        return self._total()

    def _total(self) -> Tree:
        return super().sum()

    def sum_fitting(self, mine: Params, weights: Tensor | None = None) -> tuple[Params, Params]:
        raise SealedError(
            "a sealed sum does not tell which of its senders hold a tensor; use sum() and count"
        )

    def _chunks(self) -> list[tuple[Tree, Tensor]]:
        raise SealedError("a sealed inbox cannot be mapped over its messages; use sum() and count")


@dataclass(frozen=True)
class WeightedSum:
    """A sparse matrix product: which payload rows add up, with which weights, to each row.

    `embedding_bag` adds up row by row, so that the result does not depend on the number of threads. Long
    rows are cut into blocks of columns: every payload is then read from memory once, not by every receiver.
    """

    source: Tensor
    offsets: Tensor
    weights: Tensor | None
    spread: Spread = one_after_another

    @classmethod
    def of(
        cls, parcel: Bundled, weights: Tensor | None, n_rows: int, spread: Spread = one_after_another
    ) -> WeightedSum:
        return cls.over(parcel.source, parcel.rows, n_rows, weights, spread)

    @classmethod
    def over(
        cls,
        source: Tensor,
        rows: Tensor,
        n_rows: int,
        weights: Tensor | None = None,
        spread: Spread = one_after_another,
    ) -> WeightedSum:
        """Message m adds row `source[m]` of what is summed to row `rows[m]` of the result."""
        order = torch.argsort(rows, stable=True)
        counts = torch.bincount(rows, minlength=n_rows)
        offsets = counts.cumsum(0) - counts
        return cls(source[order], offsets, None if weights is None else weights[order], spread)

    def __call__(self, leaf: Tensor) -> Tensor:
        weights = None if self.weights is None else self.weights.to(leaf)
        source, offsets = self.source.to(leaf.device), self.offsets.to(leaf.device)
        table = leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))  # there may be no rows

        def add(part: Tensor) -> Tensor:
            return embedding_bag(source, part, offsets, mode="sum", per_sample_weights=weights)

        block = max(_FEWEST_SUMMED, _SUM_BLOCK_BYTES // max(1, len(table) * table.element_size()))
        if table.shape[1] <= block:
            total = add(table)
        else:
            total = table.new_empty(len(self.offsets), table.shape[1])
            blocks = list(zip(table.split(block, 1), total.split(block, 1), strict=True))
            self.spread(lambda pair: pair[1].copy_(add(pair[0].contiguous())), blocks)
        return total.reshape(len(self.offsets), *leaf.shape[1:])


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
