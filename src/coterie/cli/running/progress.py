"""Progress on stderr, of one run or over many cells: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
)
from rich.progress import Progress as RichProgress

from coterie.cli.output import duration
from coterie.cli.problems import draws, note
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.notices import Notice
from coterie.experiments.cells.working_off import Event
from coterie.experiments.runs import records
from coterie.experiments.runs.observing import Observer
from coterie.experiments.runs.records import History
from coterie.experiments.runs.run import Run
from coterie.protocol import Point
from coterie.reporting.tables import in_bytes
from coterie.simulation import RoundRecord
from coterie.spreads import MOST_LISTED, SAMPLE


class _Bar:
    """A bar where there is a terminal, with the given columns between its title and its facts."""

    def __init__(self, quiet: bool, *columns: ProgressColumn) -> None:
        self.quiet = quiet
        self._bar: RichProgress | None = None
        if not quiet and draws():
            title, facts = TextColumn("{task.description}"), TextColumn("{task.fields[facts]}")
            self._bar = RichProgress(title, *columns, facts, console=Console(stderr=True))

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class Progress(_Bar):
    """Shows one run after the other; `watch` gives the observer of the next one."""

    def __init__(self, quiet: bool = False, lines: int = 10) -> None:
        super().__init__(quiet, BarColumn(bar_width=20), TextColumn("round"), MofNCompleteColumn())
        self.lines = lines

    def watch(self, label: str, rounds: int, point: Point) -> Watcher:
        task = None
        if self._bar is not None:
            task = self._bar.add_task(label, total=rounds, facts="preparing")
        return Watcher(self, label, rounds, point, task)

    def show(self, watcher: Watcher, done: int, facts: str, scored: Mapping[str, float]) -> None:
        """After a round. scored: the mean of the main metric by its name, if it was measured."""
        if self._bar is not None:
            self._bar.update(watcher.task, completed=done, facts=facts)
        elif not self.quiet and _is_due(done, watcher.shown or done - 1, watcher.rounds, self.lines):
            known = {"event": "round", "label": watcher.label, "round": done, "rounds": watcher.rounds}
            line = f"{watcher.label}: round {done}/{watcher.rounds}  {facts}"
            note(line, facts={**known, **scored})
        watcher.shown = done


class Watcher(Observer):
    """The observer of one run."""

    def __init__(self, progress: Progress, label: str, rounds: int, point: Point, task: Any) -> None:
        self.progress, self.label, self.rounds, self.point, self.task = progress, label, rounds, point, task
        self._said_unlisted = False
        self.shown = 0  # rounds

    def round(self, record: RoundRecord, history: History) -> None:
        if self.progress.quiet:
            return
        self._say_if_unlisted(record)
        self.tell(Notice.of(record, history, self.point))

    def tell(self, notice: Notice) -> None:
        """Of this run, wherever it goes."""
        left = notice.each * (self.rounds - notice.done)
        facts = f"{notice.each:.2f} s/round  left {duration(left)}{_workers(notice.memory)}"
        scored = {} if notice.mean is None else {notice.metric: notice.mean}
        for name, mean in scored.items():
            facts = f"{name.replace('_', ' ')} {mean:.3f}  {facts}"
        self.progress.show(self, notice.done, facts, scored)

    def end(self, run: Run) -> None:
        if run.stopped is not None:
            note(f"note: {self.label}: {run.stopped} (round {len(run.history.seconds)})", self.progress.quiet)

    def _say_if_unlisted(self, record: RoundRecord) -> None:
        """Once in a run, what the records leave out."""
        if self._said_unlisted or records.lists_messages(record):
            return
        self._said_unlisted = True
        if len(record.online) > MOST_LISTED:
            note(
                f"note: {self.label}: of more than {MOST_LISTED:,} peers, the records list {SAMPLE:,} evenly "
                "spaced ones; distributions.csv has quantiles over all, and there is no links.csv"
            )
            return
        note(
            f"note: {self.label}: round {record.round + 1} has {records.messages_in(record):,} messages; "
            f"rounds of more than {records.MOST_LINKS:,} are left out of links.csv"
        )


def _is_due(done: int, before: int, rounds: int, lines: int) -> bool:
    """About so many rounds, and always the last. before: rounds that were done when this was asked last."""
    return done > before and (done == rounds or done * lines // rounds > before * lines // rounds)


def _workers(memory: Sequence[int]) -> str:
    """Of other processes, how many there are and what they use."""
    if not memory:
        return ""
    return f"  {len(memory)} {'worker' if len(memory) == 1 else 'workers'} with {in_bytes(sum(memory))}"


class CellProgress(_Bar):
    """Counts rounds over all cells; the time left is what they took so far, for the rounds that remain."""

    def __init__(self, title: str, cells: Sequence[Cell], quiet: bool) -> None:
        super().__init__(quiet, BarColumn(bar_width=30), TaskProgressColumn())
        self.title = title
        self._rounds = {cell.name: cell.experiment.rounds for cell in cells}
        self._done: dict[str, int] = {}
        self._memory: dict[str, int] = {}  # of cells that run elsewhere
        self._kept = self._ended = 0
        self._start = time.monotonic()
        self._task: Any = None

    def __enter__(self) -> Self:
        super().__enter__()
        if self._bar is not None:
            self._task = self._bar.add_task(self.title, total=sum(self._rounds.values()), facts="")
        return self

    def __call__(self, event: Event) -> None:
        name, before = event.cell.name, self._done.get(event.cell.name, 0)
        if event.kind == "round" and before == 0:
            self._kept += event.rounds - 1 if event.kept is None else event.kept  # of a cell that goes on
        self._done[name] = max(before, event.rounds)
        if event.kind == "kept":
            self._kept += event.rounds
        if event.kind == "broken":
            self._kept += self._rounds[name] - self._done[name]
            self._done[name] = self._rounds[name]
        ended = event.kind in ("kept", "finished", "broken")
        self._ended += ended
        self._memory.pop(name, None)
        if event.memory and not ended:
            self._memory[name] = event.memory
        self._show(event)

    def time_left(self) -> float | None:
        """Seconds; None as long as nothing has been learned."""
        done = sum(self._done.values()) - self._kept
        left = sum(self._rounds.values()) - sum(self._done.values())
        return None if done <= 0 else (time.monotonic() - self._start) * left / done

    def _show(self, event: Event) -> None:
        left = self.time_left()
        facts = f"{self._ended}/{len(self._rounds)} cells" + (f"  left {duration(left)}" if left else "")
        facts += _workers(list(self._memory.values()))
        if self._bar is not None:
            self._bar.update(self._task, completed=sum(self._done.values()), facts=facts)
            if event.kind == "broken":
                self._bar.console.print(f"broken: {event.cell.describe()}: {event.message}", highlight=False)
        elif not self.quiet and event.kind in ("finished", "broken"):
            message = f" ({event.message})" if event.message else ""
            cell = event.cell.describe()
            note(
                f"{self.title}: {cell}: {event.kind}{message}  {facts}",
                facts={"event": event.kind, "label": cell},
            )
