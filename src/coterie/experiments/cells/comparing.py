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
from coterie.experiments.setup.recommending import AUTO, recommend
from coterie.experiments.setup.schema import Experiment
from coterie.registry import parse_call, split_outside_brackets
from coterie.toml_tables import merged

if TYPE_CHECKING:
    from coterie.protocol import Algorithm, Facts

Say = Callable[[str], None]
MakeTable = Callable[[str | None], dict[str, Any]]
PLAN = "compare.json"
_UNLESS_TOLD = ("local", "d-psgd", "kin")  # alone, one model for all, and one for each
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
        names = list(_UNLESS_TOLD) if in_file is None else [str(in_file)]
        if in_file is None:
            say(f"note: compared are {', '.join(names)}; --algorithms names others, `coterie list` shows all")
    names = [_advised(name, make_table, say) for name in names]
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


def _advised(name: str, make_table: MakeTable, say: Say) -> str:
    """The name, or in the place of `auto` the algorithm that is recommended."""
    if name != AUTO:
        return name
    advice = recommend({**make_table(None), "algorithm": AUTO})
    say(f"note: {AUTO} is {advice.written}: {advice.reason}")
    return advice.written


def give_hub_its_star(table: dict[str, Any], shown: str, say: Say) -> bool:
    """Methods with a hub run beside others, whose topology they cannot have; says whether it changed."""
    changes = _facts(table).hub and parse_call(str(table.get("topology") or "star"))[0] != "star"
    if changes:
        say(f"note: {shown} goes through a hub: topology star instead of {table['topology']}")
        table["topology"] = "star"
    return bool(changes)


def on_the_same_data(tables: list[dict[str, Any]], say: Say) -> list[dict[str, Any]]:
    """If one needs validation data, all set them aside: the others would train on more than that one.

    And if one reports the best model so far by these data, Local does, too.
    """
    said = note_of_validation(tables)
    say(said)
    tables = [with_validation(table) for table in tables] if said else tables
    if any(_facts(table).keeps_best and _validates(table) for table in tables):
        return [with_best_model(table, say) for table in tables]
    return tables


def with_best_model(table: dict[str, Any], say: Say) -> dict[str, Any]:
    """Local beside methods that report the best model so far, unless the table says whether it does."""
    name, *inline = parse_call(str(table.get("algorithm", "local")), "algorithm")
    settings = table.get("settings") or {}
    if name != "local" or any(inline) or not isinstance(settings, Mapping) or "best" in settings:
        return table
    say("note: local reports its best model by validation data, as others here do")
    return {**table, "settings": {**settings, "best": True}}


def _facts(table: Mapping[str, Any]) -> Facts:
    name = parse_call(str(table.get("algorithm", "local")), "algorithm")[0]
    facts: Facts = algorithms[name].facts  # type: ignore[attr-defined]
    return facts


def _validates(table: Mapping[str, Any]) -> bool:
    said = table.get("splitting")
    return isinstance(said, Mapping) and bool(said.get("validation"))


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

    A run that had begun gets a new folder: what it left behind is of other settings. Its label says them.
    """
    if unfair := sorted(_THE_SAME_FOR_ALL & said.keys()):
        raise ConfigError(
            f"--resume: {', '.join(unfair)} must be the same for all runs of a comparison, and some may be "
            "finished; start another one"
        )
    finished = [planned for planned in plan if (folder / planned.folder / "result.json").is_file()]
    result, taken = [], {planned.folder for planned in plan}
    for planned in plan if said else []:
        experiment = planned.experiment
        if planned not in finished:
            experiment = resolve_to_run(merged(experiment.model_dump(mode="json"), said))
        changes = _changes(planned.experiment, experiment)
        if changes:
            shown = ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changes.items())
            say(f"note: {planned.label}: {shown}")
            label = _relabelled(planned, experiment, changes, finished)
            begun = (folder / planned.folder / "config.toml").exists()
            name = naming.first_free(planned.folder, taken.__contains__) if begun else planned.folder
            taken.add(name)
            planned = Planned(label, experiment, name)
        result.append(planned)
    labels = [planned.label for planned in result]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ConfigError(f"--resume: with these settings there would be two of {twice[0]!r}")
    return result or plan


def _relabelled(
    planned: Planned,
    experiment: Experiment,
    changes: Mapping[str, tuple[Any, Any]],
    finished: list[Planned],
) -> str:
    """`dfedpgp(head_lr=0.1)` in the place of `dfedpgp(head_lr=1e30)`; other keys stand there, too."""
    others = {
        key: new for key, (_, new) in changes.items() if not key.startswith(("settings.", "execution."))
    }
    if not others and not any(key.startswith("settings.") for key in changes):
        return planned.label
    name, seed = _without_seed(planned)
    if done := [one for one in finished if _without_seed(one)[0] == name]:
        raise ConfigError(
            f"--resume: {name} is finished for seed {done[0].experiment.seed} with what it had, and a mean "
            f"over seeds is one of equal settings: leave out {', '.join(changes)}, or start another one"
        )
    said = ",".join(f"{key}={value}" for key, value in {**experiment.settings, **others}.items())
    return f"{name.partition('(')[0]}({said}){seed}"


def _without_seed(planned: Planned) -> tuple[str, str]:
    """The name of the algorithm here, and what the label has behind it."""
    seed = f"-s{planned.experiment.seed}"
    name = planned.label.removesuffix(seed)
    return name, seed if name != planned.label else ""


def _changes(before: Experiment, after: Experiment) -> dict[str, tuple[Any, Any]]:
    """What each key that differs had, and has now."""
    old, new = (_flat(one.model_dump(mode="json")) for one in (before, after))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return {key: (old.get(key, "not set"), new.get(key, "not set")) for key in keys}


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
