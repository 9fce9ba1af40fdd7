"""What went over the links: by node, by link, and who carried most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.numbers.known import Whole


@dataclass(frozen=True)
class Traffic:
    """Bytes of payloads since the first round; nodes are the peers, then a hub if there is one."""

    sent: Whole  # (nodes,)
    received: Whole  # (nodes,) of what arrived
    senders: Whole  # (links,) the link with most bytes first
    receivers: Whole  # (links,)
    link_bytes: Whole  # (links,)
    link_messages: Whole  # (links,)
    peers: int
    whole: bool  # False: not all messages are listed one by one

    @property
    def busiest(self) -> int | None:
        """The node that sent most; None if nobody sent anything."""
        return int(self.sent.argmax()) if self.sent.any() else None

    @property
    def per_peer(self) -> float:
        """What a peer sent, on average."""
        return float(self.sent[: self.peers].mean())

    def name_of(self, node: int, run: OfFolder) -> str:
        return "the hub" if node >= self.peers else f"peer {run.name_of(node)}"


def traffic_of(run: OfFolder) -> Traffic:
    messages = run.messages
    sender, receiver, size = (messages.column(name) for name in ("sender", "receiver", "bytes"))
    nodes = max(run.peers, 1 + int(max(sender.max(initial=0), receiver.max(initial=0))))
    arrived = size * (messages.column("delivered") > 0)
    links, place = np.unique(sender * nodes + receiver, return_inverse=True)
    volume = _sums(place, size, len(links))
    order = np.argsort(-volume, kind="stable")
    return Traffic(
        _sums(sender, size, nodes),
        _sums(receiver, arrived, nodes),
        (links // nodes)[order],
        (links % nodes)[order],
        volume[order],
        np.bincount(place, minlength=len(links))[order],
        run.peers,
        not messages.cut and len(sender) == sum(run.done.messages),
    )


def bytes_until(run: OfFolder, rounds: list[int]) -> list[float]:
    """What a peer had sent after each of these rounds, counted from 1; a hub is none."""
    sent = np.cumsum([0, *(a - b for a, b in zip(run.done.bytes, run.done.hub_bytes, strict=True))])
    return [float(sent[number]) / run.peers for number in rounds]


def _sums(place: Whole, values: Whole, count: int) -> Whole:
    return np.bincount(place, weights=values, minlength=count).astype(np.int64)
