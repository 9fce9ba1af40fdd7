"""All workers of a run: started, given peers by what these cost, and made up for when one is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from coterie.errors import ConfigError, CoterieError, OtherRunError, RunFailedError
from coterie.experiments.cluster.connecting import WorkerLostError, answers, connected
from coterie.experiments.cluster.host import Host
from coterie.experiments.cluster.placing import (
    Clock,
    asking,
    capacity,
    costs,
    cut,
    fitting,
    in_words,
    needs,
    require_room,
    steady,
)
from coterie.experiments.cluster.ray_blocks import RayBlocks
from coterie.experiments.setup.dealing import data_digest
from coterie.experiments.setup.prepare import Objects, Prepared
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment
from coterie.learning import ExecutorName
from coterie.user_code import is_file_reference

_START = 300.0  # seconds within which Ray must have started a worker
_ALIVE = 10.0  # seconds within which a worker that is left answers
_SETTLED = 15.0  # seconds after which Ray knows what is free again
_POLL = 0.5
_ATTEMPTS = 5  # to begin, with workers that are lost meanwhile

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class _Worker:
    actor: Any
    speed: float  # rows in a second, when it was new


class Fleet:
    """The workers of one run, on a Ray that is there."""

    def __init__(self, ray: Any, prepared: Prepared, objects: Objects, executor: ExecutorName, folder: Path):
        """folder: for checkpoints where the run has no folder of its own."""
        self.checkpoint = folder / "checkpoint.safetensors"
        self._ray, self._prepared, self._executor = ray, prepared, executor
        self._execution = prepared.experiment.execution
        self._weights = costs(
            prepared.federation.train.sizes, prepared.experiment.training.batch_size, prepared.topology.hub
        )
        self._objects = shipped(ray, prepared.experiment, objects)
        self._workers: list[_Worker] = []
        self._sizes: list[int] = []
        self._clock: Clock | None = None
        self._blocks: RayBlocks | None = None
        require_room(ray, self._execution)
        self._wanted = self._execution.workers or self._capacity()
        if self._execution.workers and not self._comes_to(self._wanted):
            raise ConfigError(
                f"there is room for {self._room()} workers with {in_words(needs(self._execution))} each, not "
                f"for {self._wanted}; ask for fewer with execution.workers, or for less with execution.cpus"
            )
        self._wanted = min(self._wanted, prepared.topology.nodes)

    @property
    def count(self) -> int:
        return len(self._workers)

    def blocks(self) -> RayBlocks:
        """All peers, on the workers that are there, those that are left before new ones."""
        self._fill()
        shards = self._cut()
        self._sizes = [len(ids) for ids in shards]
        self._clock = Clock([float(self._weights[ids].sum()) for ids in shards])
        self._blocks = RayBlocks(self._ray, [one.actor for one in self._workers], shards)
        return self._blocks

    def _cut(self) -> list[Tensor]:
        """The nodes of each worker, by how fast it was in the last rounds, or else when it was new."""
        measured = self._clock.speeds if self._clock is not None else []
        known = measured if len(measured) == self.count else [one.speed for one in self._workers]
        return cut(self._weights, steady(known))

    def patiently(self, begin: Callable[[], T]) -> T:
        """Try again with the workers that are left when one is lost."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return begin()
            except WorkerLostError:
                self.drop_lost()
        return begin()

    def note_round(self) -> None:
        """After a round: remember how long each worker took."""
        if self._blocks is not None and self._clock is not None:
            self._clock.add(self._blocks.seconds)
            self._blocks.seconds = [0.0] * self.count

    @property
    def uneven(self) -> bool:
        """Whether a worker is slower than the others by half, and peers can move away from it."""
        if self._clock is None or not self._clock.uneven:
            return False
        return [len(ids) for ids in self._cut()] != self._sizes

    @property
    def has_room(self) -> bool:
        """Whether there are fewer workers than wanted, and room for another."""
        return self.count < self._wanted and self._room() > 0

    def drop_lost(self) -> None:
        """Forget the workers that do not answer."""
        calls = {one.actor.where.remote(): one for one in self._workers}
        ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=_ALIVE)
        left = []
        for call in ready:
            with contextlib.suppress(CoterieError):
                answers(self._ray, call)
                left.append(calls[call])
        for one in self._workers:
            if one not in left:
                self._kill(one.actor)
        self._workers = [one for one in self._workers if one in left]
        self._clock = None

    def close(self) -> None:
        for one in self._workers:
            self._kill(one.actor)
        self._workers = []

    def _kill(self, actor: Any) -> None:
        with contextlib.suppress(Exception):  # it may be gone, and with it the whole of Ray
            self._ray.kill(actor)

    def _capacity(self) -> int:
        return capacity(self._ray, self._execution)

    def _room(self) -> int:
        """New workers that fit now."""
        fits = fitting(self._ray.available_resources(), needs(self._execution))
        return max(0, min(fits, self._capacity() - self.count))

    def _comes_to(self, wanted: int) -> bool:
        """Whether there is room for so many, or will be as soon as what has just ended is gone."""
        deadline = time.monotonic() + _SETTLED
        while self._capacity() >= wanted and time.monotonic() < deadline:
            if self._room() >= wanted:
                return True
            time.sleep(_POLL)
        return False

    def _fill(self) -> None:
        """Start workers until there are as many as wanted, or as there is room for; at least one."""
        deadline = time.monotonic() + _START
        while not (new := min(self._wanted - self.count, self._room())) and not self._workers:
            if time.monotonic() > deadline:
                raise RunFailedError(
                    f"no worker is left, and there was no room for a new one for {_START:g} s; go on with "
                    "--resume when there is"
                )
            time.sleep(_POLL)
        started = self._started(max(0, new))
        try:
            self._workers += self._prepared_ones(started)
        except BaseException:
            for actor in started:
                self._kill(actor)
            raise

    def _started(self, count: int) -> list[Any]:
        """So many actors, or those of them that Ray could start."""
        remote = self._ray.remote(Host).options(**asking(self._execution), max_restarts=0)
        calls = {}
        for _ in range(count):
            actor = remote.remote()
            calls[actor.where.remote()] = actor
        there, why = [], f"it took more than {_START:g} s"
        ready, late = self._ray.wait(list(calls), num_returns=count, timeout=_START) if calls else ([], [])
        for call in ready:
            try:
                answers(self._ray, call)
                there.append(calls[call])
            except WorkerLostError as lost:
                why = str(lost)
        for call in late:
            self._kill(calls[call])
        if count and not there and not self._workers:
            raise WorkerLostError(f"Ray could not start a worker: {why}")
        return there

    def _prepared_ones(self, actors: list[Any]) -> list[_Worker]:
        given = (
            self._prepared.experiment.model_dump(mode="json"),
            self._executor,
            max(1, int(self._execution.cpus)),
            self._objects,
        )
        found = answers(self._ray, [actor.prepare.remote(*given) for actor in actors])
        own = data_digest(self._prepared.experiment, self._prepared.federation)
        if any(digest != own for _, digest in found):
            raise OtherRunError(
                f"{self._prepared.experiment.data} returned other data to a worker than here; let it return "
                "the same for the same `peers` and `seed`"
            )
        return [
            _Worker(actor, 1.0 / max(seconds, 1e-6))
            for actor, (seconds, _) in zip(actors, found, strict=True)
        ]


