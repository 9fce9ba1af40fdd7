"""What the user sees when something goes wrong, and the exit code.

2: the user's mistake, found before anything ran. 1: a run failed. 130: interrupted with Ctrl-C.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from coterie.errors import (
    ConfigError,
    CoterieError,
    DamagedRunError,
    DataError,
    OtherRunError,
    RunFolderError,
    RunInUseError,
    TopologyError,
    printable,
)

_LONGEST = 20_000  # characters of a message
_MISTAKES = (ConfigError, DataError, TopologyError, RunFolderError)


class RunFailedError(CoterieError):
    """A run stopped after it had started; its records are intact."""


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


@contextmanager
def running(folder: Path, command: str) -> Iterator[None]:
    """Say how to go on when a run stops after it has started, which is when its folder exists."""
    try:
        yield
    except KeyboardInterrupt:
        if (folder / "config.toml").exists():
            raise KeyboardInterrupt(f"go on with: {command}") from None
        raise
    except (DamagedRunError, RunInUseError, OtherRunError):
        raise  # it cannot go on, or it does already, or it is none of ours
    except RunFolderError as error:
        if (folder / "config.toml").exists():
            raise RunFailedError(f"{error}; go on with: {command}") from None
        raise
    except OSError as error:
        if error.errno == errno.EPIPE or not (folder / "config.toml").exists():
            raise
        raise RunFailedError(
            f"cannot write to {error.filename or folder}: {error.strerror}; what was written before is "
            f"intact; go on with: {command}"
        ) from None
