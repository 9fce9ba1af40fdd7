"""The plan of a comparison: several algorithms on the same data, peers and seeds. Needs no PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.catalogue import algorithms
from coterie.errors import ConfigError, RunFolderError
from coterie.experiments.runs import naming
from coterie.experiments.setup.config import (
    note_of_validation,
    overruled,
    refuse_unknown_words,
    resolve,
    resolve_to_run,
    with_equal_work,
    with_validation,
)
from coterie.experiments.setup.schema import Experiment
from coterie.registry import parse_call, split_outside_brackets
from coterie.toml_tables import merged

if TYPE_CHECKING:
    from coterie.protocol import Algorithm

Say = Callable[[str], None]
MakeTable = Callable[[str | None], dict[str, Any]]
PLAN = "compare.json"
_THE_SAME_FOR_ALL = {"algorithm", "data", "partition", "peers", "rounds", "seed", "splitting", "evaluation"}


@dataclass(frozen=True)
class Planned:
    """One run of a comparison."""

    label: str
    experiment: Experiment
    folder: str = ""  # its name within that of the comparison; "": `in_own_folders` chooses it
    algorithm: Algorithm[Any] | None = None  # an object of the user's own

    def entry(self) -> dict[str, Any]:
        """As the plan's file has it."""
        table = self.experiment.model_dump(mode="json")
        return {"label": self.label, "table": table, "folder": self.folder}


def split_names(text: str) -> list[str]:
    """`random-gossip(3),d-psgd(mixing=metropolis)` is two names: commas inside parentheses do not count."""
    return [part for part in split_outside_brackets(text) if part.strip()]


def make_plan(
    make_table: MakeTable,
    names: list[str],
    seeds: int,
    say: Say,
    *,
    own: Mapping[str, Algorithm[Any]] | None = None,
    check: Callable[[dict[str, Any]], Experiment] = resolve_to_run,
) -> list[Planned]:
    """What will be run, checked before anything runs; says what was added or changed.

    make_table: the table of the experiment with an algorithm; with None, as the user wrote it.
    own: algorithms that are objects, by their names here. check: from a table to the experiment.
    """
    own = own or {}
    if not names:
        in_file = make_table(None).get("algorithm")
        if in_file is None:
            raise ConfigError("which algorithms? Write --algorithms d-psgd,fedavg; `coterie list` shows all")
        names = [str(in_file)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"algorithm {twice[0]!r} is named twice")
    for name in names:
        if name not in own:
            algorithms.require(parse_call(name, "algorithm")[0])
    refuse_unknown_words(make_table(None))  # all other names, before the first algorithm is imported
    if not any(name.partition("(")[0].strip() == "local" for name in names):
        names = ["local", *names]
        say("note: local is added, for the gain over it")
    tables = [make_table(name) for name in names]
    for name, table in zip(names, tables, strict=True):
        give_hub_its_star(table, name, say)
    plan = []
    for name, table in zip(names, on_the_same_data(tables, say), strict=True):
        experiment = check(with_equal_work(table))
        note_overruled(experiment, say)
        for seed in range(experiment.seed, experiment.seed + seeds):
            label = f"{name}-s{seed}" if seeds > 1 else name
            seeded = experiment.model_copy(update={"seed": seed})
            plan.append(Planned(label, seeded, algorithm=own.get(name)))
    return plan


def give_hub_its_star(table: dict[str, Any], shown: str, say: Say) -> bool:
    """Methods with a hub run beside others, whose topology they cannot have; says whether it changed."""
    cls: Any = algorithms[parse_call(str(table.get("algorithm", "local")), "algorithm")[0]]
    changes = cls.facts.hub and parse_call(str(table.get("topology") or "star"))[0] != "star"
    if changes:
        say(f"note: {shown} goes through a hub: topology star instead of {table['topology']}")
        table["topology"] = "star"
    return bool(changes)


def on_the_same_data(tables: list[dict[str, Any]], say: Say) -> list[dict[str, Any]]:
    """If one needs validation data, all set them aside: the others would train on more than that one."""
    said = note_of_validation(tables)
    say(said)
    return [with_validation(table) for table in tables] if said else tables


def note_overruled(experiment: Experiment, say: Say) -> bool:
    """Say which settings that the user gave do not count, since all methods train equally long."""
    names = [name for name in overruled(experiment) if name in experiment.settings]
    if names:
        say(
            f"note: {experiment.algorithm} takes as many local steps as the others, whatever "
            f"{', '.join(names)} says; training.work = own compares as the papers do"
        )
    return bool(names)


def in_own_folders(plan: list[Planned]) -> list[Planned]:
    """The plan with a folder for each run: fedprox(mu=1e+1) and fedprox(mu=1e-1) would share one."""
    placed: list[Planned] = []
    for planned in plan:
        taken = {other.folder for other in placed}
        name = planned.folder or naming.first_free(naming.slug(planned.label), taken.__contains__)
        placed.append(replace(planned, folder=name))
    return placed


def corrected(plan: list[Planned], said: dict[str, Any], folder: Path, say: Say) -> list[Planned]:
    """The plan with other settings for the runs that are not finished; says what changes.

    A run that had begun gets a new folder: what it left behind is of other settings.
    """
    if unfair := sorted(_THE_SAME_FOR_ALL & said.keys()):
        raise ConfigError(
            f"--resume: {', '.join(unfair)} must be the same for all runs of a comparison, and some may be "
            "finished; start another one"
        )
    result, taken = [], {planned.folder for planned in plan}
    for planned in plan if said else []:
        place = folder / planned.folder
        experiment = planned.experiment
        if not (place / "result.json").is_file():
            experiment = resolve_to_run(merged(experiment.model_dump(mode="json"), said))
        changes = _changes(planned.experiment, experiment)
        if changes:
            say(f"note: {planned.label}: {changes}")
            begun = (place / "config.toml").exists()
            name = naming.first_free(planned.folder, taken.__contains__) if begun else planned.folder
            taken.add(name)
            planned = Planned(planned.label, experiment, name)
        result.append(planned)
    return result or plan


def _changes(before: Experiment, after: Experiment) -> str:
    """`training.lr 0.5 -> 0.1`, for each key that differs."""
    old, new = (_flat(one.model_dump(mode="json")) for one in (before, after))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key, 'not set')} -> {new.get(key, 'not set')}" for key in keys)


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def read_plan(folder: Path) -> list[Planned]:
    """The plan of an interrupted comparison."""
    try:
        entries = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        return [Planned(e["label"], resolve(e["table"]), e.get("folder", "")) for e in entries]
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder} is not the folder of a comparison: it has no {PLAN}; a single run is continued with "
            f"`coterie run --resume {folder}`"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{folder / PLAN} cannot be read: {error}") from None
