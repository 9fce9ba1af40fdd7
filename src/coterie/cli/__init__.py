"""The command line: every command, where it lives, and what `coterie --help` says of it.

A command's module is imported when the command is called, so that the others cost it nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from coterie.cli.problems import ReportingGroup, complain, log_as_json
from coterie.experiments.runs.naming import RUNS

Commands = Mapping[str, tuple[str, str]]  # by name: module:function, and the first line of its docstring

COMMANDS: Commands = {
    "demo": (
        "coterie.cli.running.demo:demo",
        "See it work: 20 peers in 4 clusters compare 10 algorithms, offline, within a minute.",
    ),
    "run": ("coterie.cli.running.run:run", "Run one experiment and show what the peers learned."),
    "compare": (
        "coterie.cli.running.compare:compare",
        "Compare algorithms on the same data, peers and seed; Local is always among them.",
    ),
    "sweep": (
        "coterie.cli.running.sweep:sweep",
        "Run every combination of values and seeds; run again to go on after an interruption.",
    ),
    "reproduce": (
        "coterie.cli.running.reproduce:reproduce",
        "Reproduce tables and figures of the papers; run again to go on after an interruption.",
    ),
    "recommend": (
        "coterie.cli.running.recommend:recommend",
        "Say which algorithm to take for an experiment, and why.",
    ),
    "swarm": (
        "coterie.cli.swarm.command:swarm",
        "Start real peers on this machine, each a process with its own key, and show how they learn.",
    ),
    "relay": (
        "coterie.cli.peer.relay:relay",
        "Forward TLS between peers that can only dial out. It sees sizes only, and stores nothing.",
    ),
    "dashboard": (
        "coterie.cli.upkeep.dashboard:dashboard",
        "Show runs, going on or finished, and real peers as a page in the browser; Ctrl-C ends it.",
    ),
    "report": (
        "coterie.cli.upkeep.dashboard:report",
        "Write a report of runs as one HTML file, which opens from disk and asks no server.",
    ),
    "list": (
        "coterie.cli.names:list_names",
        "List algorithms, data sets, models, partitions, tasks and topologies.",
    ),
    "explain": (
        "coterie.cli.names:explain",
        "Explain a name: equations, hyper-parameters, presets, differences from the paper.",
    ),
    "new": (
        "coterie.cli.new:new",
        "Start an experiment of your own: a TOML file, and a Python file with algorithm, model and data.",
    ),
    "doctor": (
        "coterie.cli.upkeep.doctor:doctor",
        "Look at versions, threads, memory, GPU, Ray, disk, data, ports: what is fine, what to fix.",
    ),
}
RUNS_COMMANDS: Commands = {
    "clean": ("coterie.cli.upkeep.runs:clean", "Remove runs after asking; those that are going on stay."),
}
DATA_COMMANDS: Commands = {
    "show": ("coterie.cli.data:show", "Print and plot each peer's labels."),
}
PEER_COMMANDS: Commands = {
    "init": (
        "coterie.cli.peer.init:init",
        "Make a peer: its key and certificate, settings, and an empty roster.",
    ),
    "card": (
        "coterie.cli.peer.cards:card",
        "Print what others need to trust this peer; nothing in it is secret.",
    ),
    "trust": (
        "coterie.cli.peer.cards:trust",
        "Add peers, or an authority, to the roster. Compare the fingerprints with their owners.",
    ),
    "distrust": (
        "coterie.cli.peer.cards:distrust",
        "Remove a peer, or an authority, from the roster; a running peer notices it.",
    ),
    "roster": ("coterie.cli.peer.cards:show_roster", "Show whom this peer trusts, and until when."),
    "run": (
        "coterie.cli.peer.run:run",
        "Join the others, learn with them, and keep what was learned in the folder.",
    ),
    "status": (
        "coterie.cli.peer.status:status",
        "Ask the running peer how it stands; if none runs, show what it has on disk.",
    ),
    "predict": (
        "coterie.cli.peer.predict:predict",
        "Predict with the peer's personal model; with labels, also say how good that is.",
    ),
    "audit": (
        "coterie.cli.peer.audit:audit",
        "Verify the file of what this peer sent, took and refused; show its lines.",
    ),
    "rollback": (
        "coterie.cli.peer.rollback:rollback",
        "Show the kept checkpoints, or go back to one; the present one is kept in its turn.",
    ),
    "invite": (
        "coterie.cli.peer.members:invite",
        "Sign that somebody may come into the experiment; print the invitation. It needs more than half.",
    ),
    "accept": (
        "coterie.cli.peer.members:accept",
        "Come into the experiment of those who signed an invitation; then `coterie peer run`.",
    ),
    "leave": (
        "coterie.cli.peer.members:leave",
        "Leave the experiment before its end: hand over what the others need, say goodbye, and stop.",
    ),
    "rotate": (
        "coterie.cli.peer.cards:rotate",
        "Make a new key and certificate in place of the present ones.",
    ),
    "request": (
        "coterie.cli.peer.cards:request",
        "Print a request for a certificate, to be signed with `coterie ca sign`.",
    ),
    "install": (
        "coterie.cli.peer.cards:install",
        "Use the certificate that an authority signed for this peer's key.",
    ),
}
CA_COMMANDS: Commands = {
    "init": (
        "coterie.cli.peer.ca:init",
        "Make an authority: a key that can vouch for all peers of an organisation.",
    ),
    "sign": ("coterie.cli.peer.ca:sign", "Sign requests; each certificate is written beside its request."),
    "card": (
        "coterie.cli.peer.ca:card",
        "Print what peers need to trust this authority; nothing in it is secret.",
    ),
}


def load(home: str) -> Any:
    """The function behind `module:function`."""
    module, _, function = home.partition(":")
    return getattr(import_module(module), function)


def _command_at(home: str) -> type[TyperCommand]:
    """A command that stands for the one at `home` until it is called."""

    class Elsewhere(TyperCommand):
        def make_context(
            self, info_name: str | None, args: list[str], parent: Any = None, **more: Any
        ) -> Any:
            single = typer.Typer(add_completion=False)
            single.command(self.name)(load(home))
            return typer.main.get_command(single).make_context(info_name, args, parent, **more)

    return Elsewhere


def _add(app: typer.Typer, commands: Commands) -> typer.Typer:
    def called_instead_of_this() -> None:
        pass

    for name, (home, line) in commands.items():
        app.command(name, help=line, cls=_command_at(home))(called_instead_of_this)
    return app


def _group(help: str, commands: Commands) -> typer.Typer:
    return _add(typer.Typer(help=help, no_args_is_help=True), commands)


app = typer.Typer(
    name="coterie",
    cls=ReportingGroup,
    help="Personalised learning among peers without a server.",
    epilog="Start with `coterie demo`; then `coterie list` and `coterie explain NAME`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_add(app, COMMANDS)
_runs = _add(typer.Typer(invoke_without_command=True), RUNS_COMMANDS)
app.add_typer(_runs, name="runs")
app.add_typer(_group("Look at data before learning from it.", DATA_COMMANDS), name="data")
app.add_typer(_group("Be a real peer: identity, roster, learning.", PEER_COMMANDS), name="peer")
app.add_typer(_group("A small private certificate authority.", CA_COMMANDS), name="ca")


@_runs.callback()
def _list_runs(
    context: typer.Context,
    folder: Annotated[Path, typer.Option("--dir", help="The folder of runs.", metavar="DIR")] = RUNS,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")
    ] = False,
) -> None:
    """List runs, comparisons, sweeps and reproductions: what, how far, how well; `clean` removes them."""
    if context.invoked_subcommand is None:
        load("coterie.cli.upkeep.runs:list_runs")(folder, json)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coterie {version_of('coterie')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    log_json: Annotated[
        bool,
        typer.Option(
            "--log-json",
            callback=log_as_json,
            is_eager=True,  # so that a mistake in what follows is said as JSON, too
            help="Notes, progress and errors on stderr as JSON, one in a line.",
        ),
    ] = False,
) -> None:
    pass  # the options act when they are read


def main() -> None:
    """The entry point `coterie`."""
    try:
        app(prog_name="coterie")
    except KeyboardInterrupt:  # while the commands were put together; later ones are told with how to go on
        complain("interrupted", kind="")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and done: a second Ctrl-C changes nothing
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as `head`, has gone; Python would complain at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["app", "main"]
