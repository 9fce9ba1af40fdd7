"""Runs beside each other on Ray: each is a task, as many at a time as there is room for.

A task works in the folder of whoever asked, if it sees that folder; else in one of its own, whose files come
back. A task whose process or node is lost is given again, and goes on from its checkpoint if that is left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from coterie.catalogue import algorithms
from coterie.errors import ConfigError
from coterie.experiments.cluster.connecting import WorkerLostError, answers, connected
from coterie.experiments.cluster.fleet import shipped
from coterie.experiments.setup.prepare import Objects
from coterie.experiments.setup.schema import Experiment
from coterie.files import write_atomically

_ATTEMPTS = 5  # at a task that is lost again and again
_WAIT = 1.0  # seconds between two looks at the tasks

Work: TypeAlias = Callable[[Experiment, Path, Objects], "str | None"]
"""Runs an experiment in a folder; the message if it breaks. A function of a module, which Ray finds again."""


@dataclass(frozen=True)
class Task:
    """A run that somebody wants in a folder of this name."""

    name: str
    experiment: Experiment
    objects: Objects


def run_tasks(
    tasks: Sequence[Task], where: Path, work: Work, ended: Callable[[Task, str | None], None]
) -> None:
    """Run them all, in any order. ended: is told of each when it has, and the message if it broke."""
    if not tasks:
        return
    where.mkdir(parents=True, exist_ok=True)
    with connected(tasks[0].experiment) as ray, _sign(where) as sign:
        board = _Board(ray, where, work, sign)
        try:
            for task in tasks:
                _require_room(ray, task.experiment)
                board.start(task)
            while board.running:
                for task, message in board.finished():
                    ended(task, message)
        finally:
            board.clear()


class _Board:
    """Who is running, and how often each was begun."""

    def __init__(self, ray: Any, where: Path, work: Work, sign: str) -> None:
        self._ray, self._where, self._work, self._sign = ray, where, work, sign
        self._remote = ray.remote(_carried_out)
        self._shipped: dict[int, Any] = {}  # the user's objects, once for all tasks that have the same
        self._attempts: dict[str, int] = {}
        self.running: dict[Any, Task] = {}

    def start(self, task: Task) -> None:
        self._attempts[task.name] = self._attempts.get(task.name, 0) + 1
        e, key = task.experiment, id(task.objects)
        if key not in self._shipped:
            self._shipped[key] = shipped(self._ray, e, task.objects)
        options = self._remote.options(
            num_cpus=e.execution.cpus,
            num_gpus=e.execution.gpus if e.execution.device.startswith("cuda") else 0,
            max_retries=0,
            scheduling_strategy="SPREAD",
        )
        sent = e.model_dump(mode="json"), task.name, str(self._where), self._sign, self._shipped[key]
        self.running[options.remote(self._work, *sent)] = task

    def finished(self) -> Iterator[tuple[Task, str | None]]:
        """Wait a while, and give back who has ended; who was lost is begun again."""
        ready, _ = self._ray.wait(list(self.running), num_returns=1, timeout=_WAIT)
        for reference in ready:
            task = self.running.pop(reference)
            try:
                message, files = answers(self._ray, reference)
            except WorkerLostError as lost:
                if self._attempts[task.name] < _ATTEMPTS:
                    self.start(task)
                    continue
                message, files = f"{lost}, {_ATTEMPTS} times", None
            if files is not None:
                _put(files, self._where / task.name)
            yield task, message

    def clear(self) -> None:
        for reference in self.running:
            with contextlib.suppress(Exception):  # Ray itself may be gone
                self._ray.cancel(reference, force=True)


def _require_room(ray: Any, experiment: Experiment) -> None:
    """Refuse what would wait for ever: no node has so much."""
    e = experiment.execution
    needs = {"CPU": e.cpus} | ({"GPU": e.gpus} if e.device.startswith("cuda") else {})
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
        asked = " and ".join(f"{amount:g} {name}s" for name, amount in needs.items())
        raise ConfigError(f"no node of Ray has {asked}, which execution.cpus and execution.gpus ask for")


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
    work: Work, experiment: Mapping[str, Any], name: str, where: str, sign: str, objects: Objects
) -> tuple[str | None, dict[str, bytes] | None]:
    """The task: the message if it broke, and the files if they are not where they belong."""
    torch.set_num_threads(1)
    here = Experiment.model_validate(experiment)
    if objects.algorithm is not None and here.algorithm not in algorithms:  # a class of the user's own
        algorithms.register(here.algorithm)(type(objects.algorithm))
    execution = {"engine": "local", "workers": max(1, int(here.execution.cpus))}
    here = here.model_copy(update={"execution": here.execution.model_copy(update=execution)})
    if (Path(where) / sign).exists():
        return work(here, Path(where) / name, objects), None
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        message = work(here, Path(folder) / name, objects)
        return message, dict(_files(Path(folder) / name))


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
