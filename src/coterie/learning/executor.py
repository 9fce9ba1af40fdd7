"""Runs local work of many rows: cut into tasks, each a chunk of rows through ALL its local steps.

Two executors: *stacked* trains a chunk of rows at once, small enough for its parameters to stay in
cache; *looped* trains one row after another. Both spread their tasks over worker threads, each with ONE
torch thread. The cut depends on the model and the rows alone, never on the number of workers, so that
results are bit-equal for any number of them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from coterie.data import Federation, Split
from coterie.data.federation import bytes_of_one, example, gathered
from coterie.errors import ContractError
from coterie.inputs import Inputs
from coterie.learning.batched import (
    BatchedModel,
    OneByOne,
    Vmapped,
    cannot_be_stacked,
    trainable_names,
)
from coterie.learning.local_steps import Batches, Job, LocalWork, draw_batches, local_steps
from coterie.learning.precision import Autocast, Precision
from coterie.learning.stacked import StackedLayers
from coterie.learning.updates import Memory
from coterie.models import Layer, find_layer, largest_output, model_tree
from coterie.protocol.node import Loss, Prepare
from coterie.protocol.trees import Params, row_bytes
from coterie.randomness import Stream

ExecutorName: TypeAlias = Literal["stacked", "looped"]

_CACHE_BYTES = 8 << 20  # parameters of one stacked chunk
_FORWARD_BYTES = 16 << 20  # of one evaluation batch: its inputs, or what becomes of words
_DRAWN_BYTES = 64 << 20  # positions of training samples that are drawn together
_STEP_BYTES = 6 << 20  # inputs of one step of a stacked chunk; larger ones are no faster
_MADE_BYTES = 32 << 20  # generated training samples of one chunk
_PADDING = 1.15  # how much more padding is cheaper than to copy the models
# From so many rows on, tasks are cut in multiples of this, which as many workers share evenly.
_EVEN_TASKS = {8: 2, 48: 4}
_SMALL_TASK = 128 << 10  # bytes of parameters below which a step is mostly Python, which no workers share

A = TypeVar("A")
B = TypeVar("B")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT_BYTES = 1 << 30


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of threads. PyTorch releases the interpreter lock inside its operations."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or cores()
        self._pool = ThreadPoolExecutor(
            self.count, thread_name_prefix="coterie", initializer=torch.set_num_threads, initargs=(1,)
        )

    def map(self, fn: Callable[[A], B], tasks: Iterable[A]) -> list[B]:
        """Results in the order of the tasks; the first error stops what has not started."""
        futures = [self._pool.submit(fn, task) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Wait for the threads, whatever comes.

        One that still computes when the interpreter ends is killed amid C++ code, which aborts the process.
        """
        with _interruptions_wait():
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _interruptions_wait() -> Iterator[None]:
    """Signals that would raise an exception here, such as Ctrl-C, do so afterwards.

    Python before 3.13 takes a thread for ended once an exception came while it was waited for.
    """
    if threading.current_thread() is not threading.main_thread():  # no other has signal handlers
        yield
        return
    came: list[int] = []
    before = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number))
    }
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in before:
            if number in came:
                signal.raise_signal(number)


@contextmanager
def pinned_threads(count: int) -> Iterator[None]:
    """Let torch operations outside the workers use `count` threads; restores the user's setting.

    One is best beside workers: a team of threads spins for milliseconds after each operation, on the cores
    that the workers need.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Let this process use again what it frees instead of giving it back to the kernel (glibc only).

    Every round allocates models, batches and gradients of the same sizes; fresh pages for all of them
    cost about a tenth of a round.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)


def batched_model(
    module: nn.Module, executor: ExecutorName, precision: Precision = "float32"
) -> BatchedModel:
    """The way to run this module under this executor."""
    if precision == "bfloat16":
        return Autocast(OneByOne(module) if executor == "looped" else _batched_by_vmap(module))
    if executor == "looped":
        return OneByOne(module)
    if StackedLayers.supports(module):
        assert isinstance(module, nn.Sequential)
        return StackedLayers(module)
    return _batched_by_vmap(module)


def _batched_by_vmap(module: nn.Module) -> Vmapped:
    if Vmapped.supports(module):
        return Vmapped(module)
    raise cannot_be_stacked(
        "BatchNorm or Dropout in a module that is not a plain Sequential of linear layers"
    )


@dataclass(frozen=True)
class Visit:
    """Part of a pass over each row's samples: outputs of some rows on some of their samples."""

    rows: Tensor  # (k,) positions in the rows asked for
    columns: slice  # which of each row's samples
    outputs: Tensor  # (k, width, classes) logits, or (k, width, features) of a layer; 0 for padding
    y: Tensor  # (k, width)
    present: Tensor  # (k, width) 1 for samples, 0 for padding


