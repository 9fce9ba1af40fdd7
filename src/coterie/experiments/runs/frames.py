"""Tables of columns as data frames: of pandas or polars, whichever is installed or asked for.

Both are optional. What a run's frames hold is said in docs/results.md.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from coterie.errors import ConfigError
from coterie.experiments.runs.records import TRAFFIC, TRAINING, WORK
from coterie.registry import nearest
from coterie.simulation import POINTS
from coterie.spreads import listed

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.experiments.runs.run import Run

Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")
Columns = dict[str, list[Any]]


def frame(columns: Mapping[str, list[Any]], library: str | None = None) -> Any:
    """A data frame. library: pandas or polars; None: the first of them that is installed."""
    chosen = installed_library(library)
    if chosen == "polars":
        return importlib.import_module("polars").DataFrame(dict(columns), strict=False)
    return importlib.import_module("pandas").DataFrame(dict(columns))


def installed_library(wanted: str | None = None) -> Library:
    """The library that makes frames, or a sentence on how to get one."""
    if wanted is not None and wanted not in LIBRARIES:
        raise ConfigError(f"frames are of pandas or polars, not of {wanted!r}")
    names: tuple[Library, ...] = LIBRARIES if wanted is None else (wanted,)
    for name in names:
        if importlib.util.find_spec(name) is not None:
            return name
    raise ConfigError(
        f"frames need {' or '.join(names)}, which {'is' if wanted else 'are'} not installed: "
        f"pip install {names[0]}, or 'coterie[frames]'"
    )


def columns_of(run: Run, kind: str) -> Columns:
    """What is known of a run's rounds, of its peers in them, or of the links between peers."""
    makers = {"rounds": _rounds, "peers": _peers, "links": _links}
    if kind not in makers:
        raise ConfigError(f"a run has no frame {kind!r}; {nearest(kind, makers)}")
    return makers[kind](run)


def _rounds(run: Run) -> Columns:
    """A line for each round; means over peers where it was measured."""
    history = run.history
    columns: Columns = {"round": list(range(1, len(history.seconds) + 1)), "seconds": list(history.seconds)}
    for place, name in enumerate(TRAFFIC):
        columns[name] = [traffic[place] for traffic in history.traffic]
    measured = {one.round: one for one in history.measurements}
    for column, point in _measured(run):
        columns[f"{column}_{point}"] = [
            measured[n].mean(column, point) if n in measured else None for n in range(len(history.seconds))
        ]
    return columns


def _peers(run: Run) -> Columns:
    """A line for each peer in each measured round; of very many peers, for those that are listed."""
    some = listed(run.peers)
    numbers = list(range(run.peers)) if some is None else some.tolist()
    found = [one if some is None else one.sample() for one in run.history.measurements]
    columns: Columns = {
        "round": [one.round + 1 for one in found for _ in numbers],
        "peer": numbers * len(found),
    }
    if run.names:
        columns["name"] = [run.names[peer] for peer in numbers] * len(found)
    for name in TRAINING:
        columns[name] = _values([one.training.get(name) for one in found], len(numbers))
    for name, kind in {"online": bool, **dict.fromkeys(WORK, int)}.items():
        columns[name] = [None if value is None else kind(value) for value in columns[name]]
    for column, point in _measured(run):
        values = [one.values.get((column, point)) for one in found]
        columns[f"{column}_{point}"] = _values(values, len(numbers))
    return columns


def _links(run: Run) -> Columns:
    """A line for each two peers of whom one sent the other something that arrived."""
    received = run.received
    receivers, senders = received.receivers.tolist(), received.senders.tolist()
    named = {"sender_name": senders, "receiver_name": receivers} if run.names else {}
    return {
        "sender": senders,
        "receiver": receivers,
        **{column: [run.names[peer] for peer in peers] for column, peers in named.items()},
        "messages": received.messages.tolist(),
        "bytes": received.bytes.tolist(),
        "share": run.shares_of_links().tolist(),
    }


def _measured(run: Run) -> list[tuple[str, str]]:
    """The columns and points that some round has."""
    found = dict.fromkeys(key for one in run.history.measurements for key in one.values)
    columns = dict.fromkeys(column for column, _ in found)
    return [(column, point) for column in columns for point in POINTS if (column, point) in found]


def _values(found: Sequence[Tensor | None], count: int) -> list[Any]:
    """Of all rounds; None where it was not measured."""
    lists = ([None] * count if values is None else values.tolist() for values in found)
    return [None if value is None or value != value else value for values in lists for value in values]
