"""A sweep: every combination of values of some config keys, with several seeds. Needs no PyTorch."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.errors import ConfigError
from coterie.experiments.checking import override

_COMMAS_OUTSIDE_BRACKETS = re.compile(r",(?![^(\[]*[)\]])")


@dataclass(frozen=True)
class Axis:
    """One key of the config and the values that it takes, as the user wrote them."""

    key: str
    values: tuple[str, ...]


def parse_axis(text: str) -> Axis:
    """`training.lr=0.01,0.1`, or `algorithm=local,random-gossip(3)`."""
    key, equals, values = text.partition("=")
    parts = tuple(part.strip() for part in _COMMAS_OUTSIDE_BRACKETS.split(values) if part.strip())
    if not equals or not key.strip() or not parts:
        raise ConfigError(f"--over {text!r} is not of the form key=value,value")
    twice = [part for part in parts if parts.count(part) > 1]
    if twice:
        raise ConfigError(f"--over {text!r}: {twice[0]} is named twice")
    if key.strip() == "seed":
        raise ConfigError("--over seed=...: say how many seeds with --seeds, counted up from --seed")
    return Axis(key.strip(), parts)


MakeTable = Callable[[str | None], dict[str, Any]]


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
