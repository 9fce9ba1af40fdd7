"""`coterie dashboard` and `coterie report`: runs as a live page, and as one file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.completing import runs_there
from coterie.cli.problems import note
from coterie.experiments.runs.naming import RUNS
from coterie.files import require_place

PAGE_PORT = 8666


def dashboard(
    runs: Annotated[
        Path, typer.Argument(help="The folder of runs; it need not exist yet.", metavar="RUNS")
    ] = RUNS,
    *,
    peer: Annotated[
        list[Path] | None,
        typer.Option(
            help="A real peer's folder, or that of a swarm; may be repeated.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Whom to answer; anything but this machine needs the token in the address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = PAGE_PORT,
) -> None:
    """Show runs, going on or finished, and real peers as a page in the browser; Ctrl-C ends it."""
    peers = importlib.import_module("coterie.dashboard.peers")
    server = importlib.import_module("coterie.dashboard.server")
    board = server.Dashboard(runs.expanduser(), peers.peer_folders(peer or []), host, port)
    typer.echo(f"the page: {board.url}   (Ctrl-C ends it)")
    board.serve()


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, comparisons, sweeps or reproductions.",
            metavar="FOLDER...",
            autocompletion=runs_there,
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file; default: report.html in the first folder.", metavar="FILE", show_default=False
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Also draw the pictures in print quality, as PNG and SVG, to this folder.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a report of runs as one HTML file, which opens from disk and asks no server."""
    if out is not None:
        require_place(out, "--out")
    reports = importlib.import_module("coterie.reporting.page.report")
    note(f"written: {reports.write_report(folders, out)}")
    for path in reports.draw_figures(folders, figures) if figures is not None else []:
        note(f"written: {path} and {path.with_suffix('.svg').name}")
