"""Finds what is wrong with an experiment before the slow import of PyTorch.

The checks and their messages are those of `experiments.checking`; only the catalogues are blueprints. What
cannot be decided without PyTorch is left to the real check, which follows anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.cli.blueprints import catalogues
from coterie.errors import CoterieError
from coterie.experiments import checking
from coterie.experiments.schema import Experiment


def check(table: Mapping[str, Any]) -> Experiment:
    """The experiment as it will very likely be resolved; raises ConfigError for a mistake."""
    try:
        return checking.resolve(table, catalogues())
    except CoterieError:
        raise
    except Exception:  # a check needs more than a blueprint: the real one decides
        from coterie.experiments.config import resolve

        return resolve(table)
