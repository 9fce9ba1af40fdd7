"""Worker threads, each with ONE torch thread: work is cut into tasks that do not depend on how many
workers there are, so that results are bit-equal for any number of them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

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
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
