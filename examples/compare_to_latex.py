"""Compare algorithms with several seeds, look at the result in Python, and write a table for a paper.

    python examples/compare_to_latex.py --peers 12 --rounds 15 --seeds 3 --out table.tex

Offline, in about a minute. The table needs the LaTeX package booktabs.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import coterie

ALGORITHMS = ["d-psgd", "random-gossip", "oracle"]


def main() -> None:
    asked = _asked()
    logging.getLogger("coterie").setLevel(logging.ERROR)  # notes, such as that Local is added
    done = coterie.compare(
        ALGORITHMS,
        data="digits",
        partition="rotations(4)",
        topology="full",
        peers=asked.peers,
        rounds=asked.rounds,
        seeds=asked.seeds,
    )
    print(done)
    print(f"best: {done.best}")
    for label, runs in done.runs.items():
        inside = [run.own_cluster_share for run in runs if run.own_cluster_share is not None]
        if inside:
            print(f"{label} takes {100 * sum(inside) / len(inside):.0f} % from its own cluster")
    print(done.latex(asked.out))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="a file for the table; default: only print it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
