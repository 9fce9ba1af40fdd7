"""What the user sees when something goes wrong, and the exit code.

2: the user's mistake, found before anything ran. 1: a run failed. 130: interrupted with Ctrl-C.
docs/commands.md has all exit codes.
"""

from __future__ import annotations

import errno
import json
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import typer
from typer.core import TyperGroup

from coterie.errors import ConfigError, CoterieError, DataError, RunFolderError, TopologyError, printable

_LONGEST = 20_000  # characters of a message
_LOG_JSON = "--log-json"
_MISTAKES = (ConfigError, DataError, TopologyError, RunFolderError)


class ReportingGroup(TyperGroup):
    """Shows an error as one line instead of a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--log-json` is said of the whole program, and understood wherever it stands."""
        options = args[: args.index("--")] if "--" in args else args
        if _LOG_JSON in options:
            args = [_LOG_JSON, *(one for one in args if one != _LOG_JSON)]
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CoterieError as error:
            complain(str(error))
            raise typer.Exit(2 if isinstance(error, _MISTAKES) else 1) from None
        except KeyboardInterrupt as interruption:
            before, deaf = None, False
            while not deaf:  # the next Ctrl-C may come at any call, also before it is ignored
                try:
                    before = before or signal.getsignal(signal.SIGINT)
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    deaf = True
                except KeyboardInterrupt:
                    pass
            complain("; ".join(["interrupted", *map(str, interruption.args)]), kind="")
            signal.signal(signal.SIGINT, before)
            raise typer.Exit(130) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            where = f"{error.filename}: " if error.filename else ""
            complain(f"{where}{error.strerror or error}")
            raise typer.Exit(1) from None
        except Exception as error:
            refusal = getattr(error, "format_message", None)  # of a wrong option or value
            if refusal is None or not _log.as_json:
                raise
            complain(refusal())
            raise typer.Exit(2) from None


def complain(message: str, kind: str = "error: ") -> None:
    """Why a command ends, in one line."""
    text = printable(" ".join(message.splitlines()), _LONGEST)
    _say(text if _log.as_json else kind + text, "error", {})


def note(
    message: str, quiet: bool = False, *, level: str = "info", facts: Mapping[str, Any] | None = None
) -> None:
    """Something that the user should know, if it is not empty; never on stdout.

    facts: what the message says, for programs that read `--log-json`.
    """
    if message and not quiet:
        _say(message, level, facts or {})


class _Log:
    """How this process talks on stderr."""

    as_json = False


_log = _Log()


def log_as_json(wanted: bool) -> None:
    """From now on, each note and each error on stderr is one JSON object in one line, or plain text again."""
    _log.as_json = wanted


def logs_json() -> bool:
    return _log.as_json


def draws() -> bool:
    """Whether stderr is a terminal on which bars and live tables may be drawn."""
    return sys.stderr.isatty() and not _log.as_json


def _say(message: str, level: str, facts: Mapping[str, Any]) -> None:
    if _log.as_json:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        message = json.dumps({"time": now, "level": level, "message": message, **facts})
    typer.echo(message, err=True)
