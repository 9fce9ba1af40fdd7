"""Refusals in the log: each source by itself, and in fewer and fewer lines, so that a flood hides nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from coterie.peer.exchange.metrics import Metrics

_log = logging.getLogger("coterie.peer")
_MOST_HOSTS = 1000  # of strangers that are told apart
_THE_REST = "other strangers"


@dataclass
class Refusals:
    """Counts what was refused. The first, the tenth, the hundredth ... of a reason and a source is logged.

    members: the names in the roster. Everybody else is known by the host, whatever port they call from.
    """

    metrics: Metrics
    members: Callable[[], Collection[str]]
    _times: Counter[tuple[str, str]] = field(default_factory=Counter)
    _hosts: set[str] = field(default_factory=set)

    def __call__(self, reason: str, who: str) -> None:
        self.metrics.refused[reason] += 1
        source = who if who in self.members() else self._stranger(who)
        self._times[reason, source] += 1
        times = self._times[reason, source]
        if set(str(times)[1:]) <= {"0"} and str(times)[0] == "1":
            again = f", {times:,} times by now" if times > 1 else ""
            _log.warning("refused %s: %s%s", source, reason, again)

    def _stranger(self, who: str) -> str:
        host = who.rpartition(":")[0] or who
        if host not in self._hosts and len(self._hosts) >= _MOST_HOSTS:
            return _THE_REST
        self._hosts.add(host)
        return host
