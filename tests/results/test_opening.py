"""`coterie.open` reads runs as they were, also interrupted ones, and says what is wrong with a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from torch import nn

import coterie
from coterie.errors import ConfigError, DamagedRunError, RunFolderError
from coterie.results.comparison import Comparison

SMALL: dict[str, Any] = {
    "algorithm": "kd-pdfl",
    "model": "mlr",
    "partition": "rotations(2)",
    "topology": "full",
    "peers": 4,
    "rounds": 3,
    "execution": {"executor": "stacked", "workers": 1, "checkpoint_seconds": 0.0},
}


def interrupted_after(rounds: int) -> Any:
    def interrupt(record: Any, history: Any) -> None:
        if record.round + 1 == rounds:
            raise KeyboardInterrupt

    return interrupt


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> coterie.Run:
    return coterie.simulate(**SMALL, run_dir=tmp_path_factory.mktemp("runs") / "run")


def test_a_finished_run_is_what_it_was(run: coterie.Run) -> None:
    assert run.run_dir is not None
    before = {path: path.read_bytes() for path in run.run_dir.iterdir()}
    opened = coterie.open(run.run_dir)
    assert opened.finished
    assert opened.experiment == run.experiment
    assert repr(opened) == repr(run)
    assert opened.result() == run.result()
    assert torch.equal(opened.accuracy_over_time(), run.accuracy_over_time())
    assert torch.equal(opened.graph, run.graph)
    assert torch.equal(opened.totals.bytes_sent, run.totals.bytes_sent)
    for kind in ("rounds", "peers"):
        pandas.testing.assert_frame_equal(opened.frame(kind), run.frame(kind), rtol=1e-3, atol=1e-4)
    assert before == {path: path.read_bytes() for path in run.run_dir.iterdir()}


def test_its_models_and_what_was_learned_come_from_the_checkpoint(run: coterie.Run, tmp_path: Path) -> None:
    assert run.run_dir is not None
    opened = coterie.open(run.run_dir)
    assert all(torch.equal(opened.params[name], run.params[name]) for name in run.params)
    assert run.collaboration is not None
    assert opened.collaboration is not None
    assert torch.equal(opened.collaboration, run.collaboration)
    assert run.clusters is not None
    assert opened.clusters is not None
    assert torch.equal(opened.clusters, run.clusters)
    pandas.testing.assert_frame_equal(opened.frame("links"), run.frame("links"))
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(opened.predict(1, x), run.predict(1, x))
    saved, again = run.save(1, tmp_path / "a"), opened.save(1, tmp_path / "b")
    assert (saved / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()


def test_an_interrupted_run_shows_how_far_it_came(run: coterie.Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        coterie.simulate(**SMALL, run_dir=tmp_path / "run", observer=interrupted_after(2))
    opened = coterie.open(tmp_path / "run")
    assert not opened.finished
    assert "interrupted after 2 of 3 rounds" in repr(opened)
    assert torch.equal(opened.accuracy_over_time(), run.accuracy_over_time()[:2])
    result = opened.result()
    assert result["rounds"] == 2
    assert result["bytes_sent_per_peer"] == sum(run.frame("rounds")["bytes"][:2]) / 4
    assert opened.predict(0, torch.rand(1, 1, 8, 8)).shape == (1, 10)


def test_a_run_that_was_killed_within_a_line_is_read_up_to_it(run: coterie.Run, tmp_path: Path) -> None:
    assert run.run_dir is not None
    for name in ("config.toml", "environment.json", "rounds.csv", "links.csv"):
        (tmp_path / name).write_bytes((run.run_dir / name).read_bytes())
    metrics = (run.run_dir / "metrics.csv").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.csv").write_text("".join(metrics[:-1]) + metrics[-1][:9])
    rounds = (run.run_dir / "rounds.csv").read_text().splitlines(keepends=True)
    (tmp_path / "rounds.csv").write_text("".join(rounds[:-1]))
    opened = coterie.open(tmp_path)
    assert len(opened.history.seconds) == 2
    with pytest.raises(RunFolderError, match="has no checkpoint, so that there are no models"):
        opened.predict(0, torch.rand(1, 1, 8, 8))
    with pytest.raises(RunFolderError, match="has no checkpoint"):
        opened.save(0, tmp_path / "m")


def test_a_run_that_had_hardly_begun_says_so(run: coterie.Run, tmp_path: Path) -> None:
    assert run.run_dir is not None
    for name in ("config.toml", "environment.json"):
        (tmp_path / name).write_bytes((run.run_dir / name).read_bytes())
    opened = coterie.open(tmp_path)
    assert "interrupted after 0 of 3 rounds" in repr(opened)
    assert "nothing measured so far" in repr(opened)
    assert len(opened.frame("peers")) == 0
    with pytest.raises(RunFolderError, match="interrupted before anything was measured"):
        _ = opened.personal_accuracy


@dataclasses.dataclass(frozen=True)
class Halfway(coterie.ModelAlgorithm):  # type: ignore[misc, type-arg]
    """Keeps half of what it trains."""

    facts = coterie.Facts(paper="-", measured="after_local", communication="none")

    def round(self, state: Any, node: Any) -> Any:
        yield from ()
        mine = node.train(state.params)
        return coterie.ModelState({name: (value + state.params[name]) / 2 for name, value in mine.items()})


def test_objects_of_ones_own_are_passed_again(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(30, 4, generator=generator), torch.arange(30) % 3) for _ in range(2)]
    own = {"algorithm": Halfway(), "data": data, "model": nn.Linear(4, 3)}
    run = coterie.simulate(**own, rounds=1, topology="ring", run_dir=tmp_path / "run")
    opened = coterie.open(tmp_path / "run", **own)
    assert torch.equal(opened.model(1)["weight"], run.model(1)["weight"])
    without = coterie.open(tmp_path / "run", algorithm=Halfway())
    assert without.result() == run.result()  # records need no objects, models do
    with pytest.raises(ConfigError, match=r"pass them again, data=\.\.\., model=\.\.\., to coterie\.open"):
        without.model(1)
    with pytest.raises(ConfigError, match=r"pass them again, model=\.\.\., to"):
        coterie.simulate(resume_from=tmp_path / "run", algorithm=Halfway(), data=data)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("config.toml", b"rounds = ", ConfigError, "not valid TOML"),
        ("config.toml", b"raunds = 3", ConfigError, "unknown key 'raunds'"),
        ("environment.json", b"{", RunFolderError, "environment.json cannot be read"),
        ("result.json", b"[]", RunFolderError, "result.json cannot be read"),
        ("metrics.csv", b"round,peer\n", DamagedRunError, "metrics.csv is damaged"),
        ("rounds.csv", b"round,seconds,messages,bytes,hub_bytes\n0,x,1,1,1\n", DamagedRunError, "is damaged"),
    ],
)
def test_damaged_folders_get_a_sentence(
    run: coterie.Run, tmp_path: Path, name: str, content: bytes, error: type[Exception], message: str
) -> None:
    assert run.run_dir is not None
    for path in run.run_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        coterie.open(tmp_path)


def test_a_damaged_checkpoint_is_found_when_models_are_wanted(run: coterie.Run, tmp_path: Path) -> None:
    assert run.run_dir is not None
    for path in run.run_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing")
    opened = coterie.open(tmp_path)
    with pytest.raises(DamagedRunError, match="not a readable checkpoint"):
        opened.predict(0, torch.rand(1, 1, 8, 8))


def test_what_is_no_run_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no folder"):
        coterie.open(tmp_path / "nothing")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        coterie.open(tmp_path)


def test_all_runs_of_a_folder_are_one_frame(tmp_path: Path) -> None:
    small = {"partition": "rotations(2)", "topology": "ring", "peers": 4, "rounds": 2, "model": "mlr"}
    coterie.compare(["d-psgd"], **small, seeds=2, run_dir=tmp_path / "both")  # type: ignore[arg-type]
    done = coterie.open(tmp_path / "both")
    assert isinstance(done, Comparison)
    for kind, library in (("rounds", "pandas"), ("peers", "polars"), ("links", "pandas")):
        frame = coterie.read(tmp_path, kind, library)
        assert list(frame.columns[:3]) == ["run", "algorithm", "seed"]
        whole = 0
        for name, runs in done.runs.items():
            for seed, run in enumerate(runs):
                own = run.frame(kind, library)
                mine = (frame["algorithm"] == name) & (frame["seed"] == seed)
                assert list(frame.columns[3:]) == list(own.columns)
                for column in own.columns:
                    found = frame[column].filter(mine) if library == "polars" else frame[column][mine]
                    assert list(found) == list(own[column])
                whole += len(own)
        assert len(frame) == whole
    assert set(coterie.read(tmp_path / "both" / "d-psgd-s1")["run"]) == {"d-psgd-s1"}


def test_a_folder_without_runs_gives_no_frame(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no runs"):
        coterie.read(tmp_path)
    with pytest.raises(RunFolderError, match="there is no folder"):
        coterie.read(tmp_path / "nowhere")
