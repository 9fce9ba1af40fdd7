"""`coterie.sweep` does what the command does, and gives lines, the best values and runs."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

import coterie
from coterie.errors import ConfigError, RunFolderError
from coterie.results.sweep import Sweep

SMALL: dict[str, Any] = {
    "model": "mlr",
    "partition": "dirichlet(0.5)",
    "topology": "ring",
    "peers": 3,
    "rounds": 2,
    "splitting": {"samples_per_peer": 20, "test_samples_per_peer": 10},
    "execution": {"executor": "stacked", "workers": 1},
}


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweeps") / "s"


@pytest.fixture(scope="module", name="done")
def _done(folder: Path) -> Sweep:
    over = {"algorithm": ["local", "d-psgd"], "training.lr": [0.001, 0.1]}
    return coterie.sweep(over, **SMALL, seeds=2, out=folder)


def test_every_combination_has_a_run_for_each_seed(done: Sweep) -> None:
    assert len(done.results()) == len(done.runs) == 8
    assert not done.broken
    alone = coterie.simulate("d-psgd", **SMALL, seed=1, training={"lr": 0.1, "work": "equal"})
    line = next(
        line
        for line in done.results()
        if (line["algorithm"], line["training.lr"], line["seed"]) == ("d-psgd", "0.1", 1)
    )
    assert line["personal_accuracy"] == pytest.approx(float(alone.personal_accuracy.mean()))


def test_the_best_has_the_highest_mean_over_seeds(done: Sweep) -> None:
    groups: dict[Any, list[float]] = {}
    for line in done.results():
        groups.setdefault((line["algorithm"], line["training.lr"]), []).append(line["personal_accuracy"])
    algorithm, lr = max(groups, key=lambda key: statistics.fmean(groups[key]))
    assert done.best == {"algorithm": algorithm, "training.lr": lr}
    assert repr(done) == (
        f"<Sweep over algorithm, training.lr, 8 of 8 runs, best: algorithm {algorithm}, training.lr {lr}>"
    )


def test_its_runs_have_records_and_links_but_no_models(done: Sweep) -> None:
    run = done.runs[-1]
    assert run.experiment.algorithm == "d-psgd"
    assert len(run.frame("peers")) == 6
    assert len(run.frame("links")) > 0
    assert torch.allclose(run.shares.sum(1), torch.ones(3, dtype=torch.double))
    with pytest.raises(RunFolderError, match="has no checkpoint"):
        run.model(0)


def test_the_same_sweep_runs_nothing_again(
    done: Sweep, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise AssertionError("it ran again")

    monkeypatch.setattr("coterie.experiments.cells.working_off.run_or_resume", refuse)
    over = ["algorithm=local,d-psgd", "training.lr=0.001,0.1"]
    assert coterie.sweep(over, **SMALL, seeds=2, out=folder).results() == done.results()


def test_it_is_opened_as_it_was_also_in_part(done: Sweep, folder: Path, tmp_path: Path) -> None:
    opened = coterie.open(folder)
    assert isinstance(opened, Sweep)
    assert opened.summary() == done.summary()
    assert opened.latex() == done.latex()
    (tmp_path / "sweep.json").write_bytes((folder / "sweep.json").read_bytes())
    part = coterie.open(tmp_path)
    assert repr(part) == "<Sweep over algorithm, training.lr, 0 of 8 runs, best: none so far>"
    assert {line["status"] for line in part.results()} == {"not run"}
    assert part.runs == []  # type: ignore[union-attr]


def test_frames_are_the_lines(done: Sweep) -> None:
    assert done.frame("results", "pandas")["seed"].to_list() == [0, 1] * 4
    summary = done.frame(library="pandas")
    assert summary["mean"].to_list() == [line["mean"] for line in done.summary()]
    with pytest.raises(ConfigError, match="did you mean summary"):
        done.frame("sumary")  # type: ignore[arg-type]


def test_latex_has_a_row_for_each_combination(done: Sweep, tmp_path: Path) -> None:
    lines = done.latex(tmp_path / "t.tex").splitlines()
    rows = [line for line in lines if line.startswith(("local", "d-psgd"))]
    assert [row.split(" & ")[:2] for row in rows] == [
        ["local", "0.001"], ["local", "0.1"], ["d-psgd", "0.001"], ["d-psgd", "0.1"],
    ]  # fmt: skip
    best = [row for row in rows if "mathbf" in row.split(" & ")[2]]
    assert [row.split(" & ")[:2] for row in best] == [list(done.best.values())]
    assert (tmp_path / "t.tex").read_text().splitlines() == lines


def test_without_a_folder_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = coterie.sweep({"training.lr": [0.1]}, **SMALL)
    assert len(done.frame("results")) == 1
    del done
    assert not list(tmp_path.iterdir())


def test_objects_of_ones_own_run_in_a_new_folder_only(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(30, 4, generator=generator), torch.arange(30) % 3) for _ in range(2)]
    own: dict[str, Any] = {"data": data, "model": torch.nn.Linear(4, 3), "rounds": 2}
    done = coterie.sweep({"training.lr": [0.0, 0.5]}, **own, out=tmp_path / "s")
    alone = coterie.simulate(**own, training={"lr": 0.5, "work": "equal"})
    assert done.results()[1]["personal_accuracy"] == pytest.approx(float(alone.personal_accuracy.mean()))
    with pytest.raises(RunFolderError, match=r"is not empty, .* with objects cannot go on"):
        coterie.sweep({"training.lr": [0.0, 0.5]}, **own, out=tmp_path / "s")


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"training.rl": [0.1, 0.2]}, "unknown key"),
        ({"training.lr": [0.1, 0.10]}, "the same value"),
        ({"training.lr": []}, "not of the form"),
        ({"model": [torch.nn.Linear]}, "names, numbers, lists"),
        ({}, "what to sweep over"),
    ],
)
def test_wrong_axes_get_a_sentence(over: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        coterie.sweep(over, **{**SMALL, "model": None}, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "content", [b"{", b"[3]", b'[{"labels": {}}]', b'[{"labels":{},"table":{"rounds":"x"},"folder":""}]']
)
def test_a_damaged_plan_gets_a_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"sweep\.json cannot be read"):
        coterie.open(tmp_path)


def test_reproductions_are_opened(tmp_path: Path) -> None:
    number = {"row": "local", "column": "a", "metric": "personal", "mean": 50.0, "printed": 51.2}
    claims = [
        {"says": "x", "status": "holds", "detail": ""},
        {"says": "y", "status": "unknown", "detail": ""},
    ]
    result = {"name": "p/t", "scale": "smoke", "numbers": [number], "claims": claims, "missing": [{}]}
    (tmp_path / "results.json").write_text(json.dumps(result))
    opened = coterie.open(tmp_path)
    assert repr(opened) == "<Reproduced p/t at scale smoke, 1 of 2 claims hold, 1 runs missing>"
    frame = opened.frame("pandas")
    pandas.testing.assert_frame_equal(frame, pandas.DataFrame([number]))
    (tmp_path / "results.json").write_text('{"name": "x"}')
    with pytest.raises(RunFolderError, match="it has no 'scale'"):
        coterie.open(tmp_path)


def test_the_folder_of_a_sweep_has_another_name_than_that_of_a_run() -> None:
    with pytest.raises(ConfigError, match=r"write out=\.\.\. in place of run_dir"):
        coterie.sweep({"training.lr": [0.1]}, run_dir="somewhere")
