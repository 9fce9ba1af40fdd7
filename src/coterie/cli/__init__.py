"""The command line. Commands import what is slow only when they run."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from coterie.cli import (
    compare,
    data,
    demo,
    explain,
    listing,
    new,
    reproduce,
    run,
    sweep,
)
from coterie.cli.problems import ReportingGroup

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

app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("reproduce")(reproduce.reproduce)
app.command("list")(listing.list_names)
app.command("explain")(explain.explain)
app.add_typer(data_app, name="data")
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
