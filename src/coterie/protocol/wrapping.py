"""Around any method: it stays as it is, and what it sends or receives is changed on the way."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from coterie.protocol.algorithm import Algorithm, Facts, Round
from coterie.protocol.exchange import Exchange
from coterie.protocol.inbox import Inbox
from coterie.protocol.node import Node, Task
from coterie.protocol.plausible import Check, Sized
from coterie.protocol.trees import Counters, Params, Tree

_STEPS = 127  # of a signed byte, either way
_PARTS = ("8-bit", "scale")


@dataclass(frozen=True)
class Wrapped(Algorithm[Any]):
    """A method that others wrap; in all else it is the method."""

    inner: Algorithm[Any]

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        return self.inner.facts

    def init(self, node: Node) -> Any:
        return self.inner.init(node)

    def round(self, state: Any, node: Node) -> Round[Any]:
        generator = cast(Generator[Exchange, Any, Any], self.inner.round(state, node))
        inbox: Inbox | None = None
        while True:
            try:
                exchange = generator.send(inbox)
            except StopIteration as end:
                return end.value
            inbox = self.received(exchange, (yield self.sent(exchange)), node)

    def sent(self, exchange: Exchange) -> Exchange:
        """What leaves in the place of what the method sends."""
        return exchange

    def received(self, exchange: Exchange, inbox: Inbox, node: Node) -> Inbox:
        """What the method gets in the place of what arrived."""
        return inbox

    def personal(self, state: Any) -> Params:
        return self.inner.personal(state)

    def collaboration(self, state: Any) -> Tensor | None:
        return self.inner.collaboration(state)

    def seen_in_clear(self, state: Any) -> Tensor | None:
        return self.inner.seen_in_clear(state)

    def mass(self, state: Any) -> Tensor | None:
        return self.inner.mass(state)

    def needs_both_ways(self) -> bool:
        return self.inner.needs_both_ways()

    def needs_step(self) -> bool:
        return self.inner.needs_step()

    def takes_architectures(self) -> bool:
        return self.inner.takes_architectures()

    def compared_layer(self) -> str | None:
        return self.inner.compared_layer()

    def check_task(self, task: Task) -> None:
        self.inner.check_task(task)

    def settings(self) -> dict[str, Any]:
        return self.inner.settings()


@dataclass(frozen=True)
class InBytes(Wrapped):
    """Matrices of parameters travel as bytes: x ~ s q,  s = max |x| / 127 for each of their rows.

    What is sealed is whole: a sum of bytes with different s is none. So is what is conserved, since what
    comes back must be what was sent. Vectors, and what has no name of a parameter, are small.
    """

    def sent(self, exchange: Exchange) -> Exchange:
        if not _travels_in_bytes(exchange):
            return exchange
        check = InWhole(exchange.check or Sized(exchange.payload))
        return replace(exchange, payload=packed(exchange.payload), check=check)

    def received(self, exchange: Exchange, inbox: Inbox, node: Node) -> Inbox:
        return inbox.through(unpacked) if _travels_in_bytes(exchange) else inbox


@dataclass(frozen=True)
class InWhole:
    """Asks about a message in bytes what another check asks about the message."""

    sized: Check

    def __call__(self, payload: Tree) -> str:
        return self.sized(unpacked(payload))


def _travels_in_bytes(exchange: Exchange) -> bool:
    return bool(exchange.payload) and not exchange.sealed and not exchange.conserved


def packed(tree: Tree, name: str = "") -> Tree:
    """The tree with a byte and a few scales in the place of each number of its matrices."""
    if isinstance(tree, Counters):
        return tree
    if isinstance(tree, Mapping):
        return {key: packed(value, key) for key, value in tree.items()}
    if "." not in name or tree.dim() < 3 or not tree.is_floating_point():
        return tree
    scale = tree.flatten(2).abs().amax(2) / _STEPS
    along = scale.reshape(*scale.shape, *[1] * (tree.dim() - 2))
    steps = (
        (tree / along.where(along > 0, 1.0)).round().nan_to_num(0.0)
    )  # of what is no number, the scale is none
    return dict(zip(_PARTS, (steps.clamp(-_STEPS, _STEPS).to(torch.int8), scale), strict=True))


def unpacked(tree: Tree) -> Tree:
    """What `packed` made of a tree, as a tree again."""
    if isinstance(tree, Tensor | Counters):
        return tree
    if tuple(tree) == _PARTS:
        steps, scale = (cast(Tensor, tree[part]) for part in _PARTS)
        return steps.to(scale) * scale.reshape(*scale.shape, *[1] * (steps.dim() - 2))
    return {key: unpacked(value) for key, value in tree.items()}
