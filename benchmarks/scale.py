"""Many peers: cost per peer, set-up, memory, and what a busy machine costs. In processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.timing import Row, by_turns

_RUN = """
import json, resource, sys, time
import torch
import coterie
def used():
    return time.process_time()
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
asked = json.loads(sys.argv[1])
coterie.simulate("d-psgd", **{**asked, "peers": 8, "rounds": 1})
before, start = peak(), used()
marks = []
run = coterie.simulate("d-psgd", **asked, observer=lambda record, history: marks.append(used()))
rounds = [b - a for a, b in zip(marks, marks[1:])]
params = sum(value.nbytes for value in run.params.values())
print(json.dumps({
    "setup": marks[0] - start - min(rounds), "round": min(rounds), "cpu": used() - start,
    "grown": peak() - before, "params": params, "sent": run.history.traffic[-1][1],
}))
"""
_MANY: dict[str, Any] = {
    "data": "synthetic(0.5,0.5,size=40)",
    "model": "mlr",
    "topology": "random-regular(4)",
    "rounds": 3,
    "execution": {"executor": "stacked"},
}
_SAMPLE_BYTES = 40 * (60 * 4 + 8)
_BUSY = "while True: pass"


def measured(peers: int, **changed: Any) -> dict[str, float]:
    """CPU seconds and bytes of one run in a process of its own."""
    asked = {**_MANY, "peers": peers, **changed}
    output = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(asked)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return found


def flat(sizes: tuple[int, ...] = (1_000, 10_000, 100_000)) -> list[Row]:
    """CPU seconds per peer and round, and of set-up, as peers grow a hundredfold; samples are held."""
    found = {peers: measured(peers) for peers in sizes}
    each = {peers: one["round"] / peers for peers, one in found.items()}
    least = min(each.values())
    rows = [
        Row(f"{peers:,} peers: CPU per peer and round / the least", each[peers], least, 1.25, at_least=False)
        for peers in sizes
    ]
    for peers, one in found.items():
        print(f"{peers:,} peers: {1e6 * each[peers]:.0f} us per peer and round")
        what = f"{peers:,} peers: set-up / a round, CPU"
        rows.append(Row(what, one["setup"], one["round"], 2.0, at_least=False))
    return rows


def memory(sizes: tuple[int, ...] = (100, 10_000)) -> list[Row]:
    """What a run adds to the process, over parameters + optimiser + data + the messages of one exchange."""
    rows = []
    for peers in sizes:
        model = "mlp" if peers <= 1000 else "mlr"  # large enough to be seen beside what torch itself takes
        changed = {"training": {"momentum": 0.9, "optimizer_state": "kept"}}
        found = measured(peers, **changed, **({"model": "mlp(512)"} if model == "mlp" else {}))
        whole = 2 * found["params"] + peers * _SAMPLE_BYTES + found["sent"]
        what = f"{peers:,} peers: memory / (parameters + optimiser + data + one exchange)"
        rows.append(Row(what, found["grown"], whole, 1.3, at_least=False))
    return rows


def busy(peers: int = 5_000) -> list[Row]:
    """CPU seconds beside two processes that never rest, over those without; by turns."""

    def alone() -> float:
        return measured(peers)["cpu"]

    def beside_two() -> float:
        with _busy_processes(2):
            return measured(peers)["cpu"]

    quiet, disturbed = by_turns(alone, beside_two)
    return [Row("CPU seconds beside two busy processes / quiet", disturbed, quiet, 1.3, at_least=False)]


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def cpu_of(command: list[str], **environment: str) -> tuple[float, float]:
    """CPU seconds and peak bytes of a command with its children, from its start to its end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
