"""`python -m benchmarks profile`: where the time of one round's local training goes, by torch.profiler.

The round of the comparison with others: 20 peers, 300 images each, batches of 32. The worker's thread is seen
as well. Memory is asked for anew beside a profiler, so that what first touches it (such as a fill)
looks slower than it is.
"""

from __future__ import annotations

from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from benchmarks.local_steps import pool
from benchmarks.rivals.work import torch_network
from coterie.learning import Executor, ExecutorName, Workers, cross_entropy, model_tree
from coterie.learning.executor import keep_freed_memory
from coterie.learning.local_steps import LocalWork
from coterie.models import build
from coterie.randomness import stream
from coterie.training import Training

_SHOWN = 12


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    networks: dict[ExecutorName, tuple[str, nn.Module]] = {
        "stacked": ("MLP-128", build("mlp", (1, 28, 28), 10, seed=0)),
        "looped": ("small CNN", torch_network("cnn")),
    }
    for name, (what, module) in networks.items():
        Console().print(table(f"{what}, {name}", shares(name, module)))


def shares(name: ExecutorName, module: nn.Module, peers: int = 20, samples: int = 300) -> dict[str, float]:
    """The share of each operation in the seconds that all of them took by themselves, the largest first."""
    data, rows = pool((1, 28, 28), peers, samples), torch.arange(peers)
    params = {key: value.expand(peers, *value.shape[1:]).clone() for key, value in model_tree(module).items()}
    work = LocalWork.resolve(Training(lr=0.05, clip=0.0, batch_size=32), 0, {})
    with Workers(1) as workers:
        executor = Executor(name, module, workers)
        train = partial(executor.train, params, data, rows)
        once = partial(train, stream(0, "batches", 0, rows), work, cross_entropy, executor.trainable)
        once()
        every_thread = _ExperimentalConfig(profile_all_threads=True)
        with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as seen:
            once()
    taken = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    total = sum(taken.values())
    return {key: taken[key] / total for key in sorted(taken, key=lambda key: -taken[key])}


def table(title: str, found: dict[str, float]) -> Table:
    drawn = Table("operation", title=title)
    drawn.add_column("% of a round's local training", justify="right")
    for key in list(found)[:_SHOWN]:
        drawn.add_row(key, f"{100 * found[key]:.1f}")
    drawn.add_row("the rest", f"{100 * sum(list(found.values())[_SHOWN:]):.1f}")
    return drawn
