"""`coterie compare`: several algorithms on the same data, one after the other."""

from __future__ import annotations

import json as json_format
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.catalogue import algorithms
from coterie.cli.options import Asked, experiment_options
from coterie.cli.output import Json, NoPlots, Output, Quiet, print_json, print_paths
from coterie.cli.problems import note
from coterie.cli.running import folders
from coterie.cli.running.progress import Progress
from coterie.cli.running.run import Resume, RunDir
from coterie.errors import ConfigError, CoterieError, RunFolderError
from coterie.experiments.setup.config import resolve, resolve_to_run
from coterie.registry import parse_call

if TYPE_CHECKING:
    from coterie.experiments.runs.running import Run
    from coterie.experiments.setup.schema import Experiment

PLAN = "compare.json"
_COMMAS_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True)
class Planned:
    """One run of a comparison."""

    label: str
    seed: int
    table: dict[str, Any]
    folder: str = ""  # its name within that of the comparison; "": `in_own_folders` chooses it


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
        asked.refuse_with("--resume", *(name for name, given in more.items() if given))
        plan, folder = read_plan(resume), resume
    else:
        plan = make_plan(asked, names, seeds, quiet)
        folder = run_dir or folders.new_folder("compare", str(plan[0].table["data"]))
        folders.refuse_existing(folder, "compare")
    runs = play_all(plan, folder, quiet)
    report(plan, runs, folder, Output(json, quiet, not no_plots))


def split_names(text: str) -> list[str]:
    """`random-gossip(3),d-psgd(mixing=metropolis)` is two names: commas inside parentheses do not count."""
    return [part for part in _COMMAS_OUTSIDE_PARENTHESES.split(text) if part.strip()]


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
    resolve(asked.table(names[0]) | {"topology": None})  # first what holds for all of them
    if not any(name.partition("(")[0].strip() == "local" for name in names):
        names = ["local", *names]
        note("note: local is added, for the gain over it", quiet)
    plan = []
    for name in names:
        table = _for_one(asked, name, quiet)
        first = resolve_to_run(table).seed
        for seed in range(first, first + seeds):
            label = f"{name}-s{seed}" if seeds > 1 else name
            plan.append(Planned(label, seed, {**table, "seed": seed, "data": table.get("data", "digits")}))
    return plan


def _for_one(asked: Asked, name: str, quiet: bool) -> dict[str, Any]:
    """The table of one algorithm, with the topology star if it needs a hub."""
    table = asked.table(name)
    cls: Any = algorithms[parse_call(name, "algorithm")[0]]
    if cls.facts.hub and parse_call(str(table.get("topology") or "star"))[0] != "star":
        note(f"note: {name} goes through a hub: topology star instead of {table['topology']}", quiet)
        table["topology"] = "star"
    return table


def in_own_folders(plan: list[Planned]) -> list[Planned]:
    """The plan with a folder for each run: fedprox(mu=1e+1) and fedprox(mu=1e-1) would share one."""
    placed: list[Planned] = []
    for planned in plan:
        taken = {other.folder for other in placed}
        name = planned.folder or folders.first_free(folders.slug(planned.label), taken.__contains__)
        placed.append(replace(planned, folder=name))
    return placed


def read_plan(folder: Path) -> list[Planned]:
    """The plan of an interrupted comparison."""
    try:
        entries = json_format.loads((folder / PLAN).read_text(encoding="utf-8"))
        return [Planned(**entry) for entry in entries]
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder} is not the folder of a comparison: it has no {PLAN}; a single run is continued with "
            f"`coterie run --resume {folder}`"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{folder / PLAN} cannot be read: {error}") from None


def play_all(plan: list[Planned], folder: Path, quiet: bool, command: str = "") -> list[Run]:
    """Run what has not been run; of what has, read the result."""
    from coterie.cli.running import playing

    plan = in_own_folders(plan)
    experiments = [resolve(planned.table) for planned in plan]
    _check_all(experiments)
    _write_plan(plan, folder)
    command = command or f"coterie compare --resume {folder}"
    runs = []
    try:
        with Progress(quiet, lines=3) as progress:
            for planned, experiment in zip(plan, experiments, strict=True):
                place = folder / planned.folder
                runs.append(playing.play(experiment, place, progress, command=command, label=planned.label))
    except CoterieError:
        if not any(folder.glob("*/config.toml")):  # nothing ran: leave nothing behind
            (folder / PLAN).unlink()
            folder.rmdir()
        raise
    return runs


def _check_all(experiments: list[Experiment]) -> None:
    """Find out now, not after an hour, that the third algorithm cannot run on this data or topology."""
    from coterie.experiments.setup.config import build_algorithm
    from coterie.experiments.setup.prepare import prepare

    for number, experiment in enumerate(experiments):
        facts = algorithms[experiment.algorithm].facts  # type: ignore[attr-defined]
        demanding = facts.clusters or build_algorithm(experiment).needs_both_ways()
        if number == 0 or (demanding and experiment.seed == experiments[0].seed):
            prepare(experiment)


def _write_plan(plan: list[Planned], folder: Path) -> None:
    from coterie.files import write_atomically

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {folder}: {error.strerror}") from None
    if not (folder / PLAN).exists():
        content = json_format.dumps([vars(planned) for planned in plan], indent=2)
        write_atomically(folder / PLAN, content.encode())


def report(plan: list[Planned], runs: list[Run], folder: Path, output: Output) -> None:
    """Table or JSON on stdout, plots in the folder."""
    from coterie.cli.running import playing

    groups: dict[str, list[Run]] = {}  # by algorithm, one run for each seed
    seeds = {planned.seed for planned in plan}
    for planned, run in zip(plan, runs, strict=True):
        label = planned.label.removesuffix(f"-s{planned.seed}") if len(seeds) > 1 else planned.label
        groups.setdefault(label, []).append(run)
    results = {label: [run.result() for run in group] for label, group in groups.items()}
    _show(results, output)
    plots: list[Path] = []
    if output.plots:
        if len(seeds) > 1:
            note(f"note: the plots show seed {min(seeds)}", output.quiet)
        plots = playing.draw([group[0] for group in groups.values()], folder, list(groups))
    print_paths(plots, folder, output)


def _show(results: dict[str, list[dict[str, Any]]], output: Output) -> None:
    from coterie.reporting import tables

    local = next(group for group in results.values() if group[0]["algorithm"] == "local")
    if output.json:
        print_json(
            [
                {**result, "gain_over_local": tables.gain(result, reference)}
                for group in results.values()
                for result, reference in zip(group, local, strict=True)
            ]
        )
    else:
        tables.show(tables.summary_over_seeds(list(results.values()), list(results), local))
