"""Validation scores stand beside test scores wherever a peer has validation data."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peers_in_memory import SMALL, World, simulated

import coterie
from coterie.experiments.real_peers.peer_records import Records, last_of
from coterie.experiments.runs.running import resume
from coterie.testing import run_virtually
from coterie.training import Training

COLUMNS = [
    f"validation_{what}_{point}" for what in ("accuracy", "loss") for point in ("after_local", "after_mixing")
]
TABLE: dict[str, Any] = {"model": "mlr", "rounds": 3, "topology": "ring", "evaluation": {"every": 1}}


def samples(peers: int = 4, validation: int = 10) -> list[dict[str, Any]]:
    """The last peer has no validation data."""
    rng = np.random.default_rng(0)
    data = []
    for peer in range(peers):
        sizes = {"train": 30, "validation": validation if peer < peers - 1 else 0, "test": 12}
        parts = {}
        for part, n in sizes.items():
            y = rng.integers(0, 3, n)
            parts[part] = ((np.eye(3)[y] + rng.normal(size=(n, 3))).astype("float32"), y)
        data.append(parts)
    return data


def test_they_are_those_of_the_models_on_the_validation_data(tmp_path: Path) -> None:
    """The last round's models after mixing, run by plain PyTorch."""
    data = samples()
    run = coterie.simulate(
        "d-psgd", data=coterie.from_peers(data, n_classes=3), run_dir=tmp_path / "r", **TABLE
    )
    found = run.result()["validation_accuracy_after_mixing"]["per_peer"]
    losses = run.history.last("validation_loss", "after_mixing")
    assert losses is not None
    for peer, parts in enumerate(data[:-1]):
        run.module.load_state_dict(run.model(peer))
        x, y = (torch.from_numpy(part) for part in parts["validation"])
        with torch.no_grad():
            logits = run.module.eval()(x)
        assert found[peer] == pytest.approx(float((logits.argmax(1) == y).double().mean()), abs=1e-6)
        loss = torch.nn.functional.cross_entropy(logits, y)
        assert float(losses[peer]) == pytest.approx(float(loss), rel=1e-4)
    assert found[-1] is None
    with open(tmp_path / "r" / "metrics.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert set(COLUMNS) <= set(lines[0])
    assert float(lines[-2]["validation_accuracy_after_mixing"]) == pytest.approx(found[-2])
    assert lines[-1]["validation_accuracy_after_mixing"] == ""
    assert run.scores_over_time("validation_accuracy").shape == (3, 4)
    assert coterie.open(tmp_path / "r").result() == run.result()


def test_without_validation_data_there_are_none(tmp_path: Path) -> None:
    run = coterie.simulate("d-psgd", data="digits", peers=4, run_dir=tmp_path / "r", **TABLE)
    assert run.result()["validation_accuracy"] is None
    header = (tmp_path / "r" / "metrics.csv").read_text().partition("\n")[0]
    assert "validation" not in header


class Interrupted(Exception):
    pass


def _interrupt(record: Any, history: Any) -> None:
    if record.round == 1:
        raise Interrupted


def test_a_resumed_run_has_the_same(tmp_path: Path) -> None:
    table = {
        **TABLE, "data": "digits", "peers": 4, "splitting": {"validation": 0.2},
        "execution": {"checkpoint_seconds": 0.0},
    }  # fmt: skip
    whole = coterie.simulate("d-psgd", run_dir=tmp_path / "whole", **table)
    with pytest.raises(Interrupted):
        coterie.simulate("d-psgd", run_dir=tmp_path / "r", observer=_interrupt, **table)
    resumed = resume(tmp_path / "r")
    columns = [(tmp_path / name / "metrics.csv").read_text() for name in ("whole", "r")]
    assert columns[0] == columns[1]
    assert resumed.result()["validation_accuracy"] == whole.result()["validation_accuracy"]


def test_real_peers_record_the_same(tmp_path: Path) -> None:
    world = World("d-psgd", tmp_path, SMALL, training=Training(epochs=1, batch_size=5, lr=0.1))
    run_virtually(world.play())
    _, _, rounds = simulated(world)
    for number in range(world.peers):
        records = Records(tmp_path / f"{number}.jsonl")
        for report, record in zip(world.reports[number], rounds, strict=True):
            for point, evaluation in record.evaluations.items():
                expected = float(evaluation.validation["accuracy"][number])
                assert report.scores["validation_accuracy"][point] == pytest.approx(expected, abs=1e-6)
            records.append(report)
        assert last_of(records.read(), "validation_accuracy") == report.scores["validation_accuracy"]
