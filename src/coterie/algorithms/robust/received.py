"""Around any method that mixes models: what an exchange brought is changed before the method sees it.

The method itself stays as it is. `Around` gives its round another inbox. Guards against lying
members (`guards.py`) and the lies themselves (`attacks.py`) are such changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, cast

import torch
from torch import Tensor

from coterie.errors import ContractError
from coterie.protocol import Bundle, Exchange, Inbox, Node, Params, Tree
from coterie.protocol.plausible import Sized, branch
from coterie.protocol.trees import map_params, per_row, some_rows
from coterie.protocol.wrapping import Wrapped

Change: TypeAlias = Callable[["Messages", Node], Inbox]
"""From the messages of one exchange to the inbox that the method gets instead."""


@dataclass(frozen=True)
class Around(Wrapped):
    """A method whose inboxes are changed."""

    change: Change = field(repr=False)

    def received(self, exchange: Exchange, inbox: Inbox, node: Node) -> Inbox:
        messages = messages_of(exchange, inbox)
        return inbox if messages is None else self.change(messages, node)


@dataclass(frozen=True)
class Messages:
    """The messages of one exchange, as models: weights by which models were multiplied are taken out.

    mine: each row's own model, of the names that are compared. place: where model and weight are in a
    payload. conserved: no message may be dropped, since mass would go with it.
    """

    inbox: Inbox
    mine: Params
    place: Sized
    conserved: bool

    @property
    def rows(self) -> Tensor:
        return self.inbox.rows

    @property
    def senders(self) -> Tensor:
        return self.inbox.senders

    def models(self, payload: Tree) -> Params:
        """(messages, ...) of stacked payloads."""
        sent = cast(Params, branch(payload, self.place.model))
        weight = self._weight(payload)
        chosen = {name: sent[name] for name in self.mine}
        if weight is None:
            return chosen
        return map_params(lambda leaf: leaf / per_row(weight.clamp(min=1e-30), leaf).to(leaf), chosen)

    def with_models(self, payload: Tree, models: Params) -> Tree:
        """The payloads with other models in them, times the same weights."""
        weight = self._weight(payload)
        if weight is not None:
            models = map_params(lambda leaf: leaf * per_row(weight, leaf).to(leaf), models)
        if not self.place.model:
            return {**cast(Params, payload), **models}
        sent = cast(Params, branch(payload, self.place.model))
        return {**cast(dict[str, Tree], payload), self.place.model: {**sent, **models}}

    def _weight(self, payload: Tree) -> Tensor | None:
        return cast(Tensor, branch(payload, self.place.weight)) if self.place.weight else None

    @cached_property
    def distance(self) -> Tensor:
        """(messages,) between the sent model and the receiver's own; infinite where it is no number."""

        def squared(payload: Tree, rows: Tensor) -> Tensor:
            models = self.models(payload)
            parts = [(models[name] - some_rows(own, rows)).double() for name, own in self.mine.items()]
            return torch.stack([part.flatten(1).square().sum(1).cpu() for part in parts]).sum(0)

        return self.inbox.map(squared).sqrt().nan_to_num(nan=torch.inf, posinf=torch.inf)

    @cached_property
    def norm(self) -> Tensor:
        """(rows,) of each row's own model."""
        parts = [own.double().flatten(1).square().sum(1).cpu() for own in self.mine.values()]
        return torch.stack(parts).sum(0).sqrt()

    def shrunk(self, factor: Tensor) -> Inbox:
        """Models moved towards the receiver's own: x_i + factor (x_j - x_i). A factor of 0 drops a message.

        factor: (messages,) from 0 to 1. Where nothing is changed the inbox is what it was.
        """
        whole, gone = factor >= 1, factor <= 0
        changed = ~whole if self.conserved else ~whole & ~gone
        bundle = self.inbox.pick(changed)
        own = map_params(lambda leaf: some_rows(leaf, bundle.rows), self.mine)
        share, kept = factor[changed], ~gone[changed]

        def between(mine: Tensor, sent: Tensor) -> Tensor:
            moved = mine + (sent - mine) * per_row(share, mine).to(mine)
            return moved.where(per_row(kept, mine).to(mine.device), mine)

        models = map_params(between, own, self.models(bundle.payload))
        return self.inbox.having(whole, self._with(bundle, models))

    def replaced(self, chosen: Tensor, models: Params) -> Inbox:
        """Other models, one for each message that is chosen, in their order."""
        return self.inbox.having(~chosen, self._with(self.inbox.pick(chosen), models))

    def stacked(self, chosen: Tensor) -> Params:
        """The models of the chosen messages."""
        return self.models(self.inbox.pick(chosen).payload)

    def _with(self, bundle: Bundle, models: Params) -> Bundle:
        payload = self.with_models(bundle.payload, models)
        return Bundle(payload, bundle.source, bundle.rows, bundle.senders)


def messages_of(exchange: Exchange, inbox: Inbox) -> Messages | None:
    """What arrived, if models did that are mixed."""
    if not exchange.averaged or not exchange.counted or not exchange.payload or inbox.sealed:
        return None
    if not len(inbox.rows):
        return None
    sized = getattr(exchange.check, "sized", exchange.check)
    place = sized if isinstance(sized, Sized) else Sized(exchange.payload)
    sent, own = branch(exchange.payload, place.model), place.mine
    assert not isinstance(sent, Tensor)
    assert not isinstance(own, Tensor)
    mine = {name: leaf for name, leaf in own.items() if name in sent and _is_real(leaf)}
    if not mine:
        raise ContractError(
            "robust and faults.byzantine change models that are averaged; this method sends none"
        )
    return Messages(inbox, cast(Params, mine), place, exchange.conserved)


def _is_real(leaf: Tree) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def middle_of_rows(values: Tensor, rows: Tensor, n_rows: int) -> Tensor:
    """(rows,) the lower median of each row's values; infinite for a row without any."""
    order = torch.argsort(values, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    counts = torch.bincount(rows, minlength=n_rows)
    place = counts.cumsum(0) - counts + (counts - 1).clamp(min=0) // 2
    result = torch.full((n_rows,), torch.inf, dtype=values.dtype)
    result[counts > 0] = values[order][place[counts > 0]]
    return result
