"""`coterie.simulate`: one run from Python. Names as on the command line, or your own objects."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from coterie.catalogue import algorithms
from coterie.data import Partition
from coterie.experiments.api import objects_in, peers_of, say, table_of
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.observing import Watching
from coterie.experiments.runs.run import Run
from coterie.experiments.runs.running import resume, run
from coterie.experiments.setup.config import note_of_validation, resolve
from coterie.experiments.setup.recommending import with_advice
from coterie.protocol import Algorithm
from coterie.reporting.page.report import leave_report
from coterie.user_code import is_file_reference


def simulate(
    algorithm: str | Algorithm[Any] = "local",
    data: Any = "digits",
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    partition: str | Partition | None = None,
    topology: Any = None,
    peers: int | None = None,
    rounds: int = 20,
    seed: int = 0,
    *,
    run_dir: str | Path | None = None,
    resume_from: str | Path | None = None,
    observer: Watching = None,
    **sections: Any,
) -> Run:
    """Simulate peers that learn from each other, and return what they learned.

    algorithm: a name such as "d-psgd", "random-gossip(3)" or "file.py:Class(arguments)", or an Algorithm.
    data: a name, "file.py:function", `from_arrays(...)`, `from_peers(...)`, or one data set per peer: in a
        list, or in a dict by the peers' names.
    model: a name, "file.py:Class", an nn.Module, or a class or function that makes one.
    topology: a name, "file.py:Class", a networkx graph, a list of pairs, or an adjacency array.
    run_dir: a new folder for records, checkpoints, the result and report.html; default: keep nothing.
    resume_from: the folder of an interrupted run; pass the same objects again, names are read from it.
    observer: looks on and may end the run: an Observer, a function of (record, history), or a list of them.
    sections: `training={"lr": 0.1}` or a Training, `settings=...`, `splitting=...`, `evaluation=...`,
        `execution=...`, `faults=...`, as in an experiment's TOML file.
    """
    parts = {"data": data, "model": model, "partition": partition, "topology": topology}
    objects = objects_in({"algorithm": algorithm, **parts})
    if resume_from is not None:
        if objects.algorithm is not None:
            _announce(objects.algorithm, Path(resume_from))
        return _with_report(resume(Path(resume_from), objects=objects, observer=observer))
    table = table_of({"algorithm": algorithm, **parts}, sections)
    table |= {"peers": peers if peers is not None else peers_of(data), "rounds": rounds, "seed": seed}
    table = with_advice(table, say)
    experiment = resolve(table)
    say(note_of_validation([table]))
    folder = None if run_dir is None else Path(os.fspath(run_dir))
    return _with_report(run(experiment, objects=objects, run_dir=folder, observer=observer))


def _announce(algorithm: Algorithm[Any], folder: Path) -> None:
    """Make one's own class known by the name that it had in the process of an interrupted run."""
    name = RunFolder(folder).stored_experiment().algorithm
    if name not in algorithms and not is_file_reference(name):
        algorithms.register(name)(type(algorithm))


def _with_report(done: Run) -> Run:
    if done.run_dir is not None:
        leave_report(done.run_dir)
    return done
