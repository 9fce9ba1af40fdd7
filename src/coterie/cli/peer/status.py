"""`coterie peer status`: how a peer of this machine stands, whether it runs or not. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from coterie.cli.output import Json, print_json
from coterie.cli.peer.cards import Folder
from coterie.cli.peer.display import headline, neighbours, scores
from coterie.errors import UnreachableError
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records, last_scores
from coterie.experiments.setup.schema import Experiment
from coterie.peer.exchange.committed import committed_rounds
from coterie.peer.trust.settings import load_settings
from coterie.peer.watch.monitoring import ask_standing, is_running
from coterie.reporting.tables import show
from coterie.toml_tables import load_toml, validate


def status(folder: Folder = Path(), json: Json = False) -> None:
    """Ask the running peer how it stands; if none runs, show what it has on disk."""
    load_settings(folder)  # refuses a folder that is not a peer's
    running, standing, problem = is_running(folder / "state"), None, ""
    if running:
        try:
            standing = ask_standing(folder / "state")
        except UnreachableError as error:
            problem = str(error)
    if standing is None:
        _show_stored(folder, running, problem, json)
    elif json:
        shown = standing.model_dump() | {"metric": standing.metric.name}
        print_json({"running": True, **shown, standing.metric.name: shown.pop("scores")})
    else:
        typer.echo(headline(standing))
        show(neighbours(standing))


def _show_stored(folder: Path, running: bool, problem: str, json: bool) -> None:
    """Exits with 1 if the peer is down before its end: health checks ask for that."""
    stored = _stored(folder)
    _print_stored(stored, running, problem, json)
    if not running and stored["round"] < stored["rounds"]:
        raise typer.Exit(1)


def _print_stored(stored: dict[str, Any], running: bool, problem: str, json: bool) -> None:
    if json:
        print_json({"running": running, **stored})
        return
    state = f"runs, but does not say how it stands ({problem})" if running else "does not run"
    typer.echo(f"{stored['name']} {state}; on disk:")
    finished = f"{stored['round']} of {stored['rounds']} rounds are finished"
    typer.echo(f"  {finished}, {scores(stored['metric'], stored[stored['metric']])}")


def _stored(folder: Path) -> dict[str, Any]:
    """What checkpoint and records say."""
    settings = load_settings(folder)
    path = Path(settings.experiment)
    experiment = validate(Experiment, load_toml(path), str(path))
    metric, last = last_scores(Records(folder / RECORDS_FILE).read())
    return {
        "name": settings.name,
        "number": settings.number,
        "round": committed_rounds(folder / "state" / "checkpoint.safetensors"),
        "rounds": experiment.rounds,
        "metric": metric,
        metric: last,
    }
