"""Counters of one peer, as plain numbers; `exposition` shows them in Prometheus' text format."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

_RECENT = 20  # rounds whose time predicts the rest


@dataclass
class Metrics:
    refused: Counter[str] = field(default_factory=Counter)  # by reason, messages of others refused here
    refused_by_others: Counter[str] = field(default_factory=Counter)  # by reason, ours refused there
    bytes_in: Counter[str] = field(default_factory=Counter)  # by peer, payloads taken
    bytes_out: Counter[str] = field(default_factory=Counter)  # by peer, payloads that were taken there
    messages_in: Counter[str] = field(default_factory=Counter)
    messages_out: Counter[str] = field(default_factory=Counter)
    staleness: dict[str, int] = field(default_factory=dict)  # by peer, rounds behind when last used
    missing: Counter[str] = field(default_factory=Counter)  # by peer, expected payloads that did not come
    implausible: Counter[str] = field(default_factory=Counter)  # by peer, what cannot be honest
    far: Counter[str] = field(default_factory=Counter)  # by peer, rounds with a model far from all others
    rounds: int = 0
    alone: int = 0  # rounds that were played while nobody else was there
    skipped: int = 0  # rounds that the others played without this peer
    waiting: float = 0.0  # seconds in exchanges, for sending and for others
    sealed_sums: int = 0
    sealed_failures: int = 0
    overdrawn: Counter[str] = field(default_factory=Counter)  # by peer, sums that it must not have
    sealed_implausible: int = 0  # sums that were opened and not used
    shares_in_doubt: int = 0
    shares_returned: int = 0
    shares_forgotten: int = 0
    began: float | None = None  # when the peer started, by the clock of its event loop
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))  # of the last rounds
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # by metric and point, last measured
    learned: dict[int, float] = field(default_factory=dict)  # by number, weights that the algorithm learned
    used: dict[int, float] = field(default_factory=dict)  # by number, shares in the payloads last used

    @property
    def seconds_per_round(self) -> float | None:
        return sum(self.seconds) / len(self.seconds) if self.seconds else None

    @property
    def weights(self) -> dict[int, float]:
        """Given to others by number, when last known."""
        return self.learned or self.used