@contextlib.contextmanager
def fleet(prepared: Prepared, objects: Objects | None, executor: ExecutorName) -> Iterator[Fleet | None]:
    """The workers of an experiment that asks for Ray; None: it runs in this process."""
    if not prepared.experiment.execution.on_ray:
        yield None
        return
    _refuse_too_many(prepared)
    with connected(prepared.experiment) as ray, tempfile.TemporaryDirectory() as folder:
        workers = Fleet(ray, prepared, objects or Objects(), executor, Path(folder))
        try:
            yield workers
        finally:
            workers.close()


def _refuse_too_many(prepared: Prepared) -> None:
    asked, peers = prepared.experiment.execution.workers or 1, prepared.experiment.peers
    if asked > peers:
        raise ConfigError(
            f"{asked} workers are more than the {peers} peers that they would host; ask for at most {peers} "
            "with execution.workers"
        )


def shipped(ray: Any, experiment: Experiment, objects: Objects) -> Any:
    """A reference to the user's own objects; what follows from text is made where it is needed."""
    own = experiment.data == OWN_OBJECT or is_file_reference(experiment.data)
    sent = objects if own else dataclasses.replace(objects, dealt=None)
    try:
        return ray.put(sent)
    except (TypeError, AttributeError, ValueError, ray.exceptions.RaySystemError) as error:
        what = ", ".join(name for name, value in vars(sent).items() if value is not None)
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(
            f"what was passed as Python objects ({what}) cannot be sent to Ray's workers: {said.strip()}; "
            "write it into a file and name it, such as file.py:Class, or leave out what is open or locked"
        ) from None
