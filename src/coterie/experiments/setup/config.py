"""From what the user typed to a checked experiment: flags, TOML files and `--set key=value` all end here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.catalogue import algorithms, models, partitions, sources, topologies
from coterie.experiments.setup import checking
from coterie.experiments.setup.checking import (
    Catalogues,
    build_settings,
    is_file_reference,
    load_toml,
    override,
)
from coterie.experiments.setup.schema import Experiment
from coterie.protocol import Algorithm

CATALOGUES = Catalogues(algorithms, sources, models, partitions, topologies)


def resolve(raw: Mapping[str, Any], *, base_dir: Path | None = None) -> Experiment:
    """Check a raw table, fill in what depends on other values, and return the experiment.

    base_dir: the folder that relative paths in the table start from (that of the TOML file).
    """
    return checking.resolve(raw, CATALOGUES, base_dir)


def build_algorithm(experiment: Experiment) -> Algorithm[Any]:
    """The algorithm with its hyper-parameters."""
    built: Algorithm[Any] = build_settings(
        algorithms[experiment.algorithm], experiment.settings, f"settings of {experiment.algorithm}"
    )
    return built


__all__ = [
    "CATALOGUES",
    "build_algorithm",
    "build_settings",
    "is_file_reference",
    "load_toml",
    "override",
    "resolve",
]
