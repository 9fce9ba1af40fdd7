"""The command line. Commands import what is slow only when they run."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from coterie.cli import data, explain, listing, new
from coterie.cli.peer import ca
from coterie.cli.peer import cards as peer
from coterie.cli.peer import init as peer_init
from coterie.cli.peer import predict as peer_predict
from coterie.cli.peer import run as peer_run
from coterie.cli.peer import status as peer_status
from coterie.cli.problems import ReportingGroup
from coterie.cli.running import compare, demo, reproduce, run, sweep
from coterie.cli.swarm import command as swarm

app = typer.Typer(
    name="coterie",
    cls=ReportingGroup,
    help="Personalised learning among peers without a server.",
    epilog="Start with `coterie demo`; then `coterie list` and `coterie explain NAME`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Look at data before learning from it.", no_args_is_help=True)
data_app.command("show")(data.show)
peer_app = typer.Typer(help="Be a real peer: identity, roster, learning.", no_args_is_help=True)
peer_app.command("init")(peer_init.init)
peer_app.command("card")(peer.card)
peer_app.command("trust")(peer.trust)
peer_app.command("distrust")(peer.distrust)
peer_app.command("roster")(peer.show_roster)
peer_app.command("run")(peer_run.run)
peer_app.command("status")(peer_status.status)
peer_app.command("predict")(peer_predict.predict)
peer_app.command("rotate")(peer.rotate)
peer_app.command("request")(peer.request)
peer_app.command("install")(peer.install)
ca_app = typer.Typer(help="A small private certificate authority.", no_args_is_help=True)
ca_app.command("init")(ca.init)
ca_app.command("sign")(ca.sign)
ca_app.command("card")(ca.card)

app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("reproduce")(reproduce.reproduce)
app.command("swarm")(swarm.swarm)
app.command("list")(listing.list_names)
app.command("explain")(explain.explain)
app.add_typer(data_app, name="data")
app.add_typer(peer_app, name="peer")
app.add_typer(ca_app, name="ca")
app.command("new")(new.new)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"coterie {version('coterie')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point `coterie`."""
    try:
        app(prog_name="coterie")
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as `head`, has gone; Python would complain at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["app", "main"]
