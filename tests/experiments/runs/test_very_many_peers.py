"""Runs of more peers than are listed one by one: samples, quantiles over all, and the same after a resume."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie import spreads
from coterie.experiments.runs.records import History
from coterie.reporting.numbers.curves import learning_curve
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.numbers.known import OfRun
from coterie.reporting.page.report import leave_report
from coterie.results.comparison import Comparison
from coterie.simulation import RoundRecord

PEERS = 6000
EXPERIMENT: dict[str, Any] = {
    "algorithm": "d-psgd",
    "data": "synthetic(0.5,0.5,size=4,clusters=3)",
    "model": "mlr",
    "topology": "random-regular(4)",
    "peers": PEERS,
    "rounds": 3,
    "execution": {"executor": "stacked", "checkpoint_seconds": 0.0},
}


class Everyone(coterie.Observer):
    """Keeps what all peers scored, and may end the run by an error."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.dies_after = dies_after
        self.accuracy: list[np.ndarray[Any, np.dtype[np.float64]]] = []

    def round(self, record: RoundRecord, history: History) -> None:
        self.accuracy.append(record.evaluations["after_mixing"].metrics["accuracy"].double().numpy())
        if record.round + 1 == self.dies_after:
            raise RuntimeError("power failure")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, coterie.Run, Everyone]:
    folder, seen = tmp_path_factory.mktemp("many") / "run", Everyone()
    return folder, coterie.simulate(**EXPERIMENT, run_dir=folder, observer=seen), seen


def lines_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_spread_is_what_numpy_says() -> None:
    values = np.random.default_rng(0).normal(size=977)
    values[::50] = np.nan
    found = spreads.Spread.of(values)
    known = np.sort(values[~np.isnan(values)])
    tenth = math.ceil(len(known) / 10)
    assert found is not None
    assert found.measured == len(known)
    assert found.mean == pytest.approx(known.mean())
    assert found.std == pytest.approx(known.std())
    assert found.lowest_tenth == pytest.approx(known[:tenth].mean())
    assert found.highest_tenth == pytest.approx(known[-tenth:].mean())
    assert found.named_quantiles()["median"] == pytest.approx(np.median(known))
    assert (found.named_quantiles()["min"], found.named_quantiles()["max"]) == (known[0], known[-1])
    assert spreads.Spread.of(np.full(3, np.nan)) is None
    line = dict(zip(spreads.COLUMNS, map(str, found.line()), strict=True))
    assert spreads.Spread.read(line) == found


def test_up_to_five_thousand_peers_everyone_is_listed() -> None:
    assert spreads.listed(spreads.MOST_LISTED) is None
    some = spreads.listed(1_000_000)
    assert some is not None
    assert len(np.unique(some)) == spreads.SAMPLE
    assert (some[0], some[-1]) == (0, 999_999)


def test_records_are_a_sample_and_quantiles_over_all(done: tuple[Path, coterie.Run, Everyone]) -> None:
    folder, _, seen = done
    some = spreads.evenly(PEERS)
    lines = lines_of(folder / "metrics.csv")
    assert [int(line["peer"]) for line in lines] == some.tolist() * 3
    of_round = np.array([float(line["accuracy_after_mixing"]) for line in lines]).reshape(3, -1)
    np.testing.assert_allclose(of_round, np.stack(seen.accuracy)[:, some], rtol=1e-6)
    assert not (folder / "links.csv").exists()
    people = lines_of(folder / "peers.csv")
    assert [int(line["peer"]) for line in people] == some.tolist()
    assert [int(line["cluster"]) for line in people] == (some % 3).tolist()
    quantiles = [
        line for line in lines_of(folder / "distributions.csv") if line["column"] == "accuracy_after_mixing"
    ]
    for line, all_of_them in zip(quantiles, seen.accuracy, strict=True):
        assert int(line["measured"]) == PEERS
        assert float(line["mean"]) == pytest.approx(all_of_them.mean())
        assert float(line["q90"]) == pytest.approx(np.quantile(all_of_them, 0.9))


