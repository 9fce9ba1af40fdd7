"""From what the user typed to a checked experiment: flags, TOML files and `--set key=value` all end here."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from coterie.algorithms import algorithms
from coterie.data import partitions, sources
from coterie.errors import ConfigError
from coterie.experiments.schema import OWN_OBJECT, Experiment
from coterie.models import models
from coterie.protocol import Algorithm
from coterie.registry import nearest, parse_call
from coterie.topology import topologies

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def resolve(raw: Mapping[str, Any], *, base_dir: Path | None = None) -> Experiment:
    """Check a raw table, fill in what depends on other values, and return the experiment.

    base_dir: the folder that relative paths in the table start from (that of the TOML file).
    """
    table = {key: value for key, value in raw.items() if value is not None}
    _refuse_unknown(table, Experiment, "")
    table = _with_inline_settings(table)
    table = _with_preset(table)
    table = _with_base_dir(table, base_dir)
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_readable(error)) from None
    return _with_defaults(experiment)


def load_toml(path: Path) -> dict[str, Any]:
    """A TOML file's table; the error names the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def override(table: dict[str, Any], assignment: str) -> None:
    """Apply `key=value`, where key may be dotted (training.lr) and value is TOML or else a string."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {assignment!r} is not of the form key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *path, last = key.strip().split(".")
    for part in path:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {assignment!r}: {part!r} is not a section")
        table = inner
    table[last] = value


def build_settings(cls: Any, settings: Mapping[str, Any], where: str) -> Any:
    """Build a dataclass from a table, with readable errors."""
    names = [field.name for field in dataclasses.fields(cls)]
    for key in settings:
        if key not in names:
            known = nearest(key, names) if names else "it has none"
            raise ConfigError(f"{where}: unknown key {key!r}; {known}")
    try:
        return TypeAdapter(cls).validate_python(dict(settings))
    except ValidationError as error:
        raise ConfigError(f"{where}: {_readable(error)}") from None


def build_algorithm(experiment: Experiment) -> Algorithm[Any]:
    """The algorithm with its hyper-parameters."""
    built: Algorithm[Any] = build_settings(
        algorithms[experiment.algorithm], experiment.settings, f"settings of {experiment.algorithm}"
    )
    return built


def is_file_reference(text: str) -> bool:
    """`file.py:Name`, the user's own code."""
    return ".py:" in text


def _with_inline_settings(table: dict[str, Any]) -> dict[str, Any]:
    """`d-psgd(metropolis)` is the algorithm d-psgd with its first hyper-parameter set."""
    name, positional, keywords = parse_call(str(table.get("algorithm", "local")), "algorithm")
    cls = algorithms[name]
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if len(positional) > len(fields):
        raise ConfigError(
            f"algorithm {table['algorithm']!r}: at most {len(fields)} settings; "
            f"write {algorithms.signature(name)}"
        )
    inline = {**dict(zip(fields, positional, strict=False)), **keywords}
    return {**table, "algorithm": name, "settings": {**inline, **table.get("settings", {})}}


def _with_preset(table: dict[str, Any]) -> dict[str, Any]:
    """What a preset says holds unless the user says otherwise."""
    if table.get("preset") is None:
        return table
    presets = getattr(algorithms[table["algorithm"]], "presets", {})
    if table["preset"] not in presets:
        known = nearest(str(table["preset"]), presets) if presets else "it has none"
        raise ConfigError(f"algorithm {table['algorithm']!r} has no preset {table['preset']!r}; {known}")
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for key, value in presets[table["preset"]].items():
        section, dot, name = key.rpartition(".")
        merged.setdefault(section if dot else "settings", {}).setdefault(name, value)
    return merged


def _with_base_dir(table: dict[str, Any], base_dir: Path | None) -> dict[str, Any]:
    """Paths in an experiment's file are relative to that file; they are resolved once, here."""
    table = dict(table)
    base = base_dir or Path.cwd()
    for key in ("model", "data"):
        if is_file_reference(str(table.get(key, ""))):
            table[key] = str(base / table[key])
    topology = str(table.get("topology", ""))
    if topology.startswith("edges("):
        inside = topology[len("edges(") :]
        table["topology"] = (
            "edges("
            + str(base / inside.partition(")")[0].partition(",")[0].strip())
            + inside[len(inside.partition(")")[0].partition(",")[0]) :]
        )
    folder = table.get("data_dir") or os.environ.get("COTERIE_DATA")
    if folder:
        table["data_dir"] = str((base / Path(str(folder)).expanduser()).resolve())
    return table


def _with_defaults(experiment: Experiment) -> Experiment:
    """Fill in model, partition and topology, and refuse what contradicts itself."""
    changes: dict[str, Any] = {}
    facts = algorithms[experiment.algorithm].facts  # type: ignore[attr-defined]
    build_algorithm(experiment)
    if is_file_reference(experiment.data) or experiment.data == OWN_OBJECT:
        default_model, default_partition = "mlp", "iid"
    else:
        dataset = sources.build(experiment.data)
        default_model, default_partition = dataset.default_model, dataset.default_partition
    changes["model"] = experiment.model or default_model
    changes["partition"] = experiment.partition or default_partition
    changes["topology"] = experiment.topology or ("star" if facts.hub else "full")
    experiment = experiment.model_copy(update=changes)
    if not is_file_reference(experiment.model) and experiment.model != OWN_OBJECT:
        models.build(experiment.model)
    if experiment.partition != OWN_OBJECT:
        partitions.build(experiment.partition)
    if experiment.topology != OWN_OBJECT:
        topologies.build(experiment.topology)
        name = parse_call(experiment.topology)[0]
        if facts.hub and name != "star":
            raise ConfigError(
                f"algorithm {experiment.algorithm!r} goes through a hub and needs topology 'star', "
                f"not {experiment.topology!r}"
            )
    return experiment


def _refuse_unknown(table: Mapping[str, Any], cls: Any, where: str) -> None:
    """Fail on the first key that the schema does not have, with the nearest one that it has."""
    hints = typing.get_type_hints(cls)
    names = (
        list(cls.model_fields) if issubclass(cls, BaseModel) else [f.name for f in dataclasses.fields(cls)]
    )
    for key, value in table.items():
        if key not in names:
            raise ConfigError(f"unknown key {where + key!r}; {nearest(key, names)}")
        inner = hints.get(key)
        if inspect.isclass(inner) and (dataclasses.is_dataclass(inner) or issubclass(inner, BaseModel)):
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{where + key!r} is a section with keys of its own, not a value: {value!r}"
                )
            _refuse_unknown(value, inner, f"{where}{key}.")


def _readable(error: ValidationError) -> str:
    parts = []
    for problem in error.errors():
        place = ".".join(map(str, problem["loc"]))
        parts.append(f"{place}: {problem['msg'].removeprefix('Value error, ')} (got {problem['input']!r})")
    return "; ".join(parts)
