"""What a round yields: a payload for other nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.protocol.plausible import Check
from coterie.protocol.trees import Tree


@dataclass(frozen=True)
class Links:
    """Pairs of a row of this process and the id of another node, in any order."""

    rows: Tensor  # (links,) positions in node.ids
    ids: Tensor  # (links,) global node ids
    order: Tensor | None = None  # (links,) of answers: the places of what they answer among all messages

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, kept: Tensor) -> Links:
        """Some of them. kept: (links,) bool."""
        order = None if self.order is None else self.order[kept]
        return Links(self.rows[kept], self.ids[kept], order)


@dataclass(frozen=True)
class Exchange:
    """Send each row's payload and receive an Inbox.

    payload: a tree of tensors with a leading axis of rows; each receiver gets its sender's row.
    to: who receives; None means the out-edges of this round's topology.
    sealed: receivers learn the sum of what was sent to them and the number of senders, no more.
    expect: whom each row expects to hear from, for drivers that must know when to stop waiting;
        None means the in-edges of this round's topology when `to` is None, else unknown.
    counted: False for messages that serve only the measurement, such as handing the hub's model to
        every client for evaluation; they are always delivered and not part of the byte count.
    conserved: what is sent is taken from the sender, as push-sum's mass is: a message must be taken once or
        come back, and what came back is in `Inbox.returned`.
    averaged: the payload is a model, perhaps times a weight, that receivers mix into their own; False for
        gradients and the like, which `robust` does not judge.
    most: of a sealed exchange with `to`, how many nodes a row asks at most; members answer no larger groups.
    answers: whom a row expects it has asked before. Where peers do not keep step, those that it asked in
        earlier rounds may answer now, and each answer is used once.
    check: what real peers ask about every message before they take it; None: whether it is about as large
        as one's own payload.
    """

    payload: Tree = field(default_factory=dict)
    to: Links | None = None
    sealed: bool = False
    expect: Links | None = None
    counted: bool = True
    conserved: bool = False
    check: Check | None = None
    averaged: bool = True
    most: int | None = None
    answers: bool = False
