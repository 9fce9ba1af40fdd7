"""Seconds per round of every algorithm relative to D-PSGD, measured side by side in one run."""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.images import images
from benchmarks.plain_blend import PlainBlendDFL
from benchmarks.timing import Row, by_turns
from coterie.algorithms.parts.bandits import Bandit
from coterie.catalogue import algorithms
from coterie.learning import cores
from coterie.protocol import Links
from coterie.randomness import stream
from coterie.results.simulating import simulate
from coterie.topology import make

_WANTED = {"blend-dfl": 1.4, "dfedsam": 2.1}
_ROUNDS = 12


def seconds_of_rounds(algorithm: str, topology: str) -> list[float]:
    """Each round's time but the first's and the last's, of 20 peers with 300 images and 5 local epochs."""
    run = simulate(
        algorithm,
        data=images(),
        model="mlp",
        partition="rotations(4)",
        topology=topology,
        peers=20,
        rounds=_ROUNDS,
        splitting={"samples_per_peer": 300, "test_samples_per_peer": 20, "validation": 0.1},
        training={"epochs": 5, "batch_size": 32},
        evaluation={"every": _ROUNDS, "global_accuracy": "never"},
        execution={"executor": "stacked"},
    )
    return list(run.history.seconds[1:-1])


def blend() -> list[Row]:
    """BlendDFL's round against a plain reading of its pseudocode: 20 peers, ring, 270 images, 5 epochs."""

    def plain(threads: int) -> float:
        torch.set_num_threads(threads)
        source, taken = images(), []
        x, y = source.x_train[: 20 * 270].unflatten(0, (20, 270)), source.y_train[: 20 * 270].view(20, 270)
        clients = PlainBlendDFL(x, y, epochs=5, batch=32, rounds=_ROUNDS)
        for t in range(4):
            start = time.perf_counter()
            clients.round(t)
            taken.append(time.perf_counter() - start)
        torch.set_num_threads(1)
        return statistics.median(taken[1:])  # the first has no teachers

    one, all_cores, ours = by_turns(
        lambda: plain(1),
        lambda: plain(cores()),
        lambda: statistics.median(seconds_of_rounds("blend-dfl", "ring")),
    )
    what = "blend-dfl: plain reading of its pseudocode,"
    return [
        Row(f"{what} one thread / ours", one, ours, 3.0, at_least=True),
        Row(f"{what} {cores()} threads / ours", all_cores, ours, 3.0, at_least=True),
    ]


def bandit() -> list[Row]:
    """PPDL's bandit, 100 nodes and groups of 3 (156,849 arms each), as a share of a round.

    The bandit is timed over 150 rounds, since it remembers what it pulled; learning over a few.
    """
    nodes, rounds = 100, 150
    links = make("full", peers=nodes, seed=0).graph(0)
    reachable = Links(links.receivers, links.senders)
    state, ids = Bandit.fresh(nodes, rounds, 3), torch.arange(nodes)
    start = time.perf_counter()
    for number in range(rounds):
        arms = state.draw(reachable, stream(0, "group", number, ids))
        reward = stream(0, "reward", number, ids).uniform(1)[:, 0]
        state = state.update(arms, reward, 0.1, torch.ones(nodes, dtype=torch.bool))
    ours = (time.perf_counter() - start) / rounds
    learning = simulate(
        "ppdl",
        data=images(),
        model="ppdl-cnn",
        partition="rotations(4)",
        topology="full",
        peers=nodes,
        rounds=3,
        preset="code",
        splitting={"samples_per_peer": 500, "test_samples_per_peer": 10, "validation": 0.2},
        evaluation={"every": 3, "global_accuracy": "never"},
        execution={"executor": "looped"},
    )
    return [Row("ppdl's bandit / round, 100 nodes", ours, learning.history.seconds[1], 0.01, at_least=False)]


def relative() -> list[Row]:
    """Every algorithm against D-PSGD at degree 2; BlendDFL also at degree 4."""
    rows = []
    for name in algorithms:
        topology = "star" if algorithms[name].facts.hub else "ring"  # type: ignore[attr-defined]
        rows.append(_row(name, topology, _WANTED.get(name)))
    rows.append(_row("blend-dfl", "random-regular(4)", 1.6))
    return rows


def _row(name: str, topology: str, wanted: float | None) -> Row:
    """The medians of many rounds, taken by turns.

    Not the best rounds: a round keeps both cores busy for so long that the best ones are luck, and D-PSGD
    against itself was up to 1.3.
    """
    base, ours = [], []
    for _ in range(2 if wanted is None else 6):
        base += seconds_of_rounds("d-psgd", "ring" if topology == "star" else topology)
        ours += seconds_of_rounds(name, topology)
    what = f"{name} on {topology} / d-psgd"
    return Row(what, statistics.median(ours), statistics.median(base), wanted, at_least=False)
