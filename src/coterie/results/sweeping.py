"""`coterie.sweep`: the command's sweeps and searches from Python, with names or your own objects."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError, RunFolderError
from coterie.experiments.api import objects_in, peers_of, resolve_to_simulate, say, table_of
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.sweeping import Axis, once, parse_axis, plan_cells, refuse_ranges
from coterie.experiments.setup.prepare import Objects
from coterie.protocol import Algorithm
from coterie.reporting.page.report import leave_report
from coterie.results.search import parse_space, search
from coterie.results.sweep import Sweep, run_cells

_log = logging.getLogger("coterie")


def sweep(
    over: Mapping[str, Sequence[Any]] | Sequence[str],
    algorithm: str | Algorithm[Any] = "local",
    data: Any = "digits",
    model: Any = None,
    partition: Any = None,
    topology: Any = None,
    peers: int | None = None,
    rounds: int = 20,
    seed: int = 0,
    *,
    seeds: int = 1,
    optuna: int | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    **sections: Any,
) -> Sweep:
    """Run every combination of values and seeds, as `coterie sweep` does.

    over: keys and their values, such as {"training.lr": [0.01, 0.1]}; or texts as on the command line.
    optuna: let Optuna try so many combinations instead; then a key may have a range of numbers, such as
        {"training.lr": "log(0.001,1)"}, "uniform(0,1)" or "int(1,10)".
    algorithm, data, ..., sections: as in `coterie.simulate`, for all runs. All train equally long, unless
        `training={"work": "own"}`.
    out: a folder for the records, in which the same sweep goes on, unless it was given objects; default: keep
        nothing.
    jobs: runs at a time, one process each; a script that asks for several needs `if __name__ == "__main__"`.
    """
    named = {
        "algorithm": algorithm,
        "data": data,
        "model": model,
        "partition": partition,
        "topology": topology,
    }
    if "run_dir" in sections:
        raise ConfigError(
            "a sweep keeps its records in the folder `out`: write out=... in place of run_dir=..."
        )
    given = objects_in(named)
    size = {"peers": peers if peers is not None else peers_of(data), "rounds": rounds, "seed": seed}

    def make_table(other: str | None) -> dict[str, Any]:
        chosen = named if other is None else {**named, "algorithm": other}
        return {**table_of(chosen, sections), **size}

    say_once = once(say)

    def plan(axes: Sequence[Axis]) -> list[Cell]:
        return plan_cells(make_table, axes, seeds, say_once, check=resolve_to_simulate)

    texts, own = _texts(over), None if given == Objects() else given
    if optuna is not None:
        space = [parse_space(text) for text in texts]
        return _in(out, own, lambda folder: search(space, plan, folder, trials=optuna, given=own, say=_tell))
    refuse_ranges(texts)
    cells = plan([parse_axis(text) for text in texts])
    return _in(out, own, lambda folder: run_cells(cells, folder, jobs=jobs, given=own))


def _tell(message: str) -> None:
    _log.info("%s", message)


def _in(out: str | Path | None, own: Objects | None, run: Callable[[Path], Sweep]) -> Sweep:
    """In the folder that was asked for; else in a temporary one, which lives as long as what is returned."""
    if out is None:
        return _in_passing(run)
    folder = Path(os.fspath(out))
    if own is not None and folder.exists() and any(folder.iterdir()):
        raise RunFolderError(
            f"{folder} is not empty, and nobody can tell whether its runs had the objects that you pass: a "
            "sweep with objects cannot go on. Choose another folder, or name what is yours by its file, such "
            "as model='own.py:Net': a sweep with names goes on where it was"
        )
    done = run(folder)
    leave_report(folder)
    return done


def _in_passing(run: Callable[[Path], Sweep]) -> Sweep:
    folder = Path(tempfile.mkdtemp(prefix="coterie-sweep-"))
    try:
        done = run(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(done, shutil.rmtree, folder, ignore_errors=True)
    return done


def _texts(over: Any) -> list[str]:
    """As on the command line."""
    if isinstance(over, str):
        return [over]
    if not isinstance(over, Mapping):
        return list(over)
    return [
        f"{key}={values if isinstance(values, str) else ','.join(map(_text, values))}"
        for key, values in over.items()
    ]


def _text(value: Any) -> str:
    """A value as a user writes it in TOML, names without quotes."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except TypeError:
        raise ConfigError(f"a sweep is over names, numbers, lists and true or false, not {value!r}") from None
