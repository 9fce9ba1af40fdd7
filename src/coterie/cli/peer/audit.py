"""`coterie peer audit`: whether the file of what happened is whole, and what is in it. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.output import Json, print_json
from coterie.cli.peer.cards import Folder
from coterie.errors import RunFailedError
from coterie.peer.trust.settings import load_settings
from coterie.peer.watch.audit import AUDIT_FILE, Verified, events, verify

Who = Annotated[str, typer.Option("--peer", help="Show the lines about this peer.", metavar="NAME")]
When = Annotated[int | None, typer.Option("--round", min=1, help="Show the lines of this round.")]
Noted = Annotated[
    str, typer.Option("--noted", help="A hash from an earlier look, which must be there.", metavar="HASH")
]


def audit(
    folder: Folder = Path(), peer: Who = "", round: When = None, noted: Noted = "", json: Json = False
) -> None:
    """Verify the file of what this peer sent, took and refused; show its lines."""
    name = load_settings(folder).name
    path = folder / AUDIT_FILE
    found = verify(path, noted)
    if noted and not found.noted and not found.problem:
        found.problem = f"the hash {noted} is of none of its lines: it is not the file that was looked at"
    shown = [line for line in events(path) if _asked(line, peer, round)] if peer or round else []
    if json:
        print_json({"name": name, **_summary(found), "shown": shown})
    else:
        for line in shown:
            typer.echo(_text(line))
        if not found.problem:
            kinds = ", ".join(f"{count:,} {event}" for event, count in sorted(found.events.items()))
            typer.echo(
                f"{name}: {found.lines:,} lines from {found.first} to {found.last} hang together: {kinds}"
            )
            typer.echo(f"the last hash is {found.hash}")
    if found.problem:
        raise RunFailedError(f"{path}: {found.problem}")


def _asked(line: dict[str, Any], peer: str, round: int | None) -> bool:
    about = not peer or peer == line.get("peer") or peer in line.get("group", ())
    return about and (round is None or line.get("round") == round - 1)


def _summary(found: Verified) -> dict[str, Any]:
    return {
        "whole": not found.problem,
        "problem": found.problem,
        "lines": found.lines,
        "first": found.first,
        "last": found.last,
        "hash": found.hash,
        "cut_off": found.cut,
        "events": dict(found.events),
    }


def _text(line: dict[str, Any]) -> str:
    """2026-11-18T07:21:05.123+00:00 round 3 received bob 19,550 bytes 6b86b273ff34..."""
    parts = [str(line.get("time"))]
    if isinstance(line.get("round"), int):
        parts.append(f"round {line['round'] + 1}")
    parts += [str(line.get("event")), str(line.get("peer", ""))]
    if line.get("digest"):
        parts.append(f"{line.get('bytes', 0):,} bytes {str(line['digest'])[:16]}...")
    if line.get("group"):
        parts.append(f"of {', '.join(map(str, line['group']))}")
    return " ".join(filter(None, [*parts, str(line.get("reason", ""))]))
