"""`coterie.simulate`: the Python entry point. Names as on the command line, or your own objects."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from coterie.catalogue import algorithms
from coterie.data import Federation, Partition, Source
from coterie.errors import ConfigError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.observing import Watching
from coterie.experiments.runs.run import Run
from coterie.experiments.runs.running import resume, run
from coterie.experiments.setup.config import note_of_validation, require_data_folder, resolve
from coterie.experiments.setup.prepare import Objects
from coterie.experiments.setup.recommending import with_advice
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment
from coterie.protocol import Algorithm, require_algorithm
from coterie.training import Training
from coterie.user_code import is_file_reference

_log = logging.getLogger("coterie")


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
    run_dir: a new folder for records, checkpoints and the result; default: keep nothing.
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
        return resume(Path(resume_from), objects=objects, observer=observer)
    table = table_of({"algorithm": algorithm, **parts}, sections)
    table |= {"peers": peers if peers is not None else peers_of(data), "rounds": rounds, "seed": seed}
    table = with_advice(table, say)
    experiment = resolve(table)
    say(note_of_validation([table]))
    return run(
        experiment,
        objects=objects,
        run_dir=None if run_dir is None else Path(os.fspath(run_dir)),
        observer=observer,
    )


def say(message: str) -> None:
    """Something that a user of Python should know, if it is not empty."""
    if message:
        _log.warning("%s", message)


def resolve_to_simulate(table: Mapping[str, Any]) -> Experiment:
    """`resolve`, and that the folder of data files is there; some of its parts may be objects."""
    experiment = resolve(table)
    require_data_folder(experiment)
    return experiment


def objects_in(named: Mapping[str, Any]) -> Objects:
    """What among algorithm, data, model, partition and topology is an object, not a name."""
    algorithm = named["algorithm"]
    if isinstance(algorithm, type):
        raise ConfigError(f"{algorithm.__name__} is a class; pass an instance: {algorithm.__name__}(...)")
    given = {key: None if isinstance(value, str) else value for key, value in named.items()}
    return Objects(**given | {"algorithm": algorithm if isinstance(algorithm, Algorithm) else None})


def table_of(named: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """The table of an experiment; what was passed as an object has a name that says so."""
    objects = objects_in(named)
    table: dict[str, Any] = {
        key: value if getattr(objects, key) is None else OWN_OBJECT for key, value in named.items()
    }
    if objects.algorithm is not None:
        table |= {"algorithm": name_of(objects.algorithm), "settings": objects.algorithm.settings()}
    if objects.partition is None:
        table["partition"] = named["partition"] or _partition_of(objects.data)
    # What belongs to whom is settled in a Federation: nothing is set aside that was not asked for.
    table["splitting"] = {"validation": 0.0} if isinstance(objects.data, Federation) else {}
    for key, given in sections.items():
        value = vars(given) if isinstance(given, Training) else given
        both = isinstance(value, dict) and isinstance(table.get(key), dict)
        table[key] = {**table[key], **value} if both else value
    return table


def name_of(algorithm: Any) -> str:
    """The catalogue name of an algorithm object; one's own class is registered under its class name."""
    cls = type(algorithm)
    for name in algorithms:
        if algorithms[name] is cls:
            return name
    require_algorithm(cls, f"algorithm {cls.__name__}")
    return algorithms.register_by_class(cls)


def _announce(algorithm: Algorithm[Any], folder: Path) -> None:
    """Make one's own class known by the name that it had in the process of an interrupted run."""
    name = RunFolder(folder).stored_experiment().algorithm
    if name not in algorithms and not is_file_reference(name):
        algorithms.register(name)(type(algorithm))


def _partition_of(data: Any) -> str | None:
    """`own` where the data that were passed already belong to peers; None: the default of the data."""
    return None if data is None or isinstance(data, Source) else OWN_OBJECT


def peers_of(data: Any) -> int | None:
    if isinstance(data, Federation):
        return data.peers
    return len(data) if isinstance(data, (list, tuple, dict)) else None
