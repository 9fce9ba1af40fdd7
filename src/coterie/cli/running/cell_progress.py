"""Progress over many cells, on stderr: a bar with the time left in a terminal, else a line for each cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from coterie.cli.running.progress import duration

if TYPE_CHECKING:
    from coterie.experiments.cells.cell import Cell
    from coterie.experiments.cells.working_off import Event


class CellProgress:
    """Counts rounds over all cells; the time left is what they took so far, for the rounds that remain."""

    def __init__(self, title: str, cells: Sequence[Cell], quiet: bool) -> None:
        self.title, self.quiet = title, quiet
        self._rounds = {cell.name: cell.experiment.rounds for cell in cells}
        self._done: dict[str, int] = {}
        self._kept = self._ended = 0
        self._start = time.monotonic()
        self._bar: Any = _bar() if not quiet and sys.stderr.isatty() else None
        self._task: Any = None

    def __enter__(self) -> CellProgress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=sum(self._rounds.values()), facts="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        name, before = event.cell.name, self._done.get(event.cell.name, 0)
        if event.kind == "round" and before == 0 and event.rounds > 1:
            self._kept += event.rounds - 1  # of a cell that is continued
        self._done[name] = max(before, event.rounds)
        if event.kind == "kept":
            self._kept += event.rounds
        if event.kind == "broken":
            self._kept += self._rounds[name] - self._done[name]
            self._done[name] = self._rounds[name]
        self._ended += event.kind in ("kept", "finished", "broken")
        self._show(event)

    def time_left(self) -> float | None:
        """Seconds; None as long as nothing has been learned."""
        done = sum(self._done.values()) - self._kept
        left = sum(self._rounds.values()) - sum(self._done.values())
        return None if done <= 0 else (time.monotonic() - self._start) * left / done

    def _show(self, event: Event) -> None:
        left = self.time_left()
        facts = f"{self._ended}/{len(self._rounds)} cells" + (f"  left {duration(left)}" if left else "")
        if self._bar is not None:
            self._bar.update(self._task, completed=sum(self._done.values()), facts=facts)
            if event.kind == "broken":
                self._bar.console.print(f"broken: {event.cell.describe()}: {event.message}", highlight=False)
        elif not self.quiet and event.kind in ("finished", "broken"):
            message = f" ({event.message})" if event.message else ""
            typer.echo(f"{self.title}: {event.cell.describe()}: {event.kind}{message}  {facts}", err=True)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    return Bar(*columns, console=Console(stderr=True))
