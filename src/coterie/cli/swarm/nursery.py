"""What all peers of a swarm have in common: imported once, and shared by the processes forked from it.

A process of its own imports PyTorch for a second and holds 260 MB. Forked from one that has done so, it
shares these pages until it writes to them: so the garbage collector leaves them alone.
"""

from __future__ import annotations

import gc
import os
import sys
from multiprocessing.connection import Connection

import coterie.cli.peer.run
import coterie.experiments.real_peers.joining  # noqa: F401  (what a peer needs at once)
from coterie.cli import main

gc.collect()
gc.freeze()


def be_a_peer(folder: str, log: str, result: str, alive: Connection) -> None:
    """`coterie peer run` in a process that was forked off. alive: ends with the swarm's own process."""
    if sys.platform != "win32":
        os.setsid()  # Ctrl-C is for the swarm, which ends its peers itself
    os.dup2(alive.fileno(), 0)
    for descriptor, path in ((1, result), (2, log)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["coterie", "peer", "run", "--dir", folder, "--json", "--while-stdin"]
    main()
