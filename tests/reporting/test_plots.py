"""Plots are drawn for every kind of run, without warnings (which are errors here) and without leftovers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import coterie
from coterie.data import load, split
from coterie.experiments.runs.run import Run
from coterie.reporting import plots
from coterie.reporting.data_plots import label_histogram
from coterie.reporting.numbers.known import known
from coterie.reporting.numbers.maps import heat_map


def small_run(algorithm: str, **more: object) -> Run:
    execution = {"executor": "stacked"}
    options = {"partition": "rotations(2)", "peers": 4, "rounds": 2, **more}
    return coterie.simulate(algorithm=algorithm, model="mlr", execution=execution, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [small_run(name) for name in ("local", "d-psgd", "oracle", "fedavg")]


def is_picture(path: Path | None) -> bool:
    """A PNG with something on it."""
    assert path is not None
    with Image.open(path) as image:
        return image.format == "PNG" and len(image.convert("RGB").getcolors(10**7) or []) > 10


def test_plots_of_a_comparison(runs: list[Run], tmp_path: Path) -> None:
    labels, groups = ["local", "d-psgd", "oracle", "fedavg"], [[run] for run in runs]
    assert is_picture(plots.learning_curves(groups, labels, tmp_path / "a.png"))
    assert is_picture(plots.per_peer_scores(groups, labels, tmp_path / "b.png"))
    assert is_picture(plots.who_learned_from_whom(groups, labels, tmp_path / "c.png"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png", "c.png"]


def test_plots_of_one_run(runs: list[Run], tmp_path: Path) -> None:
    assert is_picture(plots.learning_curves([runs[1:2]], ["d-psgd"], tmp_path / "a.png"))
    assert is_picture(plots.per_peer_scores([runs[1:2]], ["d-psgd"], tmp_path / "b.png"))
    assert is_picture(plots.who_learned_from_whom([runs[1:2]], ["d-psgd"], tmp_path / "c.png"))


def test_curves_are_means_over_seeds_with_a_band_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[small_run(name, seed=seed) for seed in range(3)] for name in ("local", "d-psgd")]
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure) or path)
    plots.learning_curves(groups, ["local", "d-psgd"], Path("a.png"))
    together = figures[0].axes[0]
    assert "bands: lowest to highest of 3 seeds" in together.get_title()
    for line, band, group in zip(together.lines, together.collections, groups, strict=True):
        of_seeds = torch.stack([run.accuracy_over_time().double().mean(1) for run in group])
        assert torch.allclose(torch.tensor(line.get_ydata()), of_seeds.mean(0))
        edges = torch.tensor(band.get_paths()[0].vertices[:, 1])
        assert float(edges.min()) == pytest.approx(float(of_seeds.min()))
        assert float(edges.max()) == pytest.approx(float(of_seeds.max()))


def test_peers_of_all_seeds_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[small_run(name, seed=seed) for seed in range(2)] for name in ("local", "d-psgd")]
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure) or path)
    plots.per_peer_scores(groups, ["local", "d-psgd"], Path("b.png"))
    assert "of 8 below" in figures[0].axes[0].get_title()


def test_no_map_where_peers_received_nothing_from_each_other(runs: list[Run], tmp_path: Path) -> None:
    assert (
        plots.who_learned_from_whom([[runs[0]], [runs[3]]], ["local", "fedavg"], tmp_path / "c.png") is None
    )
    assert not list(tmp_path.iterdir())


def test_one_round_and_one_peer_can_be_drawn(tmp_path: Path) -> None:
    lonely = small_run("local", partition="iid", peers=1, rounds=1)
    assert is_picture(plots.learning_curves([[lonely]], ["local"], tmp_path / "a.png"))
    assert is_picture(plots.per_peer_scores([[lonely]], ["local"], tmp_path / "b.png"))


def test_received_models_are_shares_sorted_by_cluster(runs: list[Run]) -> None:
    oracle = runs[2]
    assert oracle.clusters is not None
    shares = torch.from_numpy(heat_map(known([oracle])).shares)
    assert torch.allclose(shares.sum(1), torch.ones(4, dtype=torch.double))
    assert not shares[:2, 2:].any()  # the oracle stays within its cluster
    assert not shares[2:, :2].any()


@pytest.mark.parametrize(
    ("data", "partition", "peers"),
    [("digits", "rotations(4)", 8), ("digits", "dirichlet-prior(0.3)", 70), ("digits", "iid", 500)],
)
def test_label_histograms(data: str, partition: str, peers: int, tmp_path: Path) -> None:
    federation = split(load(data, peers=peers, seed=0), partition, peers=peers, seed=0)
    assert is_picture(label_histogram(federation, "title", tmp_path / "labels.png"))
