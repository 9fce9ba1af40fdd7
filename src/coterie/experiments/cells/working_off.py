"""Works off cells: one after the other in this process, or beside each other in several.

Each process works on one cell at a time in one thread. A cell that fails, or whose process dies, is reported
as broken and the others go on. Whatever is finished stays finished when all is interrupted.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.connection
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from coterie.data import Federation
from coterie.errors import ConfigError, CoterieError, OtherRunError, RunFolderError
from coterie.experiments.cells.cell import (
    FACTS,
    MOST_PEERS_IN_SHARES,
    Cell,
    forget_breakage,
    is_finished,
    note_breakage,
)
from coterie.experiments.cells.notices import Notice
from coterie.experiments.cells.on_ray import Task, run_tasks
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.observing import Watching
from coterie.experiments.runs.run import Run
from coterie.experiments.runs.running import run_or_resume
from coterie.experiments.setup.dealing import Dealer, data_digest, deciding
from coterie.experiments.setup.prepare import Objects, prepare
from coterie.experiments.setup.schema import Experiment
from coterie.files import alone, write_atomically

_MOST_SAID = 5  # reasons why cells cannot run


@dataclass(frozen=True)
class Event:
    """Something happened to a cell."""

    kind: Literal["kept", "started", "round", "finished", "broken"]
    cell: Cell
    rounds: int = 0  # how many are done
    message: str = ""
    kept: int | None = (
        None  # rounds that were done before it went on; None: all before the first that is told
    )
    memory: int = 0  # bytes of its worker, if that is another process


Notify = Callable[[Event], None]


def ignore(event: Event) -> None:
    """For those who do not want to know."""


class CellRunner:
    """Works off cells in `jobs` processes, which are kept from one call of `work_off` to the next.

    given: a user's own objects, for all cells; they cannot be sent to other processes.
    """

    def __init__(self, where: Path, jobs: int = 1, given: Objects | None = None) -> None:
        self.where, self.jobs, self._given = where, jobs if given is None else 1, given
        self._dealer = Dealer(given)  # of cells that run in this process
        self._workers: list[_Worker] = []

    def __enter__(self) -> CellRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def check(self, cells: Iterable[Cell]) -> None:
        """Refuse them all if one that is not finished cannot run: find out now, not after an hour.

        Seeds are alike: only the first of each is prepared.
        """
        todo = [cell for cell in _distinct(cells) if not _is_kept(cell, self.where / cell.name)]
        alike = {cell.experiment.model_dump_json(exclude={"seed"}): cell for cell in reversed(todo)}
        dealer = self._dealer if self.jobs == 1 else Dealer()  # what it keeps would be here for nothing
        found: dict[str, Cell] = {}
        for cell in sorted(alike.values(), key=lambda cell: deciding(cell.experiment)):
            message = _why_not(cell, self.where / cell.name, dealer)
            if message is not None:
                found.setdefault(message, cell)
        if found:
            said = [f"{cell.describe()}: {message}" for message, cell in list(found.items())[:_MOST_SAID]]
            raise ConfigError("; ".join([*said, *(["..."] if len(found) > _MOST_SAID else [])]))

    def work_off(self, cells: Iterable[Cell], notify: Notify = ignore) -> dict[str, str]:
        """Run or resume those that are not finished; the messages of those that broke, by cell name."""
        todo = []
        for cell in _distinct(cells):
            if _is_kept(cell, self.where / cell.name):
                notify(Event("kept", cell, cell.experiment.rounds))
            else:
                todo.append(cell)
        if any(cell.experiment.execution.on_ray for cell in todo):
            return self._on_ray(todo, notify)
        if min(self.jobs, len(todo)) <= 1 and not self._workers:
            return self._here(todo, notify)
        return self._beside_each_other(todo, notify)

    def _on_ray(self, todo: Sequence[Cell], notify: Notify) -> dict[str, str]:
        """As many at a time as Ray has room for, whatever `jobs` says."""
        cells, broken = {cell.name: cell for cell in todo}, {}

        def ended(task: Task, message: str | None) -> None:
            cell, folder = cells[task.name], self.where / task.name
            if message is None:
                forget_breakage(folder)
            else:
                note_breakage(folder, message)
                broken[cell.name] = message
            _tell_end(cell, message, notify)

        def told(task: Task, notice: Notice) -> None:
            kept, memory = notice.before, sum(notice.memory)
            notify(Event("round", cells[task.name], notice.done, kept=kept, memory=memory))

        given = self._given or Objects()
        tasks = [Task(name, cell.experiment, given) for name, cell in cells.items()]
        for cell in todo:
            notify(Event("started", cell))
        run_tasks(tasks, self.where, _work_off_there, ended, None if notify is ignore else told)
        return broken

    def _here(self, todo: Sequence[Cell], notify: Notify) -> dict[str, str]:
        broken = {}
        for cell in todo:
            notify(Event("started", cell))

            def watch(record: Any, history: Any, cell: Cell = cell) -> None:
                notify(Event("round", cell, record.round + 1))

            message = _edited(Cell(cell.experiment), cell.name)
            message = message or work_off(cell, self.where, watch, self._dealer)
            _tell_end(cell, message, notify)
            if message is not None:
                broken[cell.name] = message
        return broken

    def _beside_each_other(self, todo: Sequence[Cell], notify: Notify) -> dict[str, str]:
        waiting, broken = deque(todo), {}
        while waiting or any(worker.cell for worker in self._workers):
            self._hand_out(waiting, notify)
            busy = {worker.connection: worker for worker in self._workers if worker.cell}
            for connection in multiprocessing.connection.wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                cell = worker.cell
                assert cell is not None
                kind, value = worker.receive()
                if kind == "round":
                    notify(Event("round", cell, value))
                    continue
                worker.cell = None
                if kind == "died":
                    self._workers.remove(worker)
                    note_breakage(self.where / cell.name, value)
                if value is not None:
                    broken[cell.name] = value
                _tell_end(cell, value, notify)
        return broken

    def _hand_out(self, waiting: deque[Cell], notify: Notify) -> None:
        while len(self._workers) < self.jobs and len(self._workers) < len(waiting):
            self._workers.append(_Worker(self.where))
        for worker in self._workers:
            if worker.cell is None and waiting:
                cell = waiting.popleft()
                worker.give(cell)
                notify(Event("started", cell))


def _distinct(cells: Iterable[Cell]) -> list[Cell]:
    return list({cell.name: cell for cell in cells}.values())


def _why_not(cell: Cell, folder: Path, dealer: Dealer) -> str | None:
    """What forbids a cell to run, or to go on in its folder; None: nothing that can be known before."""
    try:
        RunFolder(folder).require_same(cell.experiment)
    except OtherRunError as error:
        return str(error)
    except RunFolderError:  # damaged: this cell alone will be broken
        return None
    try:
        prepare(*dealer(cell.experiment))
    except CoterieError as error:
        return str(error)
    return None


def _is_kept(cell: Cell, folder: Path) -> bool:
    """Finished, and the right experiment; if it is the wrong one, the attempt to run it will say so."""
    if not is_finished(folder):
        return False
    try:
        RunFolder(folder).require_same(cell.experiment)
    except CoterieError:
        return False
    forget_breakage(folder)
    return True


def _edited(now: Cell, planned: str) -> str | None:
    """The message if the user's files are no longer those that the cell was planned with."""
    edited = "its files were edited since the command began; give the command again"
    return None if now.name == planned else edited


