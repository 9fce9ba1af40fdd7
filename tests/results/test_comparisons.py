"""`coterie.compare` does what the command does, with names or objects, and gives tables and runs."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest
import torch

import coterie
from coterie.errors import ConfigError, RunFailedError, RunFolderError
from coterie.results.comparison import Comparison

SMALL: dict[str, Any] = {
    "model": "mlr",
    "partition": "rotations(2)",
    "topology": "full",
    "peers": 4,
    "rounds": 2,
    "splitting": {"samples_per_peer": 20, "test_samples_per_peer": 10},
    "execution": {"executor": "stacked", "workers": 1},
}
HALF_OF_TWO = 12.706204736 / math.sqrt(2)  # Student's 97.5 % quantile for one degree of freedom, over sqrt(n)


@dataclasses.dataclass(frozen=True)
class Lazy(coterie.ModelAlgorithm):
    """Keeps a share of what it had."""

    keeps: float = 1.0
    facts = coterie.Facts(paper="-", measured="after_local", communication="none")

    def round(self, state: Any, node: Any) -> Any:
        yield from ()
        mine = node.train(state.params)
        mixed = {
            name: self.keeps * state.params[name] + (1 - self.keeps) * value for name, value in mine.items()
        }
        return coterie.ModelState(mixed)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparisons") / "c"


@pytest.fixture(scope="module", name="done")
def _done(folder: Path) -> Comparison:
    return coterie.compare(["d-psgd", "oracle"], **SMALL, seeds=2, run_dir=folder)


def test_local_is_added_and_every_algorithm_has_a_run_for_each_seed(done: Comparison) -> None:
    assert list(done.runs) == ["local", "d-psgd", "oracle"]
    assert done.seeds == [0, 1]
    assert [run.experiment.seed for run in done.runs["oracle"]] == [0, 1]
    assert all(run.experiment.training.work == "equal" for group in done.runs.values() for run in group)
    assert repr(done).startswith("<Comparison on digits, 2 seeds, accuracy: local 0.")


def test_the_numbers_are_those_of_single_runs(done: Comparison) -> None:
    alone = coterie.simulate("oracle", **SMALL, seed=1, training={"work": "equal"})
    assert torch.equal(done.runs["oracle"][1].personal_accuracy, alone.personal_accuracy)


def test_the_best_has_the_highest_mean(done: Comparison) -> None:
    means = {
        name: statistics.fmean(float(run.personal_accuracy.mean()) for run in group)
        for name, group in done.runs.items()
    }
    assert means[done.best] == max(means.values())


def test_the_frame_has_means_and_students_intervals(done: Comparison) -> None:
    table = done.frame("pandas").set_index(["algorithm", "metric"])
    values = [float(run.personal_accuracy.mean()) for run in done.runs["d-psgd"]]
    line = table.loc[("d-psgd", "personal_accuracy")]
    assert line["mean"] == pytest.approx(statistics.fmean(values))
    assert line["std"] == pytest.approx(statistics.stdev(values))
    assert line["high"] - line["mean"] == pytest.approx(HALF_OF_TWO * statistics.stdev(values), rel=1e-6)
    gains = [
        float(mine.personal_accuracy.mean() - alone.personal_accuracy.mean())
        for mine, alone in zip(done.runs["d-psgd"], done.runs["local"], strict=True)
    ]
    assert table.loc[("d-psgd", "gain_over_local")]["mean"] == pytest.approx(statistics.fmean(gains))
    assert ("local", "gain_over_local") not in table.index


def test_files_hold_the_same_lines(done: Comparison, tmp_path: Path) -> None:
    expected = done.frame("pandas")
    with open(done.csv(tmp_path / "t.csv"), newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["mean"]) for line in lines] == expected["mean"].to_list()
    pandas.testing.assert_frame_equal(pandas.read_parquet(done.parquet(tmp_path / "t.parquet")), expected)
    assert polars.read_parquet(tmp_path / "t.parquet")["metric"].to_list() == expected["metric"].to_list()
    assert (tmp_path / "t.tex").exists() is False
    assert done.latex(tmp_path / "t.tex") == (tmp_path / "t.tex").read_text()


def test_a_folder_that_is_not_there_is_not_written_to(done: Comparison, tmp_path: Path) -> None:
    for write in (done.csv, done.parquet, done.latex):
        with pytest.raises(RunFolderError, match="its folder does not exist"):
            write(tmp_path / "no" / "table")


def test_latex_has_means_intervals_and_the_best_in_bold(done: Comparison) -> None:
    lines = done.latex().splitlines()
    rows = {line.split(" & ")[0]: line.removesuffix(r" \\").split(" & ") for line in lines if " & " in line}
    assert rows["algorithm"][1] == r"accuracy in \%"
    values = [100 * float(run.personal_accuracy.mean()) for run in done.runs[done.best]]
    half = HALF_OF_TWO * statistics.stdev(values)
    assert rows[done.best][1] == rf"$\mathbf{{{statistics.fmean(values):.1f} \pm {half:.1f}}}$"
    worse = [name for name in done.runs if name != done.best]
    assert not any("mathbf" in rows[name][1] for name in worse)
    assert rows["local"][3] == "--"


def test_it_is_opened_as_it_was(done: Comparison, folder: Path) -> None:
    opened = coterie.open(folder)
    assert isinstance(opened, Comparison)
    assert opened.results() == done.results()
    assert repr(opened) == repr(done)
    assert opened.latex() == done.latex()


def test_the_command_leaves_what_python_leaves(done: Comparison, folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "compare.json", "report.html", *(f"{name}-s{seed}" for name in done.runs for seed in (0, 1)),
    }  # fmt: skip
    planned = json.loads((folder / "compare.json").read_text())
    assert [entry["label"] for entry in planned][:2] == ["local-s0", "local-s1"]


def test_objects_of_ones_own_are_compared(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(30, 4, generator=generator), torch.arange(30) % 3) for _ in range(2)]
    own = {"data": data, "model": torch.nn.Linear(4, 3), "topology": [(0, 1)], "rounds": 2}
    done = coterie.compare([Lazy(), Lazy(keeps=0.0), "d-psgd"], **own)
    assert list(done.runs) == ["local", "Lazy", "Lazy(keeps=0.0)", "d-psgd"]
    untrained, trained = done.runs["Lazy"][0], done.runs["Lazy(keeps=0.0)"][0]
    assert torch.equal(untrained.model(0)["weight"], own["model"].weight)  # type: ignore[attr-defined]
    assert torch.equal(trained.model(0)["weight"], done.runs["local"][0].model(0)["weight"])
    named = coterie.compare({"mine": Lazy(0.5)}, **own)
    assert list(named.runs) == ["local", "mine"]


def test_an_interrupted_comparison_is_opened_and_goes_on(
    folder: Path, done: Comparison, tmp_path: Path
) -> None:
    def interrupt(record: Any, history: Any) -> None:
        interrupt.seen += 1  # type: ignore[attr-defined]
        if interrupt.seen == 7:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    interrupt.seen = 0  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt, match="resume_from="):
        coterie.compare(["d-psgd", "oracle"], **SMALL, seeds=2, run_dir=tmp_path / "c", observer=interrupt)
    opened = coterie.open(tmp_path / "c")
    assert isinstance(opened, Comparison)
    assert opened.seeds == [0]
    assert len(opened.results()) == 3
    resumed = coterie.compare([], resume_from=tmp_path / "c")
    scores = [[r["personal_accuracy"] for r in one.results()] for one in (resumed, done)]
    assert scores[0] == scores[1]


def test_a_comparison_without_a_finished_seed_says_so(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_bytes((folder / "compare.json").read_bytes())
    opened = coterie.open(tmp_path)
    assert "no seed finished by all" in repr(opened)
    with pytest.raises(RunFolderError, match="no seed that all algorithms have finished"):
        opened.latex()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        (["d-psdg"], "did you mean d-psgd"),
        (["d-psgd", "d-psgd"], "named twice"),
        ([Lazy], r"pass an instance: Lazy\(...\)"),
        ([3], "a name or a coterie.Algorithm, not 3"),
        ([], "which algorithms"),
        (["fedrep", "oracle"], "oracle"),
    ],
)
def test_wrong_algorithms_get_a_sentence_before_anything_runs(
    algorithms: Sequence[Any], message: str, tmp_path: Path
) -> None:
    changed = {**SMALL, "partition": "iid"}
    with pytest.raises(ConfigError, match=message):
        coterie.compare(algorithms, **changed, run_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_folder_that_is_used_is_refused(folder: Path, done: Comparison) -> None:
    with pytest.raises(RunFolderError, match="exists already"):
        coterie.compare(["d-psgd"], **SMALL, run_dir=folder)


def test_a_run_that_diverges_says_how_to_go_on(tmp_path: Path) -> None:
    training = {"lr": 1e38}
    with pytest.raises(RunFailedError, match=r"finished: none; go on.*resume_from"):
        coterie.compare(["d-psgd"], **{**SMALL, "rounds": 5}, training=training, run_dir=tmp_path / "c")
