"""Real peers whose every part is the user's own, with arguments: the simulator's models and scores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.cli.swarm.folders import make_folders
from coterie.experiments.real_peers.joining import join
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records

SOURCE = """
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import coterie
from coterie.data import Assignment
from coterie.learning.tasks import Classification
from coterie.topology import GraphKind, both_ways


@dataclass(frozen=True)
class Keeping(coterie.ModelAlgorithm):
    keep: float = 0.5

    facts = coterie.Facts(paper="ours", measured="after_mixing", communication="one model per link")

    def round(self, state, node):
        mine = node.train(state.params)
        node.measure(after_local=mine)
        inbox = yield coterie.Exchange(mine)
        mixed = coterie.average(mine, inbox)
        return coterie.ModelState({k: self.keep * mine[k] + (1 - self.keep) * mixed[k] for k in mine})


class Net(nn.Module):
    def __init__(self, shape, n_classes, hidden: int = 5):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, n_classes))

    def forward(self, x):
        return self.layers(x)


def load(peers, seed, noise=1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, size=120)
    return coterie.from_arrays(np.eye(3)[y] + noise * rng.normal(size=(120, 3)), y, seed=seed)


@dataclass(frozen=True)
class FirstHasMost:
    most: int

    def assign(self, source, peers, rng):
        owner = np.arange(len(source.y_train)) % (peers - 1) + 1
        owner[: self.most] = 0
        return Assignment(owner)


@dataclass(frozen=True)
class Line(GraphKind):
    step: int = 1

    def links(self, peers, seed, phase):
        first = torch.arange(peers - self.step)
        return both_ways(first, first + self.step)


@dataclass(frozen=True)
class Scaled(Classification):
    times: float = 2.0

    name = "scaled"

    def losses(self, outputs, y):
        return self.times * super().losses(outputs, y)


def sure(y, predictions, bound: float = 0.5):
    return float((predictions[np.arange(len(y)), y] > bound).mean())
"""


def test_they_have_the_numbers_of_the_simulator(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(SOURCE)
    table: dict[str, Any] = {
        "algorithm": f"{own}:Keeping(0.25)",
        "data": f"{own}:load(noise=0.5)",
        "model": f"{own}:Net(hidden=7)",
        "partition": f"{own}:FirstHasMost(50)",
        "topology": f"{own}:Line(1)",
        "task": f"{own}:Scaled(3)",
        "metrics": [f"{own}:sure(0.4)", "accuracy"],
        "peers": 3,
        "rounds": 2,
        "training": {"batch_size": 8, "lr": 0.05},
    }
    places = make_folders(tmp_path, table, ["anna", "bob", "carl"], "synchronous")

    async def learn() -> list[Any]:
        joined = [join(place) for place in places]
        await asyncio.gather(*(one.take_part() for one in joined))
        return [one.peer for one in joined]

    peers = asyncio.run(learn())
    expected = coterie.simulate(**table, execution={"executor": "looped"})
    for number, (peer, place) in enumerate(zip(peers, places, strict=True)):
        for name, value in peer.algorithm.personal(peer.state).items():
            torch.testing.assert_close(value[0], expected.params[name][number], rtol=1e-4, atol=1e-6)
        line = Records(place / RECORDS_FILE).read()[-1]
        assert line["metric"] == "sure_0_4"
        for point in ("after_local", "after_mixing"):
            simulated = float(expected.scores_over_time(point=point)[-1][number])  # type: ignore[arg-type]
            assert line["sure_0_4"][point] == pytest.approx(simulated, abs=1e-6)
