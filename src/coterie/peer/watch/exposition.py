"""A peer's counters in the text format 0.0.4 of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from coterie.peer.watch.standing import uptime

if TYPE_CHECKING:
    from coterie.peer.process import Peer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "coterie_peer_"


class Family(NamedTuple):
    """One metric with a sample for each set of labels."""

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float]]


def exposition(peer: Peer) -> str:
    """Everything that is counted, as a page; to be called in the peer's event loop."""
    return "".join(map(_lines, [*_own(peer), *_traffic(peer), *_others(peer)]))


def _own(peer: Peer) -> list[Family]:
    metrics = peer.metrics

    def counter(name: str, help: str, value: float) -> Family:
        return Family(name, "counter", help, [({}, value)])

    def gauge(name: str, help: str, value: float) -> Family:
        return Family(name, "gauge", help, [({}, value)])

    return [
        gauge("round", "Rounds that are in the checkpoint.", peer.journal.round),
        gauge("rounds", "Rounds of the experiment.", peer.rounds),
        gauge("finished", "1 when all rounds are done.", peer.finished),
        gauge("uptime_seconds", "Seconds since the peer started.", uptime(peer)),
        Family(
            "accuracy",
            "gauge",
            "Accuracy on the peer's own test data, by point of the round.",
            [({"point": point}, value) for point, value in metrics.accuracy.items()],
        ),
        counter("rounds_played_total", "Rounds that this process finished.", metrics.rounds),
        counter("sealed_sums_total", "Secure sums that were opened.", metrics.sealed_sums),
        counter("sealed_failures_total", "Secure sums that could not be opened.", metrics.sealed_failures),
        counter("shares_in_doubt_total", "Sent shares without a receipt.", metrics.shares_in_doubt),
        counter("shares_returned_total", "Shares in doubt that came back.", metrics.shares_returned),
        counter("shares_forgotten_total", "Shares in doubt that were given up.", metrics.shares_forgotten),
    ]


def _traffic(peer: Peer) -> list[Family]:
    metrics = peer.metrics

    def by(label: str, name: str, help: str, values: Mapping[str, int]) -> Family:
        return Family(name, "counter", help, [({label: key}, value) for key, value in sorted(values.items())])

    return [
        by("reason", "refused_total", "Messages of others that were refused here.", metrics.refused),
        by(
            "reason",
            "refused_by_others_total",
            "Own messages that others refused.",
            metrics.refused_by_others,
        ),
        by("peer", "received_bytes_total", "Bytes of payloads that were used.", metrics.bytes_in),
        by("peer", "sent_bytes_total", "Bytes of payloads that others took.", metrics.bytes_out),
        by("peer", "received_messages_total", "Payloads that were used.", metrics.messages_in),
        by("peer", "sent_messages_total", "Payloads that others took.", metrics.messages_out),
        by("peer", "missing_total", "Expected payloads that did not come.", metrics.missing),
    ]


def _others(peer: Peer) -> list[Family]:
    members = sorted(peer.roster().items())
    where = {member.name: peer.membership.presence(number) for number, member in members}
    weights = {
        member.name: peer.metrics.weights[number]
        for number, member in members
        if number in peer.metrics.weights
    }

    def gauge(name: str, help: str, values: Mapping[str, float]) -> Family:
        return Family(name, "gauge", help, [({"peer": key}, value) for key, value in values.items()])

    return [
        gauge(
            "neighbour_alive",
            "1 if the peer was heard of lately.",
            {member.name: peer.membership.alive(number) for number, member in members},
        ),
        gauge(
            "neighbour_round",
            "The round that the peer says it is in; -1: none yet.",
            {name: presence.position.round for name, presence in where.items()},
        ),
        gauge(
            "neighbour_exchange",
            "The exchange of its round that the peer is at, from 0.",
            {name: presence.position.slot for name, presence in where.items()},
        ),
        gauge("neighbour_weight", "Weight given to the peer's model when last known.", weights),
        gauge(
            "neighbour_staleness_rounds",
            "Rounds that the peer's model was behind when last used.",
            peer.metrics.staleness,
        ),
    ]


def _lines(family: Family) -> str:
    name = _PREFIX + family.name
    head = f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
    return head + "".join(f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in family.samples)


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
