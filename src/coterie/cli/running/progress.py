"""Progress of a run on stderr: a bar in a terminal, about ten plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from coterie.cli.problems import note

if TYPE_CHECKING:
    from coterie.experiments.runs.records import History
    from coterie.protocol import Point
    from coterie.simulation import RoundRecord

_RECENT = 20  # rounds whose time predicts the rest


class Progress:
    """Shows one run after the other; `watch` gives the observer of the next one."""

    def __init__(self, quiet: bool = False, lines: int = 10) -> None:
        self.quiet, self.lines = quiet, lines
        self._bar: Any = _bar() if not quiet and sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def watch(self, label: str, rounds: int, point: Point) -> _Watcher:
        task = None
        if self._bar is not None:
            task = self._bar.add_task(label, total=rounds, facts="preparing")
        return _Watcher(self, label, rounds, point, task)

    def show(self, watcher: _Watcher, done: int, facts: str) -> None:
        if self._bar is not None:
            self._bar.update(watcher.task, completed=done, facts=facts)
        elif not self.quiet and _is_due(done, watcher.rounds, self.lines):
            typer.echo(f"{watcher.label}: round {done}/{watcher.rounds}  {facts}", err=True)


class _Watcher:
    """The observer of one run."""

    def __init__(self, progress: Progress, label: str, rounds: int, point: Point, task: Any) -> None:
        self.progress, self.label, self.rounds, self.point, self.task = progress, label, rounds, point, task
        self._said_unlisted = False

    def __call__(self, record: RoundRecord, history: History) -> None:
        if self.progress.quiet:
            return
        self._say_if_unlisted(record)
        done = record.round + 1
        recent = history.seconds[-_RECENT:]
        each = sum(recent) / len(recent)
        facts = f"{each:.2f} s/round  left {duration(each * (self.rounds - done))}"
        accuracy = history.last("accuracy", self.point)
        if accuracy is not None:
            facts = f"accuracy {float(accuracy.nanmean()):.3f}  {facts}"
        self.progress.show(self, done, facts)

    def _say_if_unlisted(self, record: RoundRecord) -> None:
        """Once in a run, that links.csv is not complete."""
        from coterie.experiments.runs.records import MOST_LINKS, messages_in

        messages = messages_in(record)
        if messages > MOST_LINKS and not self._said_unlisted:
            self._said_unlisted = True
            note(
                f"note: {self.label}: round {record.round + 1} has {messages:,} messages; rounds of more "
                f"than {MOST_LINKS:,} are left out of links.csv"
            )


def _is_due(done: int, rounds: int, lines: int) -> bool:
    """About so many rounds, and always the last."""
    return done == rounds or done * lines // rounds > (done - 1) * lines // rounds


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("round"),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    return Bar(*columns, console=Console(stderr=True))
