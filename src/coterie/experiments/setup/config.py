"""From what the user typed to a checked experiment: flags, TOML files and `--set key=value` all end here.

An unknown name is found before anything is imported. All other checks may import what the names stand for,
and with that PyTorch, which takes a second or two.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.catalogue import adapters, algorithms, models, partitions, sources, tasks, topologies
from coterie.errors import ConfigError, DataError
from coterie.experiments.setup.recommending import AUTO, with_advice
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment, attendance, dealt_out
from coterie.registry import Registry, nearest, parse_call, split_outside_brackets
from coterie.toml_tables import refuse_unknown, validate
from coterie.training import parts_of
from coterie.user_code import (
    data_file_parts,
    data_files,
    in_short,
    is_data_file,
    is_file_reference,
    is_own_data,
    is_pattern,
    located,
    peers_in_files,
    pretrained_folder,
    split_reference,
)

if TYPE_CHECKING:
    from coterie.protocol import Algorithm, Facts

VALIDATION = 0.2
"""The fraction of training data that is set aside where an algorithm needs validation data."""
_NAMED: dict[str, Registry[Any]] = {
    "algorithm": algorithms,
    "task": tasks,
    "data": sources,
    "model": models,
    "adapter": adapters,
    "partition": partitions,
    "topology": topologies,
}


def resolve(raw: Mapping[str, Any], *, base_dir: Path | None = None) -> Experiment:
    """Check a raw table, fill in what depends on other values, and return the experiment.

    base_dir: the folder that relative paths in the table start from (that of the TOML file).
    """
    table = with_advice({key: value for key, value in raw.items() if value is not None})
    if isinstance(table.get("metrics"), str):  # as `--set metrics=auc,accuracy` writes them
        table["metrics"] = [name.strip() for name in split_outside_brackets(table["metrics"])]
    refuse_unknown_words(table)
    table = with_absolute_paths(table, base_dir or Path.cwd())
    table = _with_peers(table)
    table = _with_inline_settings(table)
    table = _with_preset(table)
    if wants_validation(table):
        table = with_validation(table)
    if not table.get("data_dir") and os.environ.get("COTERIE_DATA"):
        table["data_dir"] = str(Path(os.environ["COTERIE_DATA"]).expanduser().resolve())
    experiment = validate(Experiment, table)
    check_engine(experiment.execution.engine)
    return _with_defaults(experiment)


def check_engine(engine: str) -> None:
    if engine not in ("local", "ray") and not engine.startswith("ray://"):
        raise ConfigError(
            f"execution.engine {engine!r} is unknown; choose local, ray, or the address of a Ray such as "
            "ray://head:10001"
        )


def resolve_to_run(raw: Mapping[str, Any]) -> Experiment:
    """`resolve`, and that its files and folders are there, and nothing is an object from Python."""
    experiment = resolve(raw)
    for key in ("data", "model", "partition", "topology"):
        value = getattr(experiment, key)
        of_the_data = key == "partition" and is_own_data(experiment.data)
        if value == OWN_OBJECT and not of_the_data:  # as in the config of a run with such data
            raise ConfigError(
                f"{key} {OWN_OBJECT!r} stands for an object that was passed to coterie.simulate in Python; "
                f"`coterie list` shows the names that can be used here"
            )
        if is_file_reference(value) and not Path(file := split_reference(value)[0]).is_file():
            raise ConfigError(f"{key} {value!r}: there is no file {file}")
    if is_data_file(experiment.data):
        data_files(experiment.data)
    require_data_folder(experiment)
    return experiment


def require_data_folder(experiment: Experiment) -> None:
    """Say now, not in the run, that the folder of data files is not known or not there."""
    if not reads_files(experiment.data):
        return
    if not experiment.data_dir:
        raise DataError(
            f"data set {experiment.data!r} is read from files: name their folder with --data-dir or the "
            "environment variable COTERIE_DATA"
        )
    if not Path(experiment.data_dir).is_dir():
        raise DataError(
            f"the data folder {experiment.data_dir} does not exist; data set {experiment.data!r} is read "
            "from it: name another with --data-dir or the environment variable COTERIE_DATA"
        )


def wants_validation(table: Mapping[str, Any]) -> bool:
    """Whether the algorithm needs validation data, and the table does not say how much."""
    name = parse_call(str(table.get("algorithm") or "local"), "algorithm")[0]
    needed = bool(algorithms[name].facts.validation)  # type: ignore[attr-defined]
    said = table.get("splitting") or {}
    return needed and isinstance(said, Mapping) and "validation" not in said


def with_validation(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with some validation data set aside, unless it says how much."""
    said = table.get("splitting") or {}
    if not isinstance(said, Mapping):  # a mistake, for `resolve` to name
        return dict(table)
    return {**table, "splitting": {"validation": VALIDATION, **said}}


