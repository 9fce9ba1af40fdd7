"""A sweep on Ray: every combination of values is a task, and as many run at a time as there is room for.

    pip install 'coterie[ray]'
    python examples/sweep_on_ray.py
    python examples/sweep_on_ray.py --engine ray://HEAD:10001 --out sweep  # on a cluster that is there

Without an address a Ray is started on this machine, and ends with the sweep. The numbers are those of
`--engine local`, bit for bit, wherever a run was computed. With --out the records stay, and the same command
goes on after an interruption. docs/scale.md tells the rest.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import coterie


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", default="ray", help="ray, ray://HEAD:10001, or local: without Ray")
    parser.add_argument("--peers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="a folder for the records")
    asked = parser.parse_args()
    logging.getLogger("coterie").setLevel(logging.ERROR)
    found = coterie.sweep(
        {"algorithm": ["local", "d-psgd", "kin"], "training.lr": [0.03, 0.1, 0.3]},
        partition="rotations(4)",
        topology="full",
        peers=asked.peers,
        rounds=asked.rounds,
        seeds=asked.seeds,
        splitting={"validation": 0.2},  # chooses the best; test data have no say
        execution={"engine": asked.engine, "executor": "stacked"},
        out=asked.out,
    )
    for cell, run in zip(found.cells, found.runs, strict=True):
        print(f"{cell.name:40} accuracy {100 * run.personal_accuracy.mean():5.1f} %")
    print(f"best: {found.best}")


if __name__ == "__main__":
    main()
