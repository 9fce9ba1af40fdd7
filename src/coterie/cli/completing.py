"""What a shell offers when a user presses Tab: names of the catalogue, and runs. Quick: no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coterie import catalogue
from coterie.experiments.runs.naming import RUNS

Offer = Callable[[str], list[str]]


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def names_of(kind: str) -> Offer:
    """The names of one kind, such as algorithms."""
    return lambda incomplete: _starting(getattr(catalogue, kind), incomplete)


def list_of_algorithms(incomplete: str) -> list[str]:
    """The last of several names with commas between them, after those before."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _starting(catalogue.algorithms, last)]


def explained(incomplete: str) -> list[str]:
    kinds = ("algorithms", "sources", "models", "partitions", "tasks", "topologies")
    return _starting([name for kind in kinds for name in getattr(catalogue, kind)], incomplete)


def runs_there(incomplete: str) -> list[str]:
    """The folders in runs/, with that before them: a shell goes on with what was typed."""
    if not RUNS.is_dir():
        return []
    return _starting(sorted(f"{RUNS}/{path.name}" for path in RUNS.iterdir() if path.is_dir()), incomplete)