def test_the_result_is_exact_and_says_that_peers_are_a_sample(
    done: tuple[Path, coterie.Run, Everyone],
) -> None:
    folder, run, seen = done
    for result in (run.result(), json.loads((folder / "result.json").read_text())):
        found, last = result["personal_accuracy"], seen.accuracy[-1]
        assert found["mean"] == pytest.approx(last.mean())
        assert found["quantiles"]["q25"] == pytest.approx(np.quantile(last, 0.25))
        assert found["sample"] == spreads.evenly(PEERS).tolist()
        np.testing.assert_allclose(found["per_peer"], last[found["sample"]], rtol=1e-6)
    blind = (PEERS / 3 - 1) / (PEERS - 1)  # whom a random graph takes from the own of three clusters
    assert run.result()["own_cluster_share"] == pytest.approx(blind, abs=0.02)


def test_only_the_last_measurement_is_held_for_everyone(done: tuple[Path, coterie.Run, Everyone]) -> None:
    _, run, seen = done
    held = [len(one.values["accuracy", "after_mixing"]) for one in run.history.measurements]
    assert held == [spreads.SAMPLE, spreads.SAMPLE, PEERS]
    assert int(run.history.scores("accuracy", "after_mixing").isnan().sum()) == 2 * (PEERS - spreads.SAMPLE)
    assert run.frame("rounds", "pandas")["accuracy_after_mixing"].tolist() == pytest.approx(
        [values.mean() for values in seen.accuracy]
    )
    assert len(run.frame("peers", "pandas")) == 3 * spreads.SAMPLE
    assert len(run.frame("links", "pandas")) == 4 * PEERS
    assert run.frame("links", "pandas")["share"].tolist() == [0.25] * (4 * PEERS)


def test_pictures_show_means_over_all(done: tuple[Path, coterie.Run, Everyone]) -> None:
    folder, run, seen = done
    means = [values.mean() for values in seen.accuracy]
    lowest = [np.sort(values)[: PEERS // 10].mean() for values in seen.accuracy]
    for known in (OfRun(run), OfFolder(folder)):
        curve = learning_curve([known])
        np.testing.assert_allclose(curve.mean, means, rtol=1e-6)
        np.testing.assert_allclose(curve.worst, lowest, rtol=1e-6)
        assert known.mean == pytest.approx(means[-1])
        assert known.worst == pytest.approx(lowest[-1])
    assert OfFolder(folder).people.numbers.tolist() == spreads.evenly(PEERS).tolist()
    leave_report(folder)
    assert "only the sample is recorded" in (folder / "report.html").read_text()
    comparison = Comparison({"d-psgd": [run]})
    assert {path.name for path in comparison.plot(folder)} == {"learning_curves.png", "per_peer_accuracy.png"}


@pytest.mark.parametrize("keep", ["last", "best"])
def test_an_interrupted_run_ends_as_if_it_had_not_been(keep: str, tmp_path: Path) -> None:
    stopping = {"stopping": {"keep": keep}, "splitting": {"validation": 0.3}}
    whole = coterie.simulate(**EXPERIMENT, **stopping, run_dir=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="power failure"):
        coterie.simulate(**EXPERIMENT, **stopping, run_dir=tmp_path / "cut", observer=Everyone(2))
    resumed = coterie.simulate(resume_from=tmp_path / "cut")
    again, once = resumed.result(), whole.result()
    for name in ("seconds", "seconds_per_round", "run_dir"):
        assert again.pop(name) != once.pop(name)
    assert again == once
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())
    for name in ("metrics.csv", "distributions.csv", "peers.csv"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()
    stored = coterie.open(tmp_path / "whole")
    assert torch.equal(stored.totals.bytes_sent, whole.totals.bytes_sent)
    assert stored.result() == whole.result()
