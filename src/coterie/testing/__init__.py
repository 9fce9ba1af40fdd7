"""For whoever writes an algorithm: peers in memory, under faults that follow from a seed.

The peers are those of `coterie peer run`, with the same exchanges, journals and mailboxes. Only their network
and their clock are in memory, so that nothing takes real time, and a failure can be looked at again:

>>> from coterie.algorithms.d_psgd import DPSGD
>>> from coterie.testing import Crash, Cut, Faults, run_peers
>>> bad = Faults(lost_request=0.1, duplicated=0.2, cut=Cut({"peer-0"}, start=2.0, seconds=5.0))
>>> outcome = run_peers(DPSGD(), peers=4, rounds=3, faults=bad, crashes=[Crash(peer=1, at=1.0)], seed=7)
>>> outcome.finished
[0, 1, 2, 3]
>>> [report.round for report in outcome.reports[3]]
[0, 1, 2]

`Join`, `Leave`, `Rotation` and `PowerFailure` happen among the crashes.
`MemoryPeers` is for tests that start and crash peers themselves, or look at what passes between them.
`MemoryNetwork` and `run_virtually` are the network and the clock alone.
"""

from coterie.testing.network import Cut, Faults, MemoryNetwork, MemoryTransport, VirtualLoop, run_virtually
from coterie.testing.peers import (
    Crash,
    Join,
    Leave,
    MemoryPeers,
    Outcome,
    PowerFailure,
    Rotation,
    run_peers,
    small_federation,
    small_module,
    topology_for,
)

__all__ = [
    "Crash",
    "Cut",
    "Faults",
    "Join",
    "Leave",
    "MemoryNetwork",
    "MemoryPeers",
    "MemoryTransport",
    "Outcome",
    "PowerFailure",
    "Rotation",
    "VirtualLoop",
    "run_peers",
    "run_virtually",
    "small_federation",
    "small_module",
    "topology_for",
]
