"""Data sets by name, and how to split them among peers.

    source = load("digits", peers=20, seed=0)
    federation = split(source, "dirichlet(0.3)", peers=20, seed=0)

Nothing is downloaded: files are read in their official formats from a folder that the user names.
"""

from coterie.data.federation import Federation, Split
from coterie.data.own.in_memory import from_arrays, from_peers
from coterie.data.partitions.partition import Assignment, Partition
from coterie.data.source import DataSet, Source, load
from coterie.data.splitting import split

__all__ = [
    "Assignment",
    "DataSet",
    "Federation",
    "Partition",
    "Source",
    "Split",
    "from_arrays",
    "from_peers",
    "load",
    "split",
]