def _tell_end(cell: Cell, message: str | None, notify: Notify) -> None:
    if message is None:
        notify(Event("finished", cell, cell.experiment.rounds))
    else:
        notify(Event("broken", cell, message=message))


class _Worker:
    """A process and the line to it."""

    def __init__(self, where: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy PyTorch's threads half-way
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, str(where)), daemon=True)
        self.process.start()
        other.close()
        self.cell: Cell | None = None

    def give(self, cell: Cell) -> None:
        self.cell = cell
        with contextlib.suppress(OSError):  # it died meanwhile: `receive` will say so
            self.connection.send((cell.experiment.model_dump(mode="json"), dict(cell.labels), cell.name))

    def receive(self) -> tuple[str, Any]:
        try:
            answer: tuple[str, Any] = self.connection.recv()
            return answer
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            return "died", f"its process died with exit code {code}, perhaps for lack of memory"

    def stop(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _work(connection: Any, where: str) -> None:
    """What a worker process does: cells, one after the other, until nobody sends any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    torch.set_num_threads(1)
    dealer = Dealer()
    while True:
        try:
            table, labels, name = connection.recv()
        except (EOFError, OSError):
            return
        cell = Cell(Experiment.model_validate(table), labels)

        def watch(record: Any, history: Any) -> None:
            _tell(connection, "round", record.round + 1)

        try:
            message = _edited(cell, name) or work_off(cell, Path(where), watch, dealer)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        _tell(connection, "done", message)


def _tell(connection: Any, kind: str, value: Any) -> None:
    try:
        connection.send((kind, value))
    except OSError:  # who asked for the cell was killed: it is interrupted, not broken
        sys.exit()


def _work_off_there(experiment: Experiment, folder: Path, objects: Objects, observer: Watching) -> str | None:
    """A cell as a task of Ray."""
    cell = Cell(experiment)
    try:
        return _edited(cell, folder.name) or work_off(cell, folder.parent, observer, Dealer(objects))
    except CoterieError as error:  # a file of the user's is not there
        return str(error)


def work_off(cell: Cell, where: Path, observer: Watching = None, dealer: Dealer | None = None) -> str | None:
    """Run a cell, or resume it, or leave it if it is finished; the message if it breaks."""
    folder = where / cell.name
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {where}: {error.strerror}") from None
    with _claimed(folder):
        try:
            if is_finished(folder):
                RunFolder(folder).require_same(cell.experiment)
            else:
                _run_or_resume(cell.experiment, folder, dealer or Dealer(), observer)
        except Exception as error:  # whatever it is, the other cells must go on
            message = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
            note_breakage(folder, message)
            return message
        forget_breakage(folder)
    return None


def _run_or_resume(experiment: Experiment, folder: Path, dealer: Dealer, observer: Watching) -> None:
    # Cells run beside each other, so each has one thread; or, on Ray, what the experiment says.
    threads = max(1, int(experiment.execution.cpus))
    experiment, objects = dealer(experiment.executed(workers=threads, engine="local"))
    assert objects.dealt is not None
    stored = RunFolder(folder)
    if folder.exists() and not stored.holds_run:  # killed before it had started: nothing is lost
        shutil.rmtree(folder)
    done = run_or_resume(experiment, folder, objects=objects, observer=observer)
    facts = {**_facts(done, objects.dealt), "data_files": stored.digests("data_files")}
    write_atomically(folder / FACTS, json.dumps(facts).encode())
    stored.checkpoint.unlink(missing_ok=True)  # models of many cells would fill the disk


def _facts(run: Run, federation: Federation) -> dict[str, Any]:
    own, common = _majority_floors(federation)
    shares = None
    if run.peers <= MOST_PEERS_IN_SHARES and bool(run.shares.any()):
        shares = [[round(value, 6) for value in row] for row in run.shares.tolist()]
    return {
        "clusters": None if run.clusters is None else run.clusters.tolist(),
        "majority_floor": own,
        "majority_floor_global": common,
        "shares": shares,
        "data": data_digest(run.experiment, federation),
    }


def _majority_floors(federation: Federation) -> tuple[list[float | None], float | None]:
    """How often each peer's most frequent training class is right on its own test data, and on the common."""
    if federation.targets != "classes":
        return [None] * federation.peers, None
    favourite = federation.label_histogram("train").argmax(1)
    test = federation.label_histogram("test").double()
    right = test.gather(1, favourite[:, None])[:, 0] / test.sum(1)
    own = [None if value != value else value for value in right.tolist()]
    if federation.common_test is None:
        return own, None
    labels = federation.y[federation.common_test]
    return own, float((labels[None, :] == favourite[:, None]).double().mean())


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Only one process works on a cell; another that wants the same one waits, and then finds it finished."""
    locks = folder.parent / ".locks"
    locks.mkdir(exist_ok=True)
    with alone(locks / folder.name, wait=True):
        yield
