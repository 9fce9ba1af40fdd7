"""Real peers learn every task from files of their own, with the simulator's scores, and predict with it."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.catalogue import tasks
from coterie.cli.swarm.folders import make_folders
from coterie.data.own.one_peer import load_own
from coterie.data.targets import targets_of
from coterie.experiments.real_peers.joining import join
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records
from coterie.experiments.real_peers.predicting import personal_model, predicted, samples_for
from coterie.peer.trust.settings import SETTINGS_FILE

NAMES, ROUNDS = ("anna", "bob"), 2
NET = """
from torch import nn

class Tagger(nn.Module):
    def __init__(self, shape, n_classes):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, n_classes)

    def forward(self, x):
        return self.head(self.embedding(x))
"""


def arrays(task: str, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    if task == "next-token":
        tokens = rng.integers(5, size=(40, 4))
        y = tokens[:, 1:].copy()
        y[::3, -1] = -100
        whole = tokens[:, :-1], y
    else:
        signal = x[:, 0] + 0.3 * x[:, 1]
        targets = {
            "classification": np.digitize(signal, [-0.5, 0.5]),
            "binary": (signal > 0).astype(int),
            "multi-label": (x > 0).astype(int),
            "regression": signal,
        }
        whole = x, targets[task]
    x, y = whole
    return {"x": x[:30], "y": y[:30], "x_test": x[30:], "y_test": y[30:]}


@pytest.mark.parametrize("task", list(tasks))
def test_real_peers_have_the_scores_of_the_simulator(task: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    table: dict[str, Any] = {
        "algorithm": "d-psgd",
        "task": task,
        "model": f"{tmp_path / 'net.py'}:Tagger" if task == "next-token" else "mlp(4)",
        "peers": 2,
        "rounds": ROUNDS,
        "training": {"lr": 0.1, "batch_size": 8},
        "execution": {"executor": "looped"},
    }
    classes = {"classification": 3, "next-token": 5}.get(task)
    agreed = table if classes is None else {**table, "classes": classes}
    places = make_folders(tmp_path, agreed, list(NAMES), "synchronous")
    data = []
    for seed, place in enumerate(places):
        np.savez(place / "own.npz", **arrays(task, seed))
        settings = (place / SETTINGS_FILE).read_text()
        changed = "\n".join(line for line in settings.splitlines() if not line.startswith("data ="))
        (place / SETTINGS_FILE).write_text(f'data = "own.npz"\n{changed}\n')
        data.append(load_own(place / "own.npz", targets_of(task)))

    async def learn() -> None:
        await asyncio.gather(*(join(place).take_part() for place in places))

    asyncio.run(learn())
    federation = coterie.from_peers(data, task=task, n_classes=classes)
    expected = coterie.simulate(data=federation, **{k: v for k, v in table.items() if k != "peers"})
    metric = expected.metric
    for number, place in enumerate(places):
        line = Records(place / RECORDS_FILE).read()[-1]
        assert line["metric"] == metric.name
        found = line[metric.name]["after_mixing"]
        assert found == pytest.approx(
            float(expected.scores_over_time(point="after_mixing")[-1][number]), rel=1e-4
        )
    _check_predictions(places[1], task, found)


def _check_predictions(place: Path, task: str, expected: float) -> None:
    """The score on the peer's test data is that of its records."""
    own = arrays(task, 1)
    np.savez(place / "new.npz", x=own["x_test"], y=own["y_test"])
    model = personal_model(place)
    x, y = samples_for(model, place / "new.npz")
    assert y is not None
    outputs = model.outputs(x)
    assert model.score(outputs, y) == pytest.approx(expected, rel=1e-4)
    columns = predicted(model, outputs)
    assert {len(column) for column in columns.values()} == {10}
    first = next(iter(columns.values()))[0]
    if task == "next-token":
        assert len(first.split()) == 3
    else:
        assert math.isfinite(float(first))


def test_a_table_may_hold_numbers_to_predict(tmp_path: Path) -> None:
    (tmp_path / "ward.csv").write_text("age,pulse,label\n1,2.5,0.25\n3,4,-1.5\n")
    x, y = load_own(tmp_path / "ward.csv", "numbers")
    assert y.tolist() == [[0.25], [-1.5]]
    assert len(x) == 2
    with pytest.raises(coterie.CoterieError, match="several targets for each sample need an"):
        load_own(tmp_path / "ward.csv", "labels")
