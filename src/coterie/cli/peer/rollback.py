"""`coterie peer rollback`: back to a checkpoint of some rounds ago. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.peer.cards import Folder
from coterie.cli.peer.display import scores
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records, main_metric
from coterie.peer.exchange.committed import CHECKPOINT, committed_rounds, earlier_checkpoints, roll_back
from coterie.peer.trust.settings import load_settings
from coterie.peer.watch.monitoring import running


def rollback(
    folder: Folder = Path(),
    to: Annotated[
        int | None,
        typer.Option("--to", min=0, help="After how many rounds.", metavar="ROUNDS", show_default=False),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="All members go back to this round; push-sum needs that.")
    ] = False,
) -> None:
    """Show the kept checkpoints, or go back to one; the present one is kept in its turn."""
    name, state = load_settings(folder).name, folder / "state"
    if to is None:
        _show(folder, name)
        return
    with running(state, name):
        roll_back(state, to, everyone=everyone)
    typer.echo(f"{name} is back after round {to}; go on with: coterie peer run --dir {folder}")


def _show(folder: Path, name: str) -> None:
    state = folder / "state"
    kept = earlier_checkpoints(state)
    typer.echo(f"{name} is after round {committed_rounds(state / CHECKPOINT)}; kept are:")
    lines = Records(folder / RECORDS_FILE).read()
    metric = main_metric(lines)
    measured = {line["round"] + 1: line.get(metric, {}) for line in lines}
    for round in kept:
        typer.echo(f"  after round {round}: {scores(metric, measured.get(round, {}))}")
    if not kept:
        typer.echo("  no earlier checkpoint")
