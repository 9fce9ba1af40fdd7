"""How a peer stands: what it shows of itself and of the others while it runs. Needs no PyTorch to be read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from coterie.metric import ACCURACY, Metric

if TYPE_CHECKING:
    from coterie.peer.exchange.membership import Acquaintance
    from coterie.peer.process import Peer


class _Shown(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)  # a newer peer may say more


class Neighbour(_Shown):
    """Another member of the roster, as this peer sees it."""

    name: str
    number: int
    alive: bool
    finished: bool
    round: int  # -1: it has not begun, or was never heard of
    bytes_in: int
    bytes_out: int
    weight: float | None  # None: unknown
    staleness: int | None  # rounds that its model was behind when it was last used
    missing: int  # times that something was expected of it and did not come
    trouble: str  # why it does not answer
    awaited: bool = True  # whether exchanges wait for it
    reason: str = ""  # slow, silent, unreachable, refused, not valid, clock; empty: nothing is wrong


class Standing(_Shown):
    """One peer at one moment."""

    name: str
    number: int
    round: int  # finished rounds
    rounds: int
    joined: bool
    finished: bool
    in_step: bool
    uptime: float  # seconds
    seconds_per_round: float | None
    metric: Metric = ACCURACY  # the main one
    scores: Mapping[str, float] = Field(default_factory=dict)  # it by point, when last measured
    bytes_in: int
    bytes_out: int
    refused: Mapping[str, int] = Field(default_factory=dict)
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def seconds_left(self) -> float | None:
        if self.seconds_per_round is None:
            return None
        return self.seconds_per_round * max(0, self.rounds - self.round)


def standing_of(peer: Peer) -> Standing:
    """To be called in the peer's event loop."""
    metrics, metric = peer.metrics, peer.node.task.metrics[0]
    return Standing(
        name=peer.name,
        number=peer.number,
        round=peer.journal.round,
        rounds=peer.rounds,
        joined=peer.joined,
        finished=peer.finished,
        in_step=peer.in_step,
        uptime=uptime(peer),
        seconds_per_round=metrics.seconds_per_round,
        metric=Metric(metric.name, metric.higher_is_better, metric.percent),
        scores={
            point: value for point, value in metrics.scores.get(metric.name, {}).items() if value == value
        },
        bytes_in=sum(metrics.bytes_in.values()),
        bytes_out=sum(metrics.bytes_out.values()),
        refused=dict(metrics.refused),
        neighbours=tuple(_neighbour(peer, member) for _, member in sorted(peer.roster().items())),
    )


def uptime(peer: Peer) -> float:
    """Seconds since the peer started."""
    began = peer.metrics.began
    return 0.0 if began is None else asyncio.get_running_loop().time() - began


def health_of(peer: Peer) -> dict[str, object]:
    """A short answer for whoever only asks whether all is well."""
    members = sorted(peer.roster().items())
    return {
        "name": peer.name,
        "round": peer.journal.round,
        "rounds": peer.rounds,
        "finished": peer.finished,
        "alive": [member.name for number, member in members if peer.membership.alive(number)],
        "absent": [member.name for number, member in members if not peer.membership.alive(number)],
    }


def _neighbour(peer: Peer, member: Acquaintance) -> Neighbour:
    presence, metrics = peer.membership.presence(member.number), peer.metrics
    reason = peer.membership.reason(member.number)
    return Neighbour(
        name=member.name,
        number=member.number,
        alive=peer.membership.alive(member.number),
        finished=presence.finished,
        round=presence.position.round,
        bytes_in=metrics.bytes_in[member.name],
        bytes_out=metrics.bytes_out[member.name],
        weight=metrics.weights.get(member.number),
        staleness=metrics.staleness.get(member.name),
        missing=metrics.missing[member.name],
        trouble=reason.text,
        awaited=peer.membership.awaited(member.number),
        reason=reason.kind,
    )
