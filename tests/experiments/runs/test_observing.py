"""Observers see a run begin, go and end, and may end it; plain functions do as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import ConfigError

SMALL: dict[str, Any] = {
    "algorithm": "d-psgd",
    "model": "mlr",
    "topology": "ring",
    "peers": 4,
    "rounds": 5,
    "splitting": {"samples_per_peer": 20, "test_samples_per_peer": 10},
    "execution": {"executor": "stacked", "workers": 1},
}


class Diary(coterie.Observer):
    """Writes down what it is told, and ends the run after some round."""

    def __init__(self, last: int | None = None, answer: str | bool = "enough") -> None:
        self.pages: list[str] = []
        self.last, self.answer = last, answer

    def begin(self, experiment: Any, history: Any) -> None:
        self.pages.append(f"begin {experiment.algorithm} after {len(history.seconds)}")

    def round(self, record: Any, history: Any) -> str | bool | None:
        self.pages.append(f"round {record.round}")
        return self.answer if record.round == self.last else None

    def end(self, run: coterie.Run) -> None:
        self.pages.append(f"end {len(run.history.seconds)}")


def test_everyone_is_told_everything_in_order() -> None:
    first, second, seen = Diary(), Diary(), []
    coterie.simulate(
        **{**SMALL, "rounds": 2}, observer=[first, lambda record, history: seen.append(record.round), second]
    )
    expected = ["begin d-psgd after 0", "round 0", "round 1", "end 2"]
    assert first.pages == second.pages == expected
    assert seen == [0, 1]


def test_a_run_that_is_ended_has_the_rounds_so_far_and_the_reason() -> None:
    whole, cut = coterie.simulate(**SMALL), coterie.simulate(**SMALL, observer=Diary(last=2))
    assert cut.stopped == "enough"
    assert whole.stopped is None
    assert len(cut.history.seconds) == 3
    assert torch.equal(cut.accuracy_over_time(), whole.accuracy_over_time()[:3])
    assert cut.result()["rounds"] == 3
    assert cut.result()["stopped"] == "enough"
    assert "ended early: enough" in repr(cut)


@pytest.mark.parametrize("answer", [True, lambda record, history: True])
def test_true_ends_a_run_as_well(answer: Any) -> None:
    observer = answer if callable(answer) else Diary(last=0, answer=answer)
    assert coterie.simulate(**SMALL, observer=observer).stopped == "an observer ended the run"


def test_a_run_that_was_ended_does_not_go_on_when_it_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cut = coterie.simulate(**SMALL, observer=Diary(last=2), run_dir=folder)
    resumed = coterie.simulate(resume_from=folder)
    assert resumed.stopped == "enough"
    assert torch.equal(resumed.accuracy_over_time(), cut.accuracy_over_time())
    assert all(torch.equal(resumed.params[name], cut.params[name]) for name in cut.params)
    assert json.loads((folder / "result.json").read_text())["stopped"] == "enough"


def test_an_interrupted_run_begins_again_with_its_history(tmp_path: Path) -> None:
    def interrupt(record: Any, history: Any) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    execution = {**SMALL["execution"], "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        coterie.simulate(**{**SMALL, "execution": execution}, run_dir=tmp_path / "run", observer=interrupt)
    diary = Diary()
    coterie.simulate(resume_from=tmp_path / "run", observer=diary)
    assert diary.pages[:2] == ["begin d-psgd after 2", "round 2"]


@pytest.mark.parametrize(
    ("wrong", "advice"), [(Diary, r"pass an instance: Diary\(\)"), (3, "see coterie.Observer")]
)
def test_what_is_no_observer_gets_a_sentence_before_anything_runs(
    wrong: Any, advice: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=advice):
        coterie.simulate(**SMALL, observer=wrong, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
