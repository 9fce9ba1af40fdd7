"""Whether an experiment has groups large enough for sealed sums."""

from __future__ import annotations

import logging
from typing import Any

from coterie.errors import ConfigError
from coterie.experiments.setup.schema import Experiment
from coterie.protocol import Algorithm
from coterie.protocol.ledger import Bound
from coterie.topology import Topology

_log = logging.getLogger("coterie")

_MOST_NAMED = 10


def is_sealed(algorithm: Algorithm[Any]) -> bool:
    """Whether all that an algorithm learns from others, as it is set, is sealed."""
    return algorithm.facts.sealed and bool(algorithm.settings().get("sealed", True))


def bound_of(experiment: Experiment) -> Bound:
    """On what sealed sums may give away."""
    agreed = experiment.privacy
    return Bound(agreed.smallest_group, agreed.opened, agreed.rounds, agreed.alike, agreed.largest)


def require_groups(experiment: Experiment, algorithm: Algorithm[Any], topology: Topology) -> None:
    """Refuse an experiment of which no sealed sum would be opened; name peers with too few senders."""
    if not is_sealed(algorithm):
        return
    smallest, asked = experiment.privacy.smallest_group, algorithm.sealed_group()
    if asked is not None and asked < smallest:
        raise ConfigError(
            f"{experiment.algorithm} as set asks for sealed sums over {asked}, and the smallest group is "
            f"{smallest}: nothing would be opened. Use settings.peers = {smallest}, or agree on "
            f"privacy.smallest_group = {asked}"
            + (", where a member that tells its own model opens the other's" if asked == 2 else "")
        )
    degree = topology.graph(0).in_degree[: experiment.peers]
    few = (degree < smallest).nonzero().flatten().tolist()
    if not few or (topology.time_varying and len(few) < len(degree)):
        return
    if len(few) == len(degree):
        raise ConfigError(
            f"in topology {experiment.topology!r} at most {int(degree.max())} peers send to anyone, and a "
            f"sealed sum needs {smallest}: nothing would be opened. Use a topology of more neighbours, such "
            f"as random-regular(4) or full, with at least {smallest + 1} peers; or another algorithm, such "
            "as d-psgd, whose models are seen; or agree on another privacy.smallest_group"
        )
    who = ", ".join(map(str, few[:_MOST_NAMED])) + (", ..." if len(few) > _MOST_NAMED else "")
    _log.warning("fewer than %d peers send to peer %s: it opens no sealed sum", smallest, who)
