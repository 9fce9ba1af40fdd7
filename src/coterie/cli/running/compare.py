"""`coterie compare`: several algorithms on the same data, one after the other."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.catalogue import algorithms
from coterie.cli.options import Asked, experiment_options, merged
from coterie.cli.output import Json, NoPlots, Output, Quiet
from coterie.cli.problems import note
from coterie.cli.running import folders
from coterie.cli.running.run import Resume, RunDir
from coterie.errors import ConfigError, RunFolderError
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

PLAN = "compare.json"
_THE_SAME_FOR_ALL = {"algorithm", "data", "partition", "peers", "rounds", "seed", "splitting", "evaluation"}


@dataclass(frozen=True)
class Planned:
    """One run of a comparison."""

    label: str
    experiment: Experiment
    folder: str = ""  # its name within that of the comparison; "": `in_own_folders` chooses it

    def entry(self) -> dict[str, Any]:
        """As the plan's file has it."""
        table = self.experiment.model_dump(mode="json")
        return {"label": self.label, "table": table, "folder": self.folder}


@experiment_options(without=("algorithm",))
def compare(
    asked: Asked,
    *,
    algorithms: Annotated[
        str, typer.Option(help="Algorithms, separated by commas.", metavar="A,B,C", show_default=False)
    ] = "",
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm", help="One more algorithm; repeatable.", metavar="NAME", show_default=False
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run so many seeds, counted up from --seed.")] = 1,
    run_dir: RunDir = None,
    resume: Resume = None,
    json: Json = False,
    quiet: Quiet = False,
    no_plots: NoPlots = False,
) -> None:
    """Compare algorithms on the same data, peers and seed; Local is always among them."""
    names = [name.strip() for name in [*split_names(algorithms), *(algorithm or [])]]
    if resume is not None:
        more = {"--algorithms": names, "--seeds": seeds > 1, "--run-dir": run_dir}
        if refused := [name for name, given in more.items() if given]:
            asked.refuse_with("--resume", *refused)
        plan, folder = corrected(read_plan(resume), asked.table(), resume, quiet), resume
    else:
        plan = make_plan(asked, names, seeds, quiet)
        folder = run_dir or folders.new_folder("compare", plan[0].experiment.data)
        folders.refuse_existing(folder, "compare")

    from coterie.cli.running import simulating  # PyTorch

    runs = simulating.run_plan(plan, folder, quiet)
    simulating.show_plan(plan, runs, folder, Output(json, quiet, not no_plots))


def split_names(text: str) -> list[str]:
    """`random-gossip(3),d-psgd(mixing=metropolis)` is two names: commas inside parentheses do not count."""
    return [part for part in split_outside_brackets(text) if part.strip()]


def make_plan(asked: Asked, names: list[str], seeds: int, quiet: bool) -> list[Planned]:
    """What will be run, checked before anything runs; says what was added or changed."""
    if not names:
        in_file = asked.table().get("algorithm")
        if in_file is None:
            raise ConfigError("which algorithms? Write --algorithms d-psgd,fedavg; `coterie list` shows all")
        names = [str(in_file)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"algorithm {twice[0]!r} is named twice")
    for name in names:
        algorithms.require(parse_call(name, "algorithm")[0])
    refuse_unknown_words(asked.table())  # all other names, before the first algorithm is imported
    if not any(name.partition("(")[0].strip() == "local" for name in names):
        names = ["local", *names]
        note("note: local is added, for the gain over it", quiet)
    tables = [asked.table(name) for name in names]
    for name, table in zip(names, tables, strict=True):
        give_hub_its_star(table, name, quiet)
    plan = []
    for name, table in zip(names, on_the_same_data(tables, quiet), strict=True):
        experiment = resolve_to_run(with_equal_work(table))
        note_overruled(experiment, quiet)
        for seed in range(experiment.seed, experiment.seed + seeds):
            label = f"{name}-s{seed}" if seeds > 1 else name
            plan.append(Planned(label, experiment.model_copy(update={"seed": seed})))
    return plan


def give_hub_its_star(table: dict[str, Any], shown: str, quiet: bool) -> bool:
    """Methods with a hub run beside others, whose topology they cannot have; says whether it changed."""
    cls: Any = algorithms[parse_call(str(table.get("algorithm", "local")), "algorithm")[0]]
    changes = cls.facts.hub and parse_call(str(table.get("topology") or "star"))[0] != "star"
    if changes:
        note(f"note: {shown} goes through a hub: topology star instead of {table['topology']}", quiet)
        table["topology"] = "star"
    return bool(changes)


def on_the_same_data(tables: list[dict[str, Any]], quiet: bool) -> list[dict[str, Any]]:
    """If one needs validation data, all set them aside: the others would train on more than that one."""
    said = note_of_validation(tables)
    note(said, quiet)
    return [with_validation(table) for table in tables] if said else tables


def note_overruled(experiment: Experiment, quiet: bool) -> bool:
    """Say which settings that the user gave do not count, since all methods train equally long."""
    names = [name for name in overruled(experiment) if name in experiment.settings]
    if names:
        note(
            f"note: {experiment.algorithm} takes as many local steps as the others, whatever "
            f"{', '.join(names)} says; --work own compares as the papers do",
            quiet,
        )
    return bool(names)


def in_own_folders(plan: list[Planned]) -> list[Planned]:
    """The plan with a folder for each run: fedprox(mu=1e+1) and fedprox(mu=1e-1) would share one."""
    placed: list[Planned] = []
    for planned in plan:
        taken = {other.folder for other in placed}
        name = planned.folder or folders.first_free(folders.slug(planned.label), taken.__contains__)
        placed.append(replace(planned, folder=name))
    return placed


def corrected(plan: list[Planned], said: dict[str, Any], folder: Path, quiet: bool) -> list[Planned]:
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
            note(f"note: {planned.label}: {changes}", quiet)
            begun = (place / "config.toml").exists()
            name = folders.first_free(planned.folder, taken.__contains__) if begun else planned.folder
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
        entries = json_format.loads((folder / PLAN).read_text(encoding="utf-8"))
        return [Planned(e["label"], resolve(e["table"]), e.get("folder", "")) for e in entries]
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder} is not the folder of a comparison: it has no {PLAN}; a single run is continued with "
            f"`coterie run --resume {folder}`"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{folder / PLAN} cannot be read: {error}") from None
