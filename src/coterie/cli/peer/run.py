"""`coterie peer run`: learn with the others."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.interruption import end_with_stdin, ended_like_interrupted, leave
from coterie.cli.output import Json, print_json
from coterie.cli.peer.cards import Folder
from coterie.cli.peer.display import Display, scores
from coterie.cli.problems import note
from coterie.errors import DamagedRunError, RunFailedError, RunFolderError
from coterie.experiments.real_peers.folder import LEFT_FILE
from coterie.experiments.real_peers.peer_records import (
    RECORDS_FILE,
    Records,
    last_of,
    main_metric,
    until_best,
)
from coterie.metric import VALIDATION
from coterie.peer.trust.settings import load_settings
from coterie.peer.watch.monitoring import running
from coterie.peer.watch.standing import standing_of
from coterie.reporting.tables import in_bytes

if TYPE_CHECKING:
    from coterie.experiments.real_peers.joining import Joining
    from coterie.peer.exchange.metrics import Metrics
    from coterie.peer.turn import RoundReport

ALONE = 3
"""The exit code of a peer that finished, but played rounds while nobody else was there."""
_REFRESH = 0.5  # seconds between two looks at the neighbours

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings.")]
WhileStdin = Annotated[bool, typer.Option("--while-stdin", help="End when stdin is closed.", hidden=True)]


def run(
    folder: Folder = Path(), json: Json = False, quiet: Quiet = False, while_stdin: WhileStdin = False
) -> None:
    """Join the others, learn with them, and keep what was learned in the folder."""
    if while_stdin:
        end_with_stdin()
    with ended_like_interrupted():
        settings = load_settings(folder)
        if (left := folder / "state" / LEFT_FILE).exists():
            note(f"{settings.name} has left the experiment after round {left.read_text().strip()}", quiet)
            return
        with running(folder / "state", settings.name):
            try:
                _run(folder, json, quiet)
            except KeyboardInterrupt:  # before there was a loop that stops in good order
                raise KeyboardInterrupt(_go_on(folder)) from None


def _run(folder: Path, json: bool, quiet: bool) -> None:
    import torch

    from coterie.experiments.real_peers.joining import join

    torch.set_num_threads(1)
    display = Display(quiet)

    def observe(report: RoundReport) -> None:
        standing = standing_of(joining.peer)
        display.round(report.round, standing, report.seconds, report.scores.get(standing.metric.name, {}))

    joining = join(folder, observe)
    done, rounds = joining.peer.journal.round, joining.peer.rounds
    if done >= rounds:
        note(f"{joining.peer.name} has finished its {rounds} rounds already", quiet)
    elif done:
        note(f"{joining.peer.name} goes on after round {done} of {rounds}", quiet)
    try:
        asyncio.run(_learn(joining, display))
    except DamagedRunError:
        raise  # it cannot go on
    except RunFolderError as error:  # it was fine at the start: no mistake of the user's
        raise RunFailedError(f"{error}; {_go_on(folder)}") from None
    result = _result(joining)
    _report(result, json, quiet)
    note(failed_sums(joining.peer.metrics))  # a warning, also where only warnings are wanted
    if result["alone"]:  # in this process, or before a restart
        raise typer.Exit(ALONE)


async def _learn(joining: Joining, display: Display) -> None:
    loop = asyncio.get_running_loop()
    learning = asyncio.ensure_future(joining.take_part())
    if sys.platform == "win32":  # its event loops know no signals: handlers wake them up
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(learning.cancel))
    else:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, learning.cancel)
    with display:
        refreshing = asyncio.ensure_future(_refresh(joining, display))
        try:
            await asyncio.wait({learning})
        finally:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
    if learning.cancelled():
        leave(_go_on(joining.folder))
    learning.result()


def _go_on(folder: Path) -> str:
    return f"go on with: coterie peer run --dir {folder}"


async def _refresh(joining: Joining, display: Display) -> None:
    while True:
        display.show(standing_of(joining.peer))
        await asyncio.sleep(_REFRESH)


def _report(result: Mapping[str, Any], json: bool, quiet: bool) -> None:
    """The result on stdout."""
    if json:
        print_json(result)
    elif not quiet:
        traffic = f"received {in_bytes(result['bytes_in'])}, sent {in_bytes(result['bytes_out'])}"
        refused = sum(result["refused"].values())
        shown = scores(result["metric"], result[result["metric"]])
        typer.echo(
            f"{result['name']}: {result['rounds']} rounds, {shown}, {traffic}, refused {refused}, "
            f"{result['seconds']:.1f} s"
        )


def failed_sums(metrics: Metrics) -> str:
    """What to say at the end of sealed sums that could not be had, or were not used; empty: nothing."""
    used = metrics.sealed_sums - metrics.sealed_implausible
    tried = metrics.sealed_sums + metrics.sealed_failures
    if used == tried:
        return ""
    advice = "" if used else "; this peer learned nothing from the others: its log says why"
    return f"sealed sums {used} of {tried}{advice}"


def _result(joining: Joining) -> dict[str, Any]:
    """Scores of the last measured round, or of the best model; traffic of this process, rounds of all."""
    peer, lines = joining.peer, Records(joining.folder / RECORDS_FILE).read()
    metric = main_metric(lines)
    reported: Sequence[Mapping[str, Any]] = lines
    if joining.experiment.stopping.keep == "best":
        higher = peer.node.task.metrics[0].higher_is_better
        reported = until_best(lines, peer.algorithm.facts.measured, higher)
    return {
        "name": peer.name,
        "number": peer.number,
        "rounds": peer.journal.round,
        "metric": metric,
        metric: last_of(reported, metric),
        f"{VALIDATION}{metric}": last_of(reported, f"{VALIDATION}{metric}"),
        "gradient_steps": sum(line.get("gradient_steps", 0) for line in lines),
        "samples_seen": sum(line.get("samples_seen", 0) for line in lines),
        "bytes_in": sum(peer.metrics.bytes_in.values()),
        "bytes_out": sum(peer.metrics.bytes_out.values()),
        "refused": dict(peer.metrics.refused),
        "skipped": sum(line.get("skipped", 0) for line in lines),
        "alone": sum(line.get("alone", False) for line in lines),
        "sealed_sums": peer.metrics.sealed_sums,
        "sealed_failures": peer.metrics.sealed_failures + peer.metrics.sealed_implausible,
        "seconds": round(sum(line["seconds"] for line in lines), 3),
    }
