"""The checks of an experiment, for commands that import PyTorch late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.experiments.setup.config import resolve, resolve_to_run
from coterie.experiments.setup.schema import Experiment


def check(table: Mapping[str, Any]) -> Experiment:
    return resolve(table)


def check_to_run(table: Mapping[str, Any]) -> Experiment:
    return resolve_to_run(table)
