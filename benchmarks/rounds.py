"""Whole rounds: what everything around local training costs, and how many peers fit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.images import images
from benchmarks.timing import Row
from coterie.learning import cores, executor, local_steps
from coterie.results.simulating import simulate

_GIB = 1 << 30

HUNDRED_THOUSAND = """
import json, resource, time
import coterie
start = time.perf_counter()
run = coterie.simulate(
    algorithm="gossip-fedavg", data="synthetic(0.5,0.5,size=50)", model="mlr", topology="random-regular(4)",
    peers=100_000, rounds=1, training={"batch_size": 20}, execution={"executor": "stacked"},
)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "total": time.perf_counter() - start, "round": run.history.seconds[0]}))
"""


def around_training() -> list[Row]:
    """Batching, mixing, evaluation and records as a share of a run: 100 peers x MLP-128, 600 samples each."""
    return [row for epochs, rounds in ((1, 100), (5, 20)) for row in _around(epochs, rounds)]


def _around(epochs: int, rounds: int) -> list[Row]:
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder, clock.watching():
        simulate(
            "d-psgd",
            data=images(),
            model="mlp",
            partition="iid",
            topology="random-regular(4)",
            peers=100,
            rounds=rounds,
            splitting={"samples_per_peer": 600},
            training={"batch_size": 20, "epochs": epochs},
            # Every second round, as in the default plan of 100 rounds, and on the peers' own test data.
            evaluation={"every": 2, "global_accuracy": "never"},
            execution={"executor": "stacked"},
            run_dir=Path(folder) / "run",
            observer=clock.tick,
        )
    spent = clock.between_first_and_last_round()
    # Core-seconds: the workers' own, and those of all cores where the main thread alone decides what goes on.
    whole, training, drawing = (spent[part] * cores() for part in ("round", "train", "draw_batches"))
    batching = drawing + spent["_feed"] + spent["batch"]
    steps = spent["run"] - spent["_feed"] - spent["batch"]
    what = f"mlp x 100, {epochs} local epochs:"
    return [
        Row(f"{what} around training / run", whole - training + batching, whole, 0.15, at_least=False),
        Row(f"{what} the same with idle cores and copies", whole - steps, whole, None, at_least=False),
    ]


class _Clock:
    """Adds up the seconds that threads spend in parts of a round."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._after_first: dict[str, float] | None = None

    def tick(self, *_: object) -> None:
        self.spent["round"] = time.perf_counter()
        self._after_first = self._after_first or dict(self.spent)

    def between_first_and_last_round(self) -> dict[str, float]:
        assert self._after_first is not None
        return {part: seconds - self._after_first[part] for part, seconds in self.spent.items()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        places: list[tuple[Any, str]] = [
            (executor.Executor, "train"),
            (executor, "draw_batches"),
            (local_steps.Job, "run"),
            (local_steps.Job, "_feed"),
            (local_steps.Feed, "batch"),
        ]
        originals = [getattr(place, name) for place, name in places]
        for place, name in places:
            setattr(place, name, self._timed(getattr(place, name)))
        try:
            yield
        finally:
            for (place, name), original in zip(places, originals, strict=True):
                setattr(place, name, original)

    def _timed(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return fn(*args, **kwargs)
            finally:
                self.spent[fn.__name__] += time.perf_counter() - start

        return timed


def hundred_thousand_peers() -> list[Row]:
    """One gossip round of 100,000 peers with 610 parameters each, in a process of its own."""
    output = subprocess.run(
        [sys.executable, "-c", HUNDRED_THOUSAND], capture_output=True, text=True, check=True
    )
    measured = json.loads(output.stdout)
    print(f"100,000 peers: the round took {measured['round']:.1f} s, everything {measured['total']:.1f} s")
    return [Row("mlr x 100,000: peak memory / GiB", measured["peak"], _GIB, 8.0, at_least=False)]
