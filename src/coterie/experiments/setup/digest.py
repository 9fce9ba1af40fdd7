"""When two experiments are the same: the digest that peers compare, and the fingerprint that names a cell.

`experiment_digest` is how peers see that they run the same one.

Two files give one digest when they resolve to the same experiment: in any order of keys, with defaults
written out or not, in any folder. Left out is what may differ from machine to machine: where the data files
are, and how the machine computes; and what members may change together while they learn: the number of
rounds and the learning rate. The user's own files count by their content, not by their path.

`fingerprint` is equal for experiments that give equal results on this machine: it is of the text, paths
included, and of what is in the user's own files.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

from coterie.catalogue import (
    adapters,
    algorithms,
    augmentations,
    models,
    partitions,
    sources,
    tasks,
    topologies,
)
from coterie.experiments.setup.config import build_algorithm
from coterie.experiments.setup.contents import (
    code_files,
    contents,
    digest_of,
    digest_of_code,
    digest_of_pretrained,
)
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment, dealt_out
from coterie.registry import Registry, parse_call
from coterie.training import parts_of
from coterie.user_code import (
    data_files,
    is_data_file,
    is_file_reference,
    pretrained_folder,
    split_reference,
)

_FORMAT = "coterie-experiment-1"
_JSON: dict[str, Any] = {"sort_keys": True, "separators": (",", ":"), "default": str}
_LONGEST_NAME, _MOST_PARTS = 64, 64  # that peers tell each other
_PER_MACHINE = {"data_dir", "execution", "names"}
_CHANGES_BY_QUORUM = {"rounds"}
_ALREADY_APPLIED = {"preset"}  # its values are in `settings` and the other sections
_DO_NOT_CHANGE_RESULTS: dict[str, Any] = {
    "data_dir": True,  # see `RunFolder.require_same`
    "preset": True,  # its values are in settings and training
    "names": True,
    "execution": {"executor", "engine", "workers", "cpus", "gpus", "device", "checkpoint_seconds", "force"},
}


def experiment_digest(experiment: Experiment) -> str:
    """SHA-256 of a resolved experiment, as 64 hex digits."""
    return _sha256(json.dumps([_FORMAT, _meaning(experiment)], **_JSON))


def experiment_parts(experiment: Experiment) -> dict[str, str]:
    """What the digest consists of, so that peers can name what differs: keys, and Python files by name."""
    parts = {key: _sha256(json.dumps(value, **_JSON))[:8] for key, value in _meaning(experiment).items()}
    for path in code_files(experiment):
        parts[path.name[:_LONGEST_NAME]] = digest_of(path)[:8]
    return dict(list(parts.items())[:_MOST_PARTS])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _meaning(experiment: Experiment) -> dict[str, Any]:
    """By key, in the same words however it was written."""
    table = experiment.model_dump(mode="json", exclude=_PER_MACHINE | _ALREADY_APPLIED | _CHANGES_BY_QUORUM)
    del table["training"]["lr"]  # changes by quorum, too
    table["settings"] = build_algorithm(experiment).settings()  # also those left at their defaults
    if is_file_reference(experiment.algorithm):
        table["algorithm"] = _plain(experiment.algorithm, algorithms)
    named = {"task": tasks, "data": sources, "model": models, "partition": partitions, "topology": topologies}
    named |= {"adapter": adapters} if experiment.adapter else {}
    for key, registry in named.items():
        table[key] = _plain(table[key], registry)
    table["metrics"] = [_plain_metric(name) for name in experiment.metrics]
    parts = parts_of(experiment.training.augment)
    table["training"]["augment"] = [_plain(part, augmentations) for part in parts]
    owners = dealt_out(experiment.models, experiment.peers)
    table["models"] = {peer: _plain(name, models) for name, all_ in owners.items() for peer in all_}
    return table


def _plain(text: str, registry: Registry[Any]) -> Any:
    """`mlp`, `mlp(128)` and `mlp( hidden = 128 )` are one model."""
    if text == OWN_OBJECT:
        return text
    if pretrained_folder(text) is not None:
        return {"pretrained": digest_of_pretrained(text)}
    if is_data_file(text):
        return _plain_files(text)
    if is_file_reference(text):
        return _plain_reference(text)
    name, positional, keywords = parse_call(text, registry.kind)
    bound = inspect.signature(registry[name]).bind(*positional, **keywords)
    bound.apply_defaults()
    arguments = {key: _value(value) for key, value in bound.arguments.items()}
    if name == "edges":
        first = next(iter(arguments))
        arguments[first] = digest_of(Path(str(bound.arguments[first])).expanduser())
    return {"name": name, "arguments": arguments}


def _plain_metric(text: str) -> Any:
    """`macro-f1` and `macro_f1` are one."""
    return _plain_reference(text) if is_file_reference(text) else text.replace("-", "_").lower()


def _plain_files(text: str) -> dict[str, Any]:
    """The content of data files, by their names, and what is said of their columns."""
    _, positional, keywords = parse_call(text)
    files = {path.name: digest_of(path) for path in data_files(text)}
    return {"files": files, "arguments": [*positional, keywords]}


def _plain_reference(text: str) -> dict[str, Any]:
    """The content of the user's file, what it is asked for, and with which arguments."""
    file, name = split_reference(text)
    plain: dict[str, Any] = {"file": digest_of_code(file), "name": name}
    _, positional, keywords = parse_call(text)
    if positional or keywords:
        plain["arguments"] = [*map(_value, positional), {key: _value(v) for key, v in keywords.items()}]
    return plain


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


def fingerprint(experiment: Experiment) -> str:
    """Equal for experiments that give equal results; a new key with its default changes nothing."""
    table = _without_defaults(what_matters(experiment), what_matters(Experiment()))
    if files := contents(experiment):
        table["files"] = files
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:10]


def what_matters(experiment: Experiment) -> dict[str, Any]:
    """All that decides an experiment's results."""
    return experiment.model_dump(mode="json", exclude=_DO_NOT_CHANGE_RESULTS)


def _without_defaults(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for key, value in table.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            value = _without_defaults(value, default)
            default = {}
        if value != default:
            kept[key] = value
    return kept
