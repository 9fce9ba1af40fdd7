"""Runs beside each other on Ray: each is a task, as many at a time as there is room for.

A task works in the folder of whoever asked, if it sees that folder; else in one of its own, whose files come
back. A task whose process or node is lost is given again, and goes on from its checkpoint if that is left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from coterie.catalogue import algorithms
from coterie.errors import CoterieError
from coterie.experiments.cells.notices import Notice, Notices
from coterie.experiments.cluster.connecting import WorkerLostError, answers, connected
from coterie.experiments.cluster.fleet import shipped
from coterie.experiments.cluster.placing import asking, require_room
from coterie.experiments.runs.observing import Observer
from coterie.experiments.runs.records import History
from coterie.experiments.setup.prepare import Objects
from coterie.experiments.setup.schema import Experiment
from coterie.files import write_atomically
from coterie.memory import used_memory
from coterie.simulation import RoundRecord

_ATTEMPTS = 5  # at a task that is lost again and again
_WAIT = 1.0  # seconds between two looks at the tasks and their notices
_ENDING = 20.0  # seconds that cancelled tasks have to end
_RARELY = 1.0  # seconds between two notices of a task

Work: TypeAlias = Callable[[Experiment, Path, Objects, Observer], "str | None"]
"""Runs an experiment in a folder; the message if it breaks. A function of a module, which Ray finds again."""
Told: TypeAlias = Callable[["Task", Notice], None]


@dataclass(frozen=True)
class Task:
    """A run that somebody wants in a folder of this name."""

    name: str
    experiment: Experiment
    objects: Objects


def run_tasks(
    tasks: Sequence[Task],
    where: Path,
    work: Work,
    ended: Callable[[Task, str | None], None],
    told: Told | None = None,
) -> None:
    """Run them all, in any order.

    ended: is told of each when it has, and the message if it broke. told: how far each is, now and then.
    """
    if not tasks:
        return
    where.mkdir(parents=True, exist_ok=True)
    with connected(tasks[0].experiment) as ray, _sign(where) as sign:
        for task in tasks:
            require_room(ray, task.experiment.execution)
        board = _Board(ray, where, work, sign, told)
        try:
            for task in tasks:
                board.start(task)
            while board.running:
                for task, message in board.finished():
                    ended(task, message)
                board.read_notices()
        finally:
            board.clear()


class _Board:
    """Who is running, and how often each was begun."""

    def __init__(self, ray: Any, where: Path, work: Work, sign: str, told: Told | None) -> None:
        self._ray, self._where, self._work, self._sign, self._told = ray, where, work, sign, told
        again = {"max_restarts": -1, "max_task_retries": -1}  # it may be on a node that is lost
        self._notices = ray.remote(Notices).options(num_cpus=0, **again).remote() if told else None
        self._unread = None  # what was asked of it last
        self._remote = ray.remote(_carried_out)
        self._shipped: dict[int, Any] = {}  # the user's objects, once for all tasks that have the same
        self._attempts: dict[str, int] = {}
        self.running: dict[Any, Task] = {}

    def start(self, task: Task) -> None:
        self._attempts[task.name] = self._attempts.get(task.name, 0) + 1
        e, key = task.experiment, id(task.objects)
        if key not in self._shipped:
            self._shipped[key] = shipped(self._ray, e, task.objects)
        options = self._remote.options(**asking(e.execution), max_retries=0)
        place = task.name, str(self._where), self._sign
        sent = e.model_dump(mode="json"), place, self._shipped[key], self._notices
        self.running[options.remote(self._work, *sent)] = task

    def finished(self) -> Iterator[tuple[Task, str | None]]:
        """Wait a while, and give back who has ended; who was lost is begun again."""
        ready, _ = self._ray.wait(list(self.running), num_returns=1, timeout=_WAIT)
        for reference in ready:
            task = self.running.pop(reference)
            try:
                message, files, last = answers(self._ray, reference)
            except WorkerLostError as lost:
                if self._attempts[task.name] < _ATTEMPTS:
                    self.start(task)
                    continue
                message, files, last = f"{lost}, {_ATTEMPTS} times", None, None
            if files is not None:
                _put(files, self._where / task.name)
            if last is not None and self._told is not None:
                self._told(task, last)
            yield task, message

    def read_notices(self) -> None:
        """Hand on what tasks have left; without waiting for it."""
        if self._notices is None or self._told is None:
            return
        self._unread = self._unread or self._notices.read.remote()
        if not self._ray.wait([self._unread], timeout=0)[0]:
            return
        running, found = {task.name: task for task in self.running.values()}, {}
        with contextlib.suppress(CoterieError):  # its node is lost: those who run will leave others
            found = answers(self._ray, self._unread)
        self._unread = None
        for name in found.keys() & running.keys():
            self._told(running[name], found[name])

    def clear(self) -> None:
        """End what still runs, and wait for it; its process may take a moment longer."""
        with contextlib.suppress(Exception):  # Ray itself may be gone
            for reference in self.running:
                self._ray.cancel(reference, force=True)
            self._ray.wait(list(self.running), num_returns=len(self.running), timeout=_ENDING)
        if self._notices is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(self._notices)


class _Teller(Observer):
    """In a task: leaves notices on the board, if there is one, and keeps the last."""

    def __init__(self, name: str, notices: Any) -> None:
        self._name, self._notices = name, notices
        self._before, self._again = 0, 0.0
        self.last: Notice | None = None

    def begin(self, experiment: Experiment, history: History) -> None:
        self._before = len(history.seconds)
        self._point = algorithms[experiment.algorithm].facts.measured  # type: ignore[attr-defined]

    def round(self, record: RoundRecord, history: History) -> None:
        if self._notices is None:
            return
        self.last = Notice.of(record, history, self._point, self._before, (used_memory(),))
        if time.monotonic() >= self._again:
            self._again = time.monotonic() + _RARELY
            self._notices.leave.remote(self._name, self.last)


@contextlib.contextmanager
def _sign(where: Path) -> Iterator[str]:
    """A file by whose name a task knows this folder, wherever it runs."""
    name = f".ray-{secrets.token_hex(8)}"
    (where / name).touch()
    try:
        yield name
    finally:
        (where / name).unlink(missing_ok=True)


def _carried_out(
    work: Work, experiment: Mapping[str, Any], place: tuple[str, str, str], objects: Objects, notices: Any
) -> tuple[str | None, dict[str, bytes] | None, Notice | None]:
    """The task: the message if it broke, the files if they are not where they belong, and its last notice.

    place: the name of its folder, the folder around that, and the file by which that is known.
    """
    torch.set_num_threads(1)
    here = Experiment.model_validate(experiment)
    if objects.algorithm is not None and here.algorithm not in algorithms:  # a class of the user's own
        algorithms.register(here.algorithm)(type(objects.algorithm))
    here = here.executed(engine="local", workers=max(1, int(here.execution.cpus)))
    name, where, sign = place
    teller = _Teller(name, notices)
    if (Path(where) / sign).exists():
        return _named(work(here, Path(where) / name, objects, teller)), None, teller.last
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        message = _named(work(here, Path(folder) / name, objects, teller))
        return message, dict(_files(Path(folder) / name)), teller.last


def _named(message: str | None) -> str | None:
    """With the node where it happened."""
    return None if message is None else f"on {socket.gethostname()}: {message}"


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()


def _put(files: Mapping[str, bytes], folder: Path) -> None:
    """Make the folder of a run, all of it at once."""
    new = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    for name, content in files.items():
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(new / name, content)
    if folder.exists():
        shutil.rmtree(folder)
    if new.exists():  # a run that broke at once has no files
        os.rename(new, folder)
