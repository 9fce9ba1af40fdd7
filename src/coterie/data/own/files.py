"""Data files in the simulator, by the rules of real peers: one to be split, or several, one for each peer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.data.own.in_memory import from_arrays
from coterie.data.own.one_peer import Columns, OwnFile, load_file
from coterie.data.source import Source
from coterie.data.targets import targets_of
from coterie.errors import DataError
from coterie.registry import fill, parse_call
from coterie.user_code import data_file_parts, data_files, is_pattern, peers_in_files


@dataclass(frozen=True)
class Written:
    """What may stand in parentheses behind a file's name."""

    label: str = ""  # the column of labels; empty: `label`, or else the last
    columns: str = ""  # that are no features but kept to split by, joined by +


def columns_in(text: str, partition: str = "") -> Columns:
    """What a text says of a file's columns; the column that `natural` splits by is kept, too."""
    _, positional, keywords = parse_call(text, "data")
    bound = fill(Written, f"data {text!r}", positional, keywords)
    said = Written(*bound.args, **bound.kwargs)
    kept = [name.strip() for name in said.columns.split("+") if name.strip()]
    name, positional, keywords = parse_call(partition) if partition else ("", [], {})
    by = [*positional, *keywords.values()][:1] if name == "natural" else []
    return Columns(said.label, tuple(dict.fromkeys([*kept, *by])))


def load_files(
    text: str, partition: str, *, seed: int, n_classes: int | None, task: str
) -> Source | dict[str, Any]:
    """A source to be split by the partition; or, for a pattern, the data of each peer by its name."""
    paths, targets = data_files(text), targets_of(task)
    if is_pattern(data_file_parts(text)[0]):
        columns = columns_in(text)
        loaded = {path: load_file(path, targets, columns) for path in paths}
        _refuse_different(loaded)
        return dict(zip(peers_in_files(paths), (one.arrays for one in loaded.values()), strict=True))
    found = load_file(paths[0], targets, columns_in(text, partition))
    kept = {name: values if len(values) == 2 else values[0] for name, values in found.kept.items()}
    x, y, *test = found.arrays
    x_test, y_test = test or (None, None)
    try:
        return from_arrays(x, y, x_test, y_test, columns=kept, seed=seed, n_classes=n_classes, task=task)
    except DataError as error:
        hint = str(error).replace("n_classes=", "--set classes=")  # as it is said outside Python
        raise DataError(f"{paths[0]}: {hint}") from None


def _refuse_different(loaded: dict[Path, OwnFile]) -> None:
    """All tables must have the same features in the same order: a model takes them by their places."""
    first, *others = loaded
    for other in others:
        mine, theirs = loaded[first].features, loaded[other].features
        if mine != theirs:
            only = [f"{name!r}" for name in (*mine, *theirs) if (name in mine) != (name in theirs)]
            what = f"not both have {', '.join(only)}" if only else "they are in another order"
            raise DataError(f"{first} and {other} must have the same features in the same order; {what}")
