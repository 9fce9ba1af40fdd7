"""Progress of `coterie swarm`, all peers in one table, and its summary."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from coterie.cli.problems import draws, note
from coterie.cli.swarm.processes import Process
from coterie.metric import Metric
from coterie.reporting.tables import in_bytes
from coterie.user_code import in_short

POINTS = ("after_local", "after_mixing")
_LINES = 10


class SwarmDisplay:
    """A live table on a terminal; elsewhere about ten lines, when the slowest peer has come that far."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._live: Live | None = None
        self._shown = 0

    def __enter__(self) -> SwarmDisplay:
        if not self.quiet and draws():
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, processes: Sequence[Process]) -> None:
        if self._live is not None:
            self._live.update(_progress(processes), refresh=True)
        elif not self.quiet:
            self._line(processes)

    def say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            note(text)

    def _line(self, processes: Sequence[Process]) -> None:
        known = [one.standing for one in processes if one.standing is not None and not one.died]
        living = [one for one in processes if not one.died]
        slowest = min((standing.round for standing in known), default=0)
        tenths = _LINES * slowest // known[0].rounds if known else 0
        if len(known) < len(living) or tenths <= self._shown:
            return
        self._shown = tenths
        parts = [f"round {slowest}/{known[0].rounds}"]
        for point in POINTS:
            values = [standing.scores[point] for standing in known if point in standing.scores]
            if values:
                name = f"{known[0].metric.title} {point.replace('_', ' ')}"
                parts.append(f"{name} {statistics.fmean(values):.3f}")
        note("  ".join(parts))


def _progress(processes: Sequence[Process]) -> Table:
    table = _table("peer", "state", "round", "after local", "after mixing", "received", "sent", "alive")
    for one in processes:
        standing = one.standing
        if standing is None:
            table.add_row(one.name, one.state, *["-"] * 6)
            continue
        alive = sum(other.alive for other in standing.neighbours)
        table.add_row(
            one.name,
            one.state,
            f"{standing.round}/{standing.rounds}",
            *(_text(standing.scores.get(point), standing.metric) for point in POINTS),
            in_bytes(standing.bytes_in),
            in_bytes(standing.bytes_out),
            f"{alive}/{len(standing.neighbours)}",
            style="red" if one.died else "",
        )
    return table


def summary(result: dict[str, Any]) -> Table:
    """A row for each peer, and their mean."""
    swarm, metric = result["swarm"], Metric.of(result)
    names = f"{in_short(result['algorithm'])}, {in_short(result['data'])}"
    title = f"{names}, {result['rounds']} rounds, one process for each peer"
    table = _table(
        "peer", "rounds", "after local", "after mixing", "received", "sent", "seconds", title=title
    )
    table.caption = f"{metric.unit} on each peer's own test data"
    for one in swarm["processes"]:
        if one["failed"]:
            table.add_row(one["name"], "failed", *["-"] * 5, style="red")
            continue
        table.add_row(
            one["name"],
            str(one["rounds"]),
            *(_text(one[metric.name].get(point), metric) for point in POINTS),
            in_bytes(one["bytes_in"]),
            in_bytes(one["bytes_out"]),
            f"{one['seconds']:.1f}",
        )
    means = [_text((result[f"personal_{metric.name}_{point}"] or {}).get("mean"), metric) for point in POINTS]
    whole = max(1, sum(not one["failed"] for one in swarm["processes"]))
    traffic = [in_bytes(swarm[key] / whole) for key in ("bytes_in", "bytes_out")]
    table.add_row("mean", "", *means, *traffic, "", style="bold")
    return table


def _table(*headers: str, title: str | None = None) -> Table:
    table = Table(title=title, box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, justify="left" if header in ("peer", "state") else "right", no_wrap=True)
    return table


def _text(value: float | None, metric: Metric) -> str:
    return "-" if value is None else metric.text(value)