def with_equal_work(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a method among others: it trains no longer than they do, unless the table says so."""
    said = table.get("training") or {}
    if not isinstance(said, Mapping):  # a mistake, for `resolve` to name
        return dict(table)
    return {**table, "training": {"work": "equal", **said}}


def overruled(experiment: Experiment) -> tuple[str, ...]:
    """The algorithm's settings that do not say how long it trains, since all methods get equal work."""
    return () if experiment.training.work == "own" else own_work(experiment)


def own_work(experiment: Experiment) -> tuple[str, ...]:
    """The algorithm's settings that say how long it trains, besides `training` or in its place."""
    facts: Facts = algorithms[experiment.algorithm].facts  # type: ignore[attr-defined]
    return facts.own_work


def note_of_validation(tables: Iterable[Mapping[str, Any]]) -> str:
    """What users should know when validation data are set aside that they did not ask for; else empty."""
    names = dict.fromkeys(str(table["algorithm"]) for table in tables if wants_validation(table))
    if not names:
        return ""
    needs = "needs" if len(names) == 1 else "need"
    return (
        f"note: {', '.join(names)} {needs} validation data: {VALIDATION} of every peer's training data are "
        "set aside; splitting.validation says otherwise"
    )


def refuse_kept_memory(experiment: Experiment, facts: Facts) -> None:
    """Some methods say themselves how their optimiser starts in a round."""
    if experiment.training.optimizer_state == "kept" and facts.restarts:
        raise ConfigError(
            f"training.optimizer_state 'kept' does not go with algorithm {experiment.algorithm!r}: "
            f"{facts.restarts}; leave it at 'reset'"
        )


def reads_files(data: str) -> bool:
    """Whether a data set of the catalogue is read from files in the data folder."""
    return data != OWN_OBJECT and not is_own_data(data) and bool(sources.build(data).needs_files)


def build_algorithm(experiment: Experiment) -> Algorithm[Any]:
    """The algorithm with its hyper-parameters."""
    built: Algorithm[Any] = build_settings(
        algorithms[experiment.algorithm], experiment.settings, f"settings of {experiment.algorithm}"
    )
    return built


def require_pace(name: str, algorithm: Algorithm[Any], in_step: str) -> None:
    """Refuse an algorithm, as it is set, for real peers that do not keep step. in_step: how to let them."""
    if not algorithm.facts.free_running:
        raise ConfigError(f"algorithm {name!r} needs rounds in step; {in_step}")
    if algorithm.needs_step():
        raise ConfigError(
            f"a secure sum needs its members in the same round; {in_step}, or set {name!r} so that it seals "
            f"nothing: coterie explain {name}"
        )


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
    hints = typing.get_type_hints(cls)
    # A layer of a Sequential may be called 0, which TOML reads as a number.
    texts = {
        key: str(value)
        for key, value in settings.items()
        if hints.get(key) == str | None and type(value) is int
    }
    return validate(cls, {**settings, **texts}, where)


def with_absolute_paths(table: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The table with its relative paths made absolute, starting from `base`."""
    table, base = dict(table), base.absolute()
    for key in _NAMED:
        text = str(table.get(key, ""))
        if _is_path(text) or (key == "data" and is_data_file(text)):
            table[key] = located(text, base)
    training = table.get("training")
    if isinstance(training, Mapping) and "augment" in training:
        parts = parts_of(str(training["augment"]))
        table["training"] = {**training, "augment": "+".join(located(part, base) for part in parts)}
    if isinstance(table.get("metrics"), (list, tuple)):
        table["metrics"] = [located(str(name), base) for name in table["metrics"]]
    if isinstance(table.get("models"), Mapping):
        table["models"] = {located(name, base): peers for name, peers in table["models"].items()}
    for key, call, always in (("topology", "edges", True), ("data", "huggingface", False)):
        head, parenthesis, inside = str(table.get(key, "")).partition("(")
        if parenthesis and head.strip() == call:
            end = min(place for place in (inside.find(","), inside.find(")"), len(inside)) if place >= 0)
            path = base / inside[:end].strip()
            if always or path.exists():  # else it is the name of a data set
                table[key] = f"{call}({path}{inside[end:]}"
    if table.get("data_dir"):
        table["data_dir"] = str((base / Path(str(table["data_dir"])).expanduser()).resolve())
    return table


def _is_path(text: str) -> bool:
    """Whether a text names a file or a folder rather than an entry of a catalogue."""
    return is_file_reference(text) or pretrained_folder(text) is not None


def refuse_unknown_words(table: Mapping[str, Any]) -> None:
    """Fail on the first key or name that nobody knows, without importing what the others stand for."""
    refuse_unknown(table, Experiment)
    named = [(table.get(key), registry) for key, registry in _NAMED.items()]
    if isinstance(table.get("models"), Mapping):
        named += [(model, models) for model in table["models"]]
    for text, registry in named:
        if (
            isinstance(text, str)
            and text
            and text != OWN_OBJECT
            and not (_is_path(text) or is_own_data(text))
        ):
            registry.require(parse_call(text, registry.kind)[0])


def decides_peers(table: Mapping[str, Any]) -> int | None:
    """How many peers there are, as other keys say: one for each name or data file; None if none says so."""
    names = table.get("names") or _named_by_files(table)
    return len(names) if names and isinstance(names, (list, tuple)) else None


def _named_by_files(table: Mapping[str, Any]) -> list[str]:
    """The peers of several data files; none if the data are something else."""
    data = str(table.get("data", ""))
    if not is_data_file(data) or not is_pattern(data_file_parts(data)[0]):
        return []
    return peers_in_files(data_files(data))


def _with_peers(table: dict[str, Any]) -> dict[str, Any]:
    """As many peers as other keys want, unless the table says how many; and the names of data files."""
    if "peers" in table:
        return table
    names = table.get("names") or _named_by_files(table)
    wanted = decides_peers(table)
    return table if wanted is None else {**table, "peers": wanted, "names": names}


def _check_names(experiment: Experiment) -> None:
    names = experiment.names
    if names and len(names) != experiment.peers:
        raise ConfigError(f"names: {len(names)} names for {experiment.peers} peers; give each peer one")
    refuse_bad_names(names)


def refuse_bad_names(names: Sequence[str]) -> None:
    """Names are what people read in tables: each has a line, and none two owners."""
    for name in names:
        if not name.strip() or not name.isprintable():
            raise ConfigError(f"names: {name!r} is not a name that can be shown; write a few words")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"names: {twice!r} is the name of two peers; give each its own")


def _with_inline_settings(table: dict[str, Any]) -> dict[str, Any]:
    """`d-psgd(metropolis)` is the algorithm d-psgd with its first hyper-parameter set."""
    name, inline = inline_settings(str(table.get("algorithm", "local")))
    return {**table, "algorithm": name, "settings": {**inline, **table.get("settings", {})}}


def inline_settings(text: str) -> tuple[str, dict[str, str]]:
    """The name and the hyper-parameters in `random-gossip(3)`."""
    name, positional, keywords = parse_call(text, "algorithm")
    if name == AUTO and not positional and not keywords:
        return name, {}
    algorithms.require(name)
    if not positional:  # what their names are does not matter, so the algorithm need not be imported
        return name, keywords
    fields = [field.name for field in dataclasses.fields(algorithms[name])]  # type: ignore[arg-type]
    if len(positional) > len(fields):
        written = in_short(algorithms.signature(name))
        raise ConfigError(f"algorithm {text!r}: at most {len(fields)} settings; write {written}")
    return name, {**dict(zip(fields, positional, strict=False)), **keywords}


def _with_preset(table: dict[str, Any]) -> dict[str, Any]:
    """What a preset says holds unless the user says otherwise.

    Steps replace epochs: those of a preset must not silence the epochs that the user asks for.
    """
    if table.get("preset") is None:
        return table
    presets = getattr(algorithms[table["algorithm"]], "presets", {})
    if table["preset"] not in presets:
        known = nearest(str(table["preset"]), presets) if presets else "it has none"
        raise ConfigError(f"algorithm {table['algorithm']!r} has no preset {table['preset']!r}; {known}")
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    counts_epochs = bool({"epochs", "epoch_groups"} & merged.get("training", {}).keys())
    for key, value in presets[table["preset"]].items():
        if key == "training.steps" and counts_epochs:
            continue
        section, dot, name = key.rpartition(".")
        merged.setdefault(section if dot else "settings", {}).setdefault(name, value)
    return merged


def _with_defaults(experiment: Experiment) -> Experiment:
    """Fill in model, partition and topology, and refuse what contradicts itself."""
    changes: dict[str, Any] = {}
    algorithm = algorithms[experiment.algorithm]
    facts = algorithm.facts  # type: ignore[attr-defined]
    built: Algorithm[Any] = build_algorithm(experiment)
    refuse_kept_memory(experiment, facts)
    if is_own_data(experiment.data) or experiment.data == OWN_OBJECT:
        default_model, default_partition = "mlp", "iid"
    else:
        dataset = sources.build(experiment.data)
        default_model, default_partition = dataset.default_model, dataset.default_partition
    changes["model"] = experiment.model or default_model
    changes["partition"] = experiment.partition or default_partition
    changes["topology"] = experiment.topology or ("star" if facts.hub else "full")
    experiment = experiment.model_copy(update=changes)
    for model in (experiment.model, *experiment.models):
        if not _is_path(model) and model != OWN_OBJECT:
            models.build(model)
    if experiment.adapter:
        adapters.build(experiment.adapter)
    dealt_out(experiment.models, experiment.peers)
    attendance(experiment)
    _check_names(experiment)
    if experiment.models and not built.takes_architectures():
        able = [name for name in algorithms if algorithms[name].facts.architectures]  # type: ignore[attr-defined]
        raise ConfigError(
            f"algorithm {experiment.algorithm!r} needs the same model at all peers, and `models` gives some "
            f"another; those that allow it, as they are set by default: {', '.join(able)}"
        )
    if experiment.partition != OWN_OBJECT:
        partitions.build(experiment.partition)
    if experiment.topology != OWN_OBJECT:
        graphs = topologies.build(experiment.topology)
        if hasattr(graphs, "check"):  # else a graph that a user's function returned, seen when it is made
            graphs.check(experiment.peers)
        name = parse_call(experiment.topology)[0]
        if facts.hub and name != "star" and not is_file_reference(name):
            raise ConfigError(
                f"algorithm {experiment.algorithm!r} goes through a hub and needs topology 'star', "
                f"not {experiment.topology!r}"
            )
    return experiment
