"""What Python's entry points share: names as on the command line, or your own objects."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from coterie.catalogue import algorithms
from coterie.data import Federation, Source
from coterie.errors import ConfigError
from coterie.experiments.setup.config import require_data_folder, resolve
from coterie.experiments.setup.prepare import Objects
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment
from coterie.protocol import Algorithm, require_algorithm
from coterie.training import Training

_log = logging.getLogger("coterie")


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


def _partition_of(data: Any) -> str | None:
    """`own` where the data that were passed already belong to peers; None: the default of the data."""
    return None if data is None or isinstance(data, Source) else OWN_OBJECT


def peers_of(data: Any) -> int | None:
    if isinstance(data, Federation):
        return data.peers
    return len(data) if isinstance(data, (list, tuple, dict)) else None
