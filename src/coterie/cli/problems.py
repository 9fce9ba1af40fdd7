"""What the user sees when something goes wrong, and the exit code.

2: the user's mistake, found before anything ran. 1: a run failed. 130: interrupted with Ctrl-C.
"""

from __future__ import annotations

import errno
from typing import Any

import typer
from typer.core import TyperGroup

from coterie.errors import ConfigError, CoterieError, DataError, RunFolderError, TopologyError, printable

_LONGEST = 20_000  # characters of a message
_MISTAKES = (ConfigError, DataError, TopologyError, RunFolderError)


class ReportingGroup(TyperGroup):
    """Shows an error as one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CoterieError as error:
            complain(str(error))
            raise typer.Exit(2 if isinstance(error, _MISTAKES) else 1) from None
        except KeyboardInterrupt as interruption:
            complain("; ".join(["interrupted", *map(str, interruption.args)]), kind="")
            raise typer.Exit(130) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            where = f"{error.filename}: " if error.filename else ""
            complain(f"{where}{error.strerror or error}")
            raise typer.Exit(1) from None


def complain(message: str, kind: str = "error: ") -> None:
    typer.echo(kind + printable(" ".join(message.splitlines()), _LONGEST), err=True)


def note(message: str, quiet: bool = False) -> None:
    """Something that the user should know, if it is not empty; never on stdout."""
    if message and not quiet:
        typer.echo(message, err=True)
