"""Run all benchmarks, or those named on the command line, and print one table."""

from __future__ import annotations

import sys

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import algorithms, local_steps, peers, rounds, transport
from coterie.learning import cores
from coterie.learning.executor import keep_freed_memory

ALL = {
    "dense": local_steps.dense,
    "convolutional": local_steps.convolutional,
    "around": rounds.around_training,
    "peers": rounds.hundred_thousand_peers,
    "algorithms": algorithms.relative,
    "bandit": algorithms.bandit,
    "transport": transport.throughput,
    "sealed": peers.sealed,
    "exchange": peers.exchange,
}


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does; whatever is compared with it gains as well
    table = Table(title=f"Coterie benchmarks, {cores()} cores, torch {torch.__version__}")
    for column in ("what", "ratio", "wanted", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name in sys.argv[1:] or ALL:
        for row in ALL[name]():
            table.add_row(row.what, f"{row.ratio:.3g}", row.target, row.verdict)
    Console().print(table)


if __name__ == "__main__":
    main()
