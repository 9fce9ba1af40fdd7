"""What a peer shows when it is asked: /metrics for Prometheus, /health and /status."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from coterie.peer.watch.monitoring import Page
from coterie.peer.watch.standing import health_of, standing_of, uptime

if TYPE_CHECKING:
    from coterie.peer.process import Peer

_JSON = "application/json"
_PREFIX = "coterie_peer_"
_Family = CounterMetricFamily | GaugeMetricFamily


def pages_of(peer: Peer, expires: Callable[[], float] | None = None) -> Mapping[str, Page]:
    """What can be asked about a peer, in its event loop. expires: when its certificate does, in Unix time."""
    registry = CollectorRegistry()  # of its own: the default one also counts what Python does
    registry.register(_Metrics(peer, expires))
    return {
        "/metrics": Page(CONTENT_TYPE_PLAIN_0_0_4, lambda: generate_latest(registry).decode()),
        "/health": Page(_JSON, lambda: json.dumps(health_of(peer))),
        "/status": Page(_JSON, lambda: standing_of(peer).model_dump_json()),
    }


class _Metrics(Collector):
    """Everything that a peer counts, read when it is asked for."""

    def __init__(self, peer: Peer, expires: Callable[[], float] | None) -> None:
        self._peer, self._expires = peer, expires

    def collect(self) -> Iterator[_Family]:
        if self._expires is not None:
            help = "When this peer's certificate expires, in Unix time."
            yield _gauge("certificate_expires_timestamp_seconds", help, self._expires())
        yield from _own(self._peer)
        yield from _traffic(self._peer)
        yield from _others(self._peer)


def _own(peer: Peer) -> Iterator[_Family]:
    metrics = peer.metrics
    yield _gauge("round", "Rounds that are in the checkpoint.", peer.journal.round)
    yield _gauge("rounds", "Rounds of the experiment.", peer.rounds)
    yield _gauge("finished", "1 when all rounds are done.", peer.finished)
    yield _gauge("uptime_seconds", "Seconds since the peer started.", uptime(peer))
    for metric in peer.node.task.metrics:
        help = f"{metric.title.capitalize()} on the peer's own test data, by point of the round."
        yield _gauges(metric.name, help, "point", metrics.scores.get(metric.name, {}))
    yield _counter("rounds_played", "Rounds that this process finished.", metrics.rounds)
    yield _counter("rounds_alone", "Rounds that were played while nobody else was there.", metrics.alone)
    yield _counter("rounds_skipped", "Rounds that the others played without this peer.", metrics.skipped)
    yield _counter(
        "waiting_seconds", "Seconds in exchanges: sending, and waiting for others.", metrics.waiting
    )
    yield _counter("sealed_sums", "Secure sums that were opened.", metrics.sealed_sums)
    yield _counter("sealed_failures", "Secure sums that could not be opened.", metrics.sealed_failures)
    help = "Secure sums that cannot be honest, and were not used."
    yield _counter("sealed_implausible", help, metrics.sealed_implausible)
    yield _counter("shares_in_doubt", "Sent shares without a receipt.", metrics.shares_in_doubt)
    yield _counter("shares_returned", "Shares in doubt that came back.", metrics.shares_returned)
    yield _counter("shares_forgotten", "Shares in doubt that were given up.", metrics.shares_forgotten)


def _traffic(peer: Peer) -> Iterator[_Family]:
    metrics = peer.metrics
    yield _counters("refused", "Messages of others that were refused here.", "reason", metrics.refused)
    help = "Sealed sums that a member asked for and must not have."
    yield _counters("overdrawn", help, "peer", metrics.overdrawn)
    help = "Own messages that others refused."
    yield _counters("refused_by_others", help, "reason", metrics.refused_by_others)
    yield _counters("received_bytes", "Bytes of payloads that were used.", "peer", metrics.bytes_in)
    yield _counters("sent_bytes", "Bytes of payloads that others took.", "peer", metrics.bytes_out)
    yield _counters("received_messages", "Payloads that were used.", "peer", metrics.messages_in)
    yield _counters("sent_messages", "Payloads that others took.", "peer", metrics.messages_out)
    yield _counters("implausible", "Payloads that cannot be honest.", "peer", metrics.implausible)
    yield _counters("far", "Rounds with a model far from all others.", "peer", metrics.far)
    yield _counters("missing", "Expected payloads that did not come.", "peer", metrics.missing)


def _others(peer: Peer) -> Iterator[_Family]:
    names = {number: member.name for number, member in sorted(peer.roster().items())}
    at = {name: peer.membership.presence(number).position for number, name in names.items()}
    alive = {name: peer.membership.alive(number) for number, name in names.items()}
    weights = {
        name: peer.metrics.weights[number] for number, name in names.items() if number in peer.metrics.weights
    }

    def gauges(name: str, help: str, values: Mapping[str, float]) -> _Family:
        return _gauges(f"neighbour_{name}", help, "peer", values)

    rounds = {name: position.round for name, position in at.items()}
    exchanges = {name: position.slot for name, position in at.items()}
    yield gauges("alive", "1 if the peer was heard of lately.", alive)
    awaited = {name: peer.membership.awaited(number) for number, name in names.items()}
    yield gauges("awaited", "1 if exchanges wait for the peer.", awaited)
    yield _reasons(peer, names)
    behind = {name: peer.membership.patience.conduct(number).behind for number, name in names.items()}
    help = "Seconds by which the peer's last message came after this one was ready for it."
    yield gauges("behind_seconds", help, {name: late for name, late in behind.items() if late is not None})
    yield gauges("round", "The round that the peer says it is in; -1: none yet.", rounds)
    yield gauges("exchange", "The exchange of its round that the peer is at, from 0.", exchanges)
    yield gauges("weight", "Weight given to the peer's model when last known.", weights)
    help = "Rounds that the peer's model was behind when last used."
    yield gauges("staleness_rounds", help, peer.metrics.staleness)


def _reasons(peer: Peer, names: Mapping[int, str]) -> _Family:
    help = "1 for the reason why a peer does not take part as it should."
    family = GaugeMetricFamily(f"{_PREFIX}neighbour_trouble", help, labels=["peer", "reason"])
    for number, name in names.items():
        if reason := peer.membership.reason(number).kind:
            family.add_metric([name, reason], 1)
    return family


def _gauge(name: str, help: str, value: float) -> _Family:
    return GaugeMetricFamily(_PREFIX + name, help, value=value)


def _counter(name: str, help: str, value: float) -> _Family:
    return CounterMetricFamily(_PREFIX + name, help, value=value)


def _gauges(name: str, help: str, label: str, values: Mapping[str, float]) -> _Family:
    family = GaugeMetricFamily(_PREFIX + name, help, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, help: str, label: str, values: Mapping[str, int]) -> _Family:
    family = CounterMetricFamily(_PREFIX + name, help, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
