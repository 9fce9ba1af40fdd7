"""`coterie runs` lists what is in a folder of runs; `coterie runs clean` removes it after asking.

Folders are read with care: whatever else lies there is left alone, and a broken one is listed as such.
Nothing here needs PyTorch.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from coterie.cli.completing import runs_there
from coterie.cli.output import print_json
from coterie.errors import ConfigError, CoterieError, RunFolderError, RunInUseError
from coterie.experiments.runs.naming import RUNS
from coterie.files import somebody_has
from coterie.metric import Metric
from coterie.registry import nearest
from coterie.reporting.tables import in_bytes, show
from coterie.toml_tables import load_toml
from coterie.user_code import in_short

_KINDS = {"config.toml": "run", "compare.json": "comparison", "sweep.json": "sweep"}  # by what tells them
_DAY = 24 * 60 * 60.0

Runs = Annotated[Path, typer.Option("--dir", help="The folder of runs.", metavar="DIR")]


@dataclass(frozen=True)
class Listed:
    """One folder that a command left behind."""

    name: str
    kind: str
    state: str  # running, finished, interrupted, or broken
    what: str
    score: str
    bytes: int
    days: float  # since something was last written there


def list_runs(folder: Path = RUNS, json: bool = False) -> None:
    """List runs, comparisons, sweeps and reproductions: what, how far, how well, how large."""
    found = list(listed(folder))
    if json:
        print_json([asdict(one) for one in found])
    elif not found:
        typer.echo(f"there are no runs in {folder}")
    else:
        show(_table(found))


def clean(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only these.", metavar="[RUN]...", autocompletion=runs_there, show_default=False),
    ] = None,
    folder: Runs = RUNS,
    older_than: Annotated[
        float, typer.Option("--older-than", min=0, help="Only what was not written to for so many days.")
    ] = 0.0,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only what is not finished.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs after asking; those that are going on stay."""
    found = {one.name: one for one in listed(folder)}
    wanted = [Path(name).name for name in names or found]
    for name in wanted:
        if name not in found:
            raise RunFolderError(f"there is no run {name!r} in {folder}; {nearest(name, found)}")
    chosen = [found[name] for name in dict.fromkeys(wanted)]
    chosen = [
        one for one in chosen if one.days >= older_than and not (unfinished and one.state == "finished")
    ]
    going_on = [one.name for one in chosen if one.state == "running"]
    if going_on and names:
        raise RunInUseError(f"{going_on[0]} is in use by another process; wait until its run has ended")
    chosen = [one for one in chosen if one.state != "running"]
    if not chosen:
        typer.echo("there is nothing to remove")
        return
    if not yes and not _agreed(chosen, folder):
        typer.echo("nothing was removed")
        return
    for one in chosen:
        _remove(folder / one.name)
    typer.echo(f"removed: {_counted(chosen)}")


def listed(folder: Path) -> Iterator[Listed]:
    """What is in a folder of runs, by name; what no command left there is passed over."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        kind = next((kind for file, kind in _KINDS.items() if (path / file).is_file()), None)
        kind = "reproduction" if kind is None and _tables(path) else kind
        if kind is not None and not path.is_symlink():
            try:
                yield _listed(path, kind)
            except OSError:  # it vanished meanwhile
                continue


def _listed(path: Path, kind: str) -> Listed:
    files = [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    days = (time.time() - max(file.stat().st_mtime for file in files)) / _DAY
    try:
        told = {"run": _of_run, "reproduction": _of_reproduction}.get(kind, partial(_of_several, kind=kind))
        state, what, score = told(path)
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError, CoterieError) as error:
        state, what, score = "broken", str(error).splitlines()[0], ""
    if any(somebody_has(lock) for lock in files if lock.name == ".lock" or lock.parent.name == ".locks"):
        state = "running"
    return Listed(path.name, kind, state, what, score, size, round(max(0.0, days), 3))


def _of_run(path: Path) -> tuple[str, str, str]:
    """A run's state, what it is of, and its score."""
    config = load_toml(path / "config.toml")
    what = f"{in_short(config['algorithm'])}, {in_short(config['data'])}, {config['peers']} peers, "
    if (path / "result.json").is_file():
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
        return "finished", f"{what}{result['rounds']} rounds", _score(result)
    rounds = path / "rounds.csv"
    done = max(0, len(rounds.read_text(encoding="utf-8").splitlines()) - 1) if rounds.is_file() else 0
    return "interrupted", f"{what}round {done} of {config['rounds']}", ""


def _score(result: dict[str, Any]) -> str:
    metric = Metric.of(result)
    return f"{metric.name} {metric.text(result[f'personal_{metric.name}']['mean'])}"


def _of_several(path: Path, kind: str) -> tuple[str, str, str]:
    """Those of a comparison are in folders beside its plan, those of a sweep in `cells`."""
    plan = json.loads(
        (path / f"{'compare' if kind == 'comparison' else kind}.json").read_text(encoding="utf-8")
    )
    inside = path / "cells" if kind == "sweep" else path
    done = sum((one / "result.json").is_file() for one in inside.iterdir()) if inside.is_dir() else 0
    names = dict.fromkeys(in_short(entry["table"]["algorithm"]) for entry in plan)
    what = f"{', '.join(names)}; {in_short(plan[0]['table']['data'])}; {done} of {len(plan)} runs"
    return "finished" if done >= len(plan) else "interrupted", what, ""


def _tables(path: Path) -> list[Path]:
    """What `reproduce` says of its tables, such as ppdl/table-1/smoke/results.json."""
    return sorted(path.glob("*/*/*/results.json")) if (path / "cells").is_dir() else []


def _of_reproduction(path: Path) -> tuple[str, str, str]:
    tables = {
        "/".join(file.relative_to(path).parts[:3]): json.loads(file.read_text(encoding="utf-8"))
        for file in _tables(path)
    }
    missing = sum(len(told.get("missing") or []) for told in tables.values())
    left = f"; {missing} runs to be made" if missing else ""
    return "interrupted" if missing else "finished", ", ".join(tables) + left, ""


def _table(found: list[Listed]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    for name in ("name", "kind", "state", "what", "score"):
        table.add_column(name, overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("days old", justify="right", no_wrap=True)
    for one in found:
        cells = (one.name, one.kind, one.state, one.what, one.score, in_bytes(one.bytes), f"{one.days:.0f}")
        table.add_row(*map(Text, cells))
    return table


def _agreed(chosen: list[Listed], folder: Path) -> bool:
    if not _somebody_is_there():
        raise ConfigError(
            f"{_counted(chosen)} in {folder} would be removed, and nobody is there to ask; add --yes"
        )
    show(_table(chosen))
    return typer.confirm(f"Remove {_counted(chosen)} from {folder}, with all models in them?")


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _counted(chosen: list[Listed]) -> str:
    size = in_bytes(sum(one.bytes for one in chosen))
    return f"{len(chosen)} folder{'s' * (len(chosen) != 1)} ({size})"


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise RunFolderError(f"cannot remove {error.filename or path}: {error.strerror}") from None
