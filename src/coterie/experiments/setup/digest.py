"""A digest of an experiment, by which peers see that they run the same one.

Two files give one digest when they resolve to the same experiment: in any order of keys, with defaults
written out or not, in any folder. Left out is what may differ from machine to machine: where the data files
are, and how the machine computes. The user's own files count by their content, not by their path.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

from coterie.catalogue import models, partitions, sources, topologies
from coterie.errors import ConfigError
from coterie.experiments.setup.config import build_algorithm, is_file_reference
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment, dealt_out
from coterie.registry import Registry, parse_call

_FORMAT = "coterie-experiment-1"
_PER_MACHINE = {"data_dir", "execution"}
_ALREADY_APPLIED = {"preset"}  # its values are in `settings` and the other sections


def experiment_digest(experiment: Experiment) -> str:
    """SHA-256 of a resolved experiment, as 64 hex digits."""
    table = experiment.model_dump(mode="json", exclude=_PER_MACHINE | _ALREADY_APPLIED)
    table["settings"] = build_algorithm(experiment).settings()  # also those left at their defaults
    named = {"data": sources, "model": models, "partition": partitions, "topology": topologies}
    for key, registry in named.items():
        table[key] = _plain(table[key], registry)
    owners = dealt_out(experiment.models, experiment.peers)
    table["models"] = {peer: _plain(name, models) for name, all_ in owners.items() for peer in all_}
    text = json.dumps([_FORMAT, table], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(text: str, registry: Registry[Any]) -> Any:
    """`mlp`, `mlp(128)` and `mlp( hidden = 128 )` are one model."""
    if text == OWN_OBJECT:
        return text
    if is_file_reference(text):
        file, _, name = text.rpartition(":")
        return {"file": _content(file), "name": name}
    name, positional, keywords = parse_call(text, registry.kind)
    bound = inspect.signature(registry[name]).bind(*positional, **keywords)
    bound.apply_defaults()
    arguments = {key: _value(value) for key, value in bound.arguments.items()}
    if name == "edges":
        first = next(iter(arguments))
        arguments[first] = _content(str(bound.arguments[first]))
    return {"name": name, "arguments": arguments}


def _value(value: Any) -> Any:
    """0.3, "0.30" and "3e-1" are one number; a text that is no number is itself."""
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return value
    try:
        return float(value)
    except ValueError:
        text = str(value).strip()
        return text.lower() if text.lower() in ("true", "false") else text


def _content(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).expanduser().read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
