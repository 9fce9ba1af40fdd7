"""Run all benchmarks, or those named on the command line: prints one table, and writes it as JSON.

python -m benchmarks [NAME ...] [--json FILE]
python -m benchmarks compare BEFORE.json AFTER.json
python -m benchmarks rivals [--tiny] [--model mlp|cnn] [NAME ...]
python -m benchmarks profile
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import algorithms, comparing, local_steps, page, peers, profiling, rounds, scale, transport
from benchmarks.rivals import driver
from benchmarks.timing import Row
from coterie.learning import cores
from coterie.learning.executor import keep_freed_memory

ALL = {
    "dense": local_steps.dense,
    "logistic": local_steps.logistic,
    "whole-rounds": local_steps.whole_rounds,
    "convolutional": local_steps.convolutional,
    "around": rounds.around_training,
    "peers": rounds.hundred_thousand_peers,
    "flat": scale.flat,
    "memory": scale.memory,
    "busy": scale.busy,
    "algorithms": algorithms.relative,
    "blend": algorithms.blend,
    "bandit": algorithms.bandit,
    "transport": transport.throughput,
    "sealed": peers.sealed,
    "exchange": peers.exchange,
    "paint": page.first_paint,
    "slider": page.slider,
}


def main() -> None:
    if sys.argv[1:2] == ["compare"]:
        if len(sys.argv) != 4:
            raise SystemExit("usage: python -m benchmarks compare BEFORE.json AFTER.json")
        Console().print(comparing.compared(Path(sys.argv[2]), Path(sys.argv[3])))
        return
    if sys.argv[1:2] == ["rivals"]:
        driver.main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["profile"]:
        profiling.main()
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), metavar="FILE")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(ALL):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(ALL)}")
    run(asked.names or list(ALL), asked.json)


def run(names: list[str], path: Path) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does; whatever is compared with it gains as well
    table = Table(title=f"Coterie benchmarks, {cores()} cores, torch {torch.__version__}")
    for column in ("what", "ratio", "wanted", "", "limit"):
        table.add_column(column, justify="left" if column in ("what", "limit") else "right")
    rows: list[Row] = []
    for name in names:
        start = time.monotonic()
        for row in ALL[name]():
            table.add_row(row.what, f"{row.ratio:.3g}", row.target, row.verdict, row.limit)
            rows.append(row)
        print(f"{name}: {time.monotonic() - start:.0f} s")
    Console().print(table)
    about = {"cores": cores(), "torch": torch.__version__, "platform": platform.platform()}
    written = {
        "format": comparing.FORMAT,
        "time": time.time(),
        **about,
        "rows": [row.entry() for row in rows],
    }
    path.write_text(json.dumps(written, indent=1))
    print(f"written: {path}")


if __name__ == "__main__":
    main()