class Executor:
    """Local training and evaluation for one architecture."""

    def __init__(
        self, name: ExecutorName, module: nn.Module, workers: Workers, precision: Precision = "float32"
    ) -> None:
        self.name = name
        self.module = module
        self.workers = workers
        self.trainable = trainable_names(module)
        self.shapes = {name: value.shape[1:] for name, value in model_tree(module).items()}
        self._model = batched_model(module, name, precision)
        self._layers: dict[str, Layer] = {}
        self._sample_bytes: int | None = None

    def layer(self, name: str, x: Inputs) -> Layer:
        """The layer of this name, for samples such as x."""
        if name not in self._layers:
            self._layers[name] = find_layer(self.module, name, example(x))
        return self._layers[name]

    def train(
        self,
        params: Params,
        federation: Federation,
        rows: Tensor,
        stream: Stream,
        work: LocalWork,
        loss: Loss,
        only: tuple[str, ...],
        prepare: Prepare | None = None,
        kept: Memory | None = None,
    ) -> tuple[Params, Tensor]:
        """New parameters of all rows after the given rows trained, and each row's mean loss.

        The loss is NaN for rows that took no step. `stream`, `kept` and what `work` has are over ALL rows.
        kept: what the optimiser remembers of the rounds before, and of this one afterwards.
        """
        self._check_complete(params, self.shapes)
        n_samples = federation.train.sizes
        steps = local_steps(n_samples, work)[rows]
        order = torch.argsort(steps, descending=True, stable=True)
        order = order[steps[order] > 0]
        idle = torch.ones(len(n_samples), dtype=torch.bool)
        idle[rows[order]] = False
        idle = idle.nonzero().flatten()
        result = {name: torch.empty_like(value) for name, value in params.items()}
        for name, value in params.items():
            result[name][idle] = value[idle]
        losses = torch.full((len(n_samples),), float("nan"))
        if not len(order):
            return result, losses  # no local epochs: splitting an empty list would give one empty chunk

        def task(some: Tensor, batches: Batches, part: slice) -> None:
            chosen, taking = rows[some[part]], steps[some[part]]
            own_batches = batches.of(part, int(taking[0]))
            settings = (stream, work, loss, only, taking, prepare, own_batches, kept)
            job = Job(self._model, federation, chosen, *settings)
            place = _place(chosen)
            own = _to_train(params, result, place, turned)
            losses[place] = job.run(own)
            for name, value in own.items():
                if name in turned or not isinstance(place, slice):
                    result[name][place] = value

        turned = self._model.turned(work.training.batch_size)
        batch = min(work.training.batch_size, int(n_samples.max()))
        step_rows = max(1, _STEP_BYTES // max(1, batch * bytes_of_one(federation.x)))
        chunk_rows = min(self._chunk_rows(params, len(order)), step_rows)
        if federation.made is not None:
            chunk_rows = min(chunk_rows, _made_together(federation))
        for some in order.split(_drawn_together(n_samples, steps, work, chunk_rows)):
            own = replace(stream, ids=stream.ids[rows[some]])
            sizes = n_samples[rows[some]]
            taken = None if work.taken is None else work.taken[rows[some]]
            batches = draw_batches(own, sizes, steps[some], work.training.batch_size, taken)
            self.workers.map(partial(task, some, batches), _even_parts(len(some), chunk_rows))
        return result, losses

    def visit(
        self,
        params: Params,
        federation: Federation,
        split: Split,
        rows: Tensor,
        see: Callable[[Visit], None],
        layer: str | None = None,
    ) -> None:
        """Show `see` the logits of params' row k on the samples of federation row rows[k], for all k.

        `see` is called from worker threads, for disjoint parts. layer: its outputs instead of the logits;
        `params` may then lack what comes after it.
        """
        self._check_complete(params, self.shapes if layer is None else self.layer(layer, federation.x).needs)
        sizes = split.sizes[rows]
        some = (sizes > 0).nonzero().flatten()
        if not len(some):
            return  # nobody has such samples; splitting an empty list would give one empty chunk
        per_task = max(1, _FORWARD_BYTES // max(1, self._bytes_of_sample(federation.x)))  # samples
        chunk_rows = min(self._chunk_rows(params, len(some)), max(1, per_task // int(sizes.max())))
        chunks = _chunks(some, sizes, chunk_rows)

        def task(chunk: Tensor) -> None:
            own, held = _some_rows(params, chunk), federation.held(split, rows[chunk])
            width = int(sizes[chunk].max())
            stride = max(1, per_task // len(chunk))
            for start in range(0, width, stride):
                columns = torch.arange(start, min(start + stride, width))
                present = columns < sizes[chunk][:, None]
                place = held.places(torch.where(present, columns, 0))
                outputs = self._model.outputs(own, gathered(held.x, place), layer)
                if not bool(present.all()):  # infinite outputs, times 0 for padding, would be no numbers
                    outputs = outputs.masked_fill(~_beside(present, outputs), 0.0)
                part = slice(start, start + len(columns))
                see(Visit(chunk, part, outputs, held.targets(place), present.float()))

        self.workers.map(task, chunks)

    def visit_common(
        self, params: Params, federation: Federation, index: Tensor, see: Callable[[Visit], None]
    ) -> None:
        """Like `visit`, with the same samples for every row."""
        rows = torch.arange(len(next(iter(params.values()))))
        everyone = Split(index.repeat(1), torch.tensor([0, len(index)]))
        self.visit(params, federation, everyone, torch.zeros_like(rows), see)

    def _check_complete(self, params: Params, needed: Iterable[str]) -> None:
        """What is missing would be taken from whatever model ran before."""
        missing = [name for name in needed if name not in params]
        if missing:
            raise ContractError(
                f"a model is to be run without its {', '.join(map(repr, missing))}; what was not sent, such "
                "as statistics that stay at home, has to be taken from the node's own model"
            )

    def _bytes_of_sample(self, x: Inputs) -> int:
        """Of its inputs; where these are words or several, of what the network makes of them."""
        if isinstance(x, Tensor) and x.is_floating_point():
            return bytes_of_one(x)
        if self._sample_bytes is None:
            self._sample_bytes = max(bytes_of_one(x), largest_output(self.module, example(x)))
        return self._sample_bytes

    def _chunk_rows(self, params: Params, rows: int) -> int:
        """By the model and the number of rows, not by the workers, on which no result may depend.

        Few rows make few chunks: a step of a small chunk is mostly overhead.
        """
        if self._model.one_by_one:
            return 1
        per_row = max(1, row_bytes(dict(params)))
        in_cache, small = max(1, _CACHE_BYTES // per_row), rows * per_row < 4 * _SMALL_TASK
        even = max((tasks for least, tasks in _EVEN_TASKS.items() if rows >= least), default=1)
        even = min(even, 2) if small else even
        tasks = -(-rows // (in_cache * even)) * even
        return -(-rows // tasks)


def _chunks(rows: Tensor, sizes: Tensor, chunk_rows: int) -> list[Tensor]:
    """Rows that are visited together, padded to the longest of them.

    In their own order, whose models need no copy, unless sorting by size saves much padding.
    """

    def padded(chunks: tuple[Tensor, ...]) -> int:
        return sum(len(chunk) * int(sizes[chunk].max()) for chunk in chunks)

    as_they_are = rows.split(chunk_rows)
    by_size = rows[sizes[rows].argsort(descending=True, stable=True)].split(chunk_rows)
    return list(as_they_are if padded(as_they_are) <= _PADDING * padded(by_size) else by_size)


def _made_together(federation: Federation) -> int:
    """Rows whose training samples are made at once and held while they train."""
    total = max(1, federation.train.total * bytes_of_one(federation.x))
    return max(1, _MADE_BYTES * federation.peers // total)


def _drawn_together(n_samples: Tensor, steps: Tensor, work: LocalWork, chunk_rows: int) -> int:
    """Rows whose batches are drawn before they train: all, unless those would take much memory.

    Drawing takes dozens of small operations. Beside each other, workers would wait for the interpreter lock
    at every one of them, and draw fewer rows at a time.
    """
    batch = min(work.training.batch_size, int(n_samples.max()))
    chunk_bytes = 8 * int(steps.max()) * batch * chunk_rows
    return chunk_rows * max(1, _DRAWN_BYTES // chunk_bytes)


def _even_parts(rows: int, most: int) -> list[slice]:
    """So few parts that none has more than `most` rows, as equal as possible."""
    parts = -(-rows // most)
    return [slice(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]


def _to_train(params: Params, result: Params, place: slice | Tensor, turned: frozenset[str]) -> Params:
    """Models of some rows that may be changed in place, in the result itself where that saves a copy."""
    own = {}
    for name, value in params.items():
        if name in turned:
            own[name] = value[place].mT.clone(memory_format=torch.contiguous_format).mT
        elif isinstance(place, slice):
            # `.data` has a version counter of its own: autograd must not take the steps of other chunks for
            # changes of this one.
            own[name] = result[name].data[place].copy_(value[place])
        else:
            own[name] = value[place]
    return own


def _place(rows: Tensor) -> slice | Tensor:
    """Consecutive rows as a slice, which needs no copy."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if bool((rows.diff() == 1).all()) else rows


def _some_rows(params: Params, rows: Tensor) -> Params:
    place = _place(rows)
    return {name: value[place] for name, value in params.items()}


def _beside(present: Tensor, outputs: Tensor) -> Tensor:
    """(rows, width) with as many axes as the outputs have."""
    return present.view(*present.shape, *[1] * (outputs.dim() - 2)).to(outputs.device)
