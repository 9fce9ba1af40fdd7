"""A sweep: every combination of values of some config keys, with several seeds. Needs no PyTorch."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.comparing import (
    MakeTable,
    Say,
    give_hub_its_star,
    note_overruled,
    on_the_same_data,
)
from coterie.experiments.runs import naming
from coterie.experiments.setup.config import override, refuse_unknown_words, resolve, with_equal_work
from coterie.experiments.setup.schema import Experiment
from coterie.registry import nearest, parse_call, split_outside_brackets
from coterie.user_code import is_file_reference

SAME_DATA = {"data", "partition", "peers", "seed", "splitting"}


@dataclass(frozen=True)
class Axis:
    """One key of the config and the values that it takes, as the user wrote them."""

    key: str
    values: tuple[str, ...]

    def refuse_unknown_words(self) -> None:
        """Find a mistake in any of the values before the first imports what it stands for."""
        for value in self.values:
            table: dict[str, Any] = {}
            override(table, f"{self.key}={value}")
            refuse_unknown_words(table)


def parse_axis(text: str) -> Axis:
    """`training.lr=0.01,0.1`, or `algorithm=local,random-gossip(3)`."""
    key, equals, values = text.partition("=")
    parts = tuple(part.strip() for part in split_outside_brackets(values) if part.strip())
    if not equals or not key.strip() or not parts:
        raise ConfigError(f"--over {text!r} is not of the form key=value,value")
    for one, other in itertools.combinations(parts, 2):
        if one == other or _same(parse_value(one), parse_value(other)):
            raise ConfigError(f"--over {text!r}: {one} and {other} are the same value")
    if key.strip() == "seed":
        raise ConfigError("--over seed=...: say how many seeds with --seeds, counted up from --seed")
    return Axis(key.strip(), parts)


RANGE = re.compile(r"^\s*(log|uniform|int)\s*\(([^,()]+),([^,()]+)\)\s*$")
"""Numbers between two ends, for a search: log(0.001,1)."""


def refuse_ranges(texts: Sequence[str]) -> None:
    """A range has no end of values: only a search can choose among them."""
    for text in texts:
        if RANGE.match(text.partition("=")[2]):
            raise ConfigError(
                f"--over {text!r} is a range of numbers: say how many of them to try with --optuna"
            )


def parse_value(text: str) -> Any:
    """The value that an experiment gets: TOML, or else a number such as .5, or else a string."""
    table: dict[str, Any] = {}
    override(table, f"value={text}")
    try:
        return float(table["value"]) if isinstance(table["value"], str) else table["value"]
    except ValueError:
        return table["value"]


def _same(one: Any, other: Any) -> bool:
    """1 and 1.0 are the same value, 1 and true are not."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def combinations(
    axes: Sequence[Axis], seeds: int, make_table: MakeTable
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(labels, table of an experiment) of every combination; `make_table(algorithm)` gives what is common."""
    keys = [axis.key for axis in axes]
    if len(set(keys)) < len(keys):
        raise ConfigError(f"--over {next(key for key in keys if keys.count(key) > 1)} is given twice")
    planned = []
    for values in itertools.product(*(axis.values for axis in axes)):
        labels: dict[str, Any] = dict(zip(keys, values, strict=True))
        table = copy.deepcopy(make_table(labels.get("algorithm")))
        for key, value in labels.items():
            if key != "algorithm":
                override(table, f"{key}={value}")
        first = int(table.get("seed", 0))
        planned += [({**labels, "seed": n}, {**table, "seed": n}) for n in range(first, first + seeds)]
    return planned


def plan_cells(
    make_table: MakeTable,
    axes: Sequence[Axis],
    seeds: int,
    say: Say,
    *,
    check: Callable[[dict[str, Any]], Experiment] = resolve,
) -> list[Cell]:
    """The cells, checked before anything runs; says what was changed."""
    for axis in axes:
        axis.refuse_unknown_words()
    if not axes and seeds == 1:
        raise ConfigError("what to sweep over? Write --over training.lr=0.01,0.1, or --seeds 3")
    planned, say_once = combinations(axes, seeds, make_table), once(say)
    for _, table in planned:
        give_hub_its_star(table, parse_call(str(table.get("algorithm", "local")), "algorithm")[0], say_once)
    tables = on_the_same_data([table for _, table in planned], say)
    cells = [
        Cell(check(with_equal_work(table)), labels)
        for (labels, _), table in zip(planned, tables, strict=True)
    ]
    for cell in cells:
        note_overruled(cell.experiment, say_once)
    require_distinct(cells)
    return cells


def once(say: Say) -> Say:
    """The same is not said of many cells."""
    said: set[str] = set()

    def speak(message: str) -> None:
        if message not in said:
            said.add(message)
            say(message)

    return speak


def default_folder(cells: Sequence[Cell]) -> Path:
    """The same sweep has the same folder, so that it goes on where it was interrupted."""
    names = json.dumps(sorted(cell.name for cell in cells))
    digest = hashlib.sha256(names.encode()).hexdigest()[:8]
    return naming.RUNS / f"sweep-{naming.slug(cells[0].experiment.data)}-{digest}"


def require_distinct(cells: Sequence[Cell]) -> None:
    """Refuse values that do not make another cell: all their rows would show one and the same run."""
    found: dict[str, Cell] = {}
    for cell in cells:
        first = found.setdefault(cell.name, cell)
        for key, value in cell.labels.items():
            if first.labels[key] != value:
                raise ConfigError(
                    f"--over {key}: {first.labels[key]} and {value} would share one run, since this key is "
                    "not among those that decide the results"
                )


def require_validation(cells: Sequence[Cell]) -> None:
    """Find out before the runs that there will be nothing to choose by; a user's own data may bring some."""
    for cell in cells:
        e = cell.experiment
        if not e.splitting.validation and not is_file_reference(e.data):
            raise ConfigError(
                "--select validation: no validation data are set aside; add --set splitting.validation=0.2"
            )


def compared_key(cells: Sequence[Cell], first: str, second: str) -> str:
    """The label that takes both values; refuses values that change the data, for then there are no pairs."""
    if first == second:
        raise ConfigError(f"--compare {first} {second}: the same value twice differs by nothing")
    values: dict[str, set[str]] = {}
    for cell in cells:
        for key, value in cell.labels.items():
            if key != "seed":
                values.setdefault(key, set()).add(str(value))
    known = sorted({value for some in values.values() for value in some})
    for name in (first, second):
        if name not in known:
            raise ConfigError(
                f"--compare {name}: the sweep has no such value; {nearest(name, known or ['-'])}"
            )
    keys = [key for key, some in values.items() if {first, second} <= some]
    if not keys:
        raise ConfigError(f"--compare {first} {second}: these are values of two different keys")
    if len(keys) > 1:
        raise ConfigError(
            f"--compare {first} {second}: {' and '.join(keys)} both take these values; sweep over one of them"
        )
    _require_same_data(cells, keys[0], first, second)
    return keys[0]


def _require_same_data(cells: Sequence[Cell], key: str, first: str, second: str) -> None:
    found: dict[Any, dict[str, Any]] = {}
    for cell in cells:
        others = tuple((k, v) for k, v in cell.labels.items() if k != key)
        data = cell.experiment.model_dump(include=SAME_DATA)
        found.setdefault(others, {})[str(cell.labels[key])] = data
    for by_value in found.values():
        if by_value.get(first) != by_value.get(second):
            raise ConfigError(
                f"--compare {first} {second}: they are run on different data, so nothing can be paired"
            )
