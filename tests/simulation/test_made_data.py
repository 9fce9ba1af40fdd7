"""Runs on data that are made when needed give the numbers of runs on the same data held in a pool."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coterie
from coterie.data import Federation
from coterie.data.sources import synthetic


def hold(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs hold so many samples, all others are made when needed."""
    holding = Federation.holding
    monkeypatch.setattr(synthetic, "MOST_HELD", 0)
    monkeypatch.setattr(Federation, "holding", lambda self, room: holding(self, 240 * samples))


def run(**changes: Any) -> coterie.Run:
    experiment: dict[str, Any] = {
        "algorithm": "d-psgd",
        "data": "synthetic(0.5,0.5,cap=400)",
        "topology": "ring",
        "peers": 9,
        "rounds": 3,
        "execution": {"executor": "stacked"},
    }
    return coterie.simulate(**experiment | changes)


CASES = {
    "stacked": {},
    "looped": {"execution": {"executor": "looped"}, "model": "mlp(8)"},
    "several networks": {"models": {"mlp(8)": "2-4"}, "algorithm": "local"},
    "validation": {"algorithm": "ppdl", "splitting": {"validation": 0.3, "samples_per_peer": 50}},
    "teachers": {"algorithm": "kd-pdfl", "topology": "full"},
    "hub": {"algorithm": "pfedkd-wcl", "topology": "star"},
    "oracle": {"algorithm": "oracle", "data": "synthetic(0.5,0.5,size=40,clusters=3)", "topology": "full"},
    "liars": {"faults": {"byzantine": {"label-flip": "1,4-5"}}},
    "weights": {"training": {"class_weights": "balanced"}},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("samples", [0, 1200])
def test_made_data_give_the_numbers_of_held_data(
    case: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = run(**CASES[case])
    hold(samples, monkeypatch)
    made = run(**CASES[case])
    for point in ("after_local", "after_mixing"):
        assert torch.equal(made.scores_over_time("loss", point), held.scores_over_time("loss", point))
    for peer in (0, 4, 8):
        for name, value in made.model(peer).items():
            assert torch.equal(value, held.model(peer)[name])


def test_real_and_simulated_peers_have_the_same_made_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process with one row makes is what the simulator makes for that row."""
    hold(0, monkeypatch)
    data = synthetic.Synthetic(size=12).deal(6, 0)
    mine = data.of_nodes(torch.tensor([4]), None).spread(4, 6)
    assert mine.train.sizes.tolist() == [0, 0, 0, 0, 9, 0]
    own, all_ = mine.held(mine.train, torch.tensor([4])), data.held(data.train, torch.arange(6))
    assert torch.equal(own.x, all_.x[36:45])  # type: ignore[index, arg-type]
