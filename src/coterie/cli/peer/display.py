"""What `peer run` and `peer status` show of a peer and its neighbours."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coterie.cli.output import duration
from coterie.cli.problems import draws, logs_json, note
from coterie.peer.watch.standing import Neighbour, Standing
from coterie.reporting.tables import in_bytes

_POINTS = {"after_local": "after local", "after_mixing": "after mixing"}


def scores(metric: str, by_point: Mapping[str, float | None]) -> str:
    """accuracy after local 0.931, after mixing 0.902"""
    known = [
        f"{_POINTS.get(point, point)} {value:.3f}" for point, value in by_point.items() if value is not None
    ]
    return f"{metric.replace('_', ' ')} {', '.join(known) or '-'}"


def headline(standing: Standing) -> str:
    """alice: round 3 of 20, accuracy after local 0.931, after mixing 0.902, 0.41 s/round, left 7 s"""
    parts = [f"{standing.name}: round {standing.round} of {standing.rounds}"]
    if standing.scores:
        parts.append(scores(standing.metric.name, standing.scores))
    if standing.seconds_per_round is not None:
        parts.append(f"{standing.seconds_per_round:.2f} s/round")
    if standing.finished:
        parts.append("finished")
    elif not standing.joined:
        alive = sum(one.alive for one in standing.neighbours)
        parts.append(f"waiting for the others, {alive} of {len(standing.neighbours)} are there")
    elif standing.seconds_left is not None:
        parts.append(f"left {duration(standing.seconds_left)}")
    return ", ".join(parts)


def neighbours(standing: Standing) -> Table:
    """The table of all others."""
    headers = ["name", "alive", "round", "received", "sent", "weight"]
    headers += [] if standing.in_step else ["staleness"]
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, justify="left" if header in ("name", "alive") else "right", no_wrap=True)
    table.add_column("trouble", overflow="fold")
    for one in standing.neighbours:
        cells = _cells(one) + ([] if standing.in_step else [_or_dash(one.staleness)])
        style = "" if one.alive or one.finished else "red"
        table.add_row(*(Text(cell) for cell in [*cells, one.trouble]), style=style)
    return table


def _cells(one: Neighbour) -> list[str]:
    alive = "finished" if one.finished else "no" if not one.alive else "yes" if one.awaited else "late"
    weight = "-" if one.weight is None else f"{one.weight:.3f}"
    known = "-" if one.round < 0 else str(one.round + 1)
    return [one.name, alive, known, in_bytes(one.bytes_in), in_bytes(one.bytes_out), weight]


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


class Display:
    """A live table on a terminal, a line per round elsewhere, only warnings if quiet. All of it on stderr."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live: Live | None = None
        self._logged = _Logged(self)

    def __enter__(self) -> Display:
        if not self.quiet and draws():
            self.live = Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=False)
            self.live.start()
        logging.getLogger("coterie.peer").addHandler(self._logged)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("coterie.peer").removeHandler(self._logged)
        if self.live is not None:
            self.live.stop()

    def show(self, standing: Standing) -> None:
        """The present state; only a live table changes between rounds."""
        if self.live is not None:
            self.live.update(Group(Text(headline(standing)), neighbours(standing)), refresh=True)

    def round(
        self, round: int, standing: Standing, seconds: float, measured: Mapping[str, float | None]
    ) -> None:
        """A round is over. measured: its own main scores by point; none, if it was not measured."""
        if self.live is not None or self.quiet:
            return
        alive = sum(one.alive for one in standing.neighbours)
        others = f"{alive} of {len(standing.neighbours)} others alive"
        shown = scores(standing.metric.name, measured)
        self.say(f"round {round + 1}/{standing.rounds}: {shown}, {others}, {seconds:.2f} s")

    def say(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(text, markup=False, highlight=False)
        else:
            note(text)


class _Logged(logging.Handler):
    """Warnings go above the live table, not through it."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        if logs_json():
            note(record.getMessage(), level=record.levelname.lower())
        else:
            self._display.say(self.format(record))
