"""Where lower is better, tables, choices, pictures and the page say so: who learns nothing comes last."""

from __future__ import annotations

import dataclasses
import io
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from rich.console import Console

import coterie
from coterie.reporting import plots
from coterie.reporting.page.found import FoundRuns
from coterie.results.comparison import Comparison

PEERS, ROUNDS = 4, 4
HOW: dict[str, Any] = {
    "task": "regression",
    "model": "mlp(4)",
    "rounds": ROUNDS,
    "training": {"lr": 0.1, "batch_size": 8},
    "execution": {"executor": "stacked", "workers": 1},
}


@dataclasses.dataclass(frozen=True)
class Idle(coterie.ModelAlgorithm):
    """Keeps the model that it began with."""

    facts = coterie.Facts(paper="-", measured="after_local", communication="none")

    def round(self, state: Any, node: Any) -> Any:
        yield from ()
        return state


def amounts() -> list[tuple[Any, ...]]:
    """A few samples of the same sum at every peer, far from 0, where an untrained model is."""
    rng = np.random.default_rng(0)
    parts = [[rng.normal(size=(size, 3)) for size in (12, 40)] for _ in range(PEERS)]
    return [(a, 3 + a.sum(1), b, 3 + b.sum(1)) for a, b in parts]


@pytest.fixture(scope="module", name="done")
def _done(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("amounts") / "all"
    return coterie.compare(
        {"d-psgd": "d-psgd", "idle": Idle()}, amounts(), topology="full", seeds=2, run_dir=folder, **HOW
    )


def errors(done: Comparison, label: str) -> list[float]:
    """The root mean squared error of every peer of every seed, by NumPy."""
    pairs = [(run, peer, part) for run in done.runs[label] for peer, part in enumerate(amounts())]
    return [
        float(np.sqrt(np.mean((run.predict(peer, part[2]).numpy()[:, 0] - part[3]) ** 2)))
        for run, peer, part in pairs
    ]


def test_the_best_has_the_lowest_mean(done: Comparison) -> None:
    means = {label: statistics.fmean(errors(done, label)) for label in ("local", "idle")}
    assert means["local"] < means["idle"] - 1
    assert done.best == min(("local", "d-psgd", "idle"), key=lambda label: _mean(done, label)) != "idle"
    assert _mean(done, "idle") == pytest.approx(means["idle"], rel=1e-5)


def _mean(done: Comparison, label: str) -> float:
    return statistics.fmean(float(run.personal_scores.mean()) for run in done.runs[label])


def test_a_gain_is_what_is_lost_less(done: Comparison) -> None:
    results = done.results()
    assert [one["metric"] for one in results] == ["rmse"] * 6
    assert not any(one["higher_is_better"] for one in results)
    local = {one["seed"]: one["personal_rmse"]["mean"] for one in results if one["algorithm"] == "local"}
    for one in results:
        gain = local[one["seed"]] - one["personal_rmse"]["mean"]
        assert one["gain_over_local"] == pytest.approx(gain)
        assert (gain < -1) == (one["algorithm"] == "Idle")
        assert one["personal_rmse"]["worst_decile"] == max(one["personal_rmse"]["per_peer"])


def test_tables_put_the_lowest_in_bold(done: Comparison) -> None:
    lines = [line for line in done.latex().splitlines() if " & " in line][1:]
    bold = [line.split(" & ")[0] for line in lines if "mathbf" in line.split(" & ")[1]]
    assert bold == [done.best]
    shown = _printed(done)
    assert "rmse on each peer's own test data (lower is better)" in shown
    (idle,) = (line for line in shown.splitlines() if line.startswith("idle"))
    assert re.search(r" -\d", idle)  # its gain over Local


def _printed(done: Comparison) -> str:
    with io.StringIO() as file:
        Console(width=200, file=file).print(done.table())
        return file.getvalue()


def test_pictures_and_the_page_call_more_worse(done: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure) or path)
    groups = [done.runs["local"], done.runs["idle"]]
    plots.per_peer_scores(groups, ["local", "idle"], Path("a.png"))
    title = figures[0].axes[0].get_title()
    assert re.fullmatch(r"idle: 2\.\d+ worse, 8 of 8 above", title)
    assert done.folder is not None
    found = FoundRuns(done.folder.parent)
    found.look()
    said = found.compare(["all"])["words"]
    assert said[0].startswith(f"{done.best} comes out best: a mean rmse of ")
    assert any(re.search(r"Idle -[\d.]+ \(0 of 8 gain, 8 lose\)", one) for one in said)


def test_a_sweep_and_a_search_choose_the_lowest(tmp_path: Path) -> None:
    """A rate of next to nothing leaves the untrained model."""
    rates = {"training.lr": [1e-9, 0.1]}
    how = {**HOW, "training": {"batch_size": 8}, "rounds": 3}
    assert coterie.sweep(rates, "local", amounts(), **how).best == {"training.lr": "0.1"}
    found = coterie.sweep(rates, "local", amounts(), **how, optuna=6, out=tmp_path / "s")
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "s" / "study.journal"))
    )
    study = optuna.load_study(study_name="coterie", storage=storage)
    assert study.direction.name == "MINIMIZE"
    tried = {trial.params["training.lr"] for trial in study.trials}
    assert len(tried) == 2, "else it chose among one"
    assert found.best == {"training.lr": "0.1"}
