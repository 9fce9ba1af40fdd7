"""Finds what is wrong with an experiment before the slow import of PyTorch.

The checks and their messages are those of `experiments.checking`; only the catalogues are blueprints. What
cannot be decided without PyTorch is left to the real check, which follows anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.cli.blueprints import catalogues
from coterie.errors import ConfigError, CoterieError, DataError
from coterie.experiments.setup import checking
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment


def check(table: Mapping[str, Any]) -> Experiment:
    """The experiment as it will very likely be resolved; raises ConfigError for a mistake."""
    try:
        return checking.resolve(table, catalogues())
    except CoterieError:
        raise
    except Exception:  # a check needs more than a blueprint: the real one decides
        from coterie.experiments.setup.config import resolve

        return resolve(table)


def check_to_run(table: Mapping[str, Any]) -> Experiment:
    """`check`, and that its files and folders are there, and nothing is an object from Python."""
    experiment = check(table)
    _check_outside(experiment)
    return experiment


def _check_outside(experiment: Experiment) -> None:
    for key in ("data", "model", "partition", "topology"):
        value = getattr(experiment, key)
        of_the_data = key == "partition" and checking.is_file_reference(experiment.data)
        if value == OWN_OBJECT and not of_the_data:  # as in the config of a run with such data
            raise ConfigError(
                f"{key} {OWN_OBJECT!r} stands for an object that was passed to coterie.simulate in Python; "
                f"`coterie list` shows the names that can be used here"
            )
        if checking.is_file_reference(value) and not Path(value.rpartition(":")[0]).is_file():
            raise ConfigError(f"{key} {value!r}: there is no file {value.rpartition(':')[0]}")
    if checking.is_file_reference(experiment.data):
        return
    if catalogues().sources.build(experiment.data).needs_files:
        if not experiment.data_dir:
            raise DataError(
                f"data set {experiment.data!r} is read from files: name their folder with --data-dir or the "
                "environment variable COTERIE_DATA"
            )
        if not Path(experiment.data_dir).is_dir():
            raise DataError(
                f"the data folder {experiment.data_dir} does not exist; data set {experiment.data!r} is read "
                "from it"
            )
