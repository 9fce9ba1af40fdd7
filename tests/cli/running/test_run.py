"""`coterie run`: output, run folder, precedence, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.running import progress
from coterie.experiments.runs.running import run
from coterie.experiments.setup.config import resolve

Command = Callable[..., Any]
FIELDS = {
    "algorithm", "data", "model", "partition", "topology", "peers", "rounds", "seed", "personal_accuracy",
    "personal_accuracy_after_local", "personal_accuracy_after_mixing", "global_accuracy",
    "bytes_sent_per_peer", "seconds", "seconds_per_round", "run_dir",
}  # fmt: skip


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two equal runs."""
    return {k: v for k, v in result.items() if k not in ("seconds", "seconds_per_round", "run_dir")}


def test_a_real_process_prints_one_json_document_and_nothing_else(process: Command, small: list[str]) -> None:
    done = process("run", "--algorithm", "d-psgd", "--topology", "ring", *small, "--json", "--no-plots")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert result.keys() >= FIELDS
    assert result["personal_accuracy"].keys() == {"mean", "std", "worst_decile", "per_peer"}
    assert len(result["personal_accuracy"]["per_peer"]) == 4
    assert result["personal_accuracy"] == result["personal_accuracy_after_mixing"]
    assert "round 2/2  accuracy 0." in done.stderr
    assert "s/round  left 0 s" in done.stderr


def test_the_run_folder(coterie: Command, small: list[str], folder: Path) -> None:
    done = coterie("run", "--algorithm", "d-psgd", *small, "--run-dir", "here")
    assert done.exit_code == 0, done.stderr
    assert {path.name for path in (folder / "here").iterdir()} == {
        "report.html",
        "config.toml", "environment.json", "peers.csv", "metrics.csv", "rounds.csv", "links.csv",
        "checkpoint.safetensors", "result.json", "learning_curves.png", "per_peer_accuracy.png",
        "who_learned_from_whom.png", "learning_curves.svg", "per_peer_accuracy.svg",
        "who_learned_from_whom.svg",
    }  # fmt: skip
    assert "d-psgd" in done.stdout
    assert "here/learning_curves.png" in done.stdout


def test_the_default_folder_is_named_by_what_was_run(
    coterie: Command, small: list[str], folder: Path
) -> None:
    for _ in range(2):
        assert coterie("run", *small, "--no-plots", "--quiet", "--seed", "3").exit_code == 0
    names = [path.name for path in (folder / "runs").iterdir()]
    assert len(names) == 2
    assert all("-local-digits-s3" in name for name in names)
    assert not list(folder.rglob("*.png"))


def test_quiet_says_nothing_on_stderr(coterie: Command, small: list[str]) -> None:
    done = coterie("run", *small, "--no-plots", "--quiet", "--json")
    assert done.stderr == ""
    assert json.loads(done.stdout)["rounds"] == 2


def test_a_note_says_once_that_single_messages_are_not_listed(
    coterie: Command, small: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--algorithm", "d-psgd", *small, "--topology", "full", "--no-plots", "--json"]
    listed = coterie("run", *options, "--run-dir", "listed")
    assert "links.csv" not in listed.stderr
    monkeypatch.setattr("coterie.experiments.runs.records.MOST_LINKS", 11)  # 4 peers send 3 models each
    done = coterie("run", *options, "--run-dir", "unlisted")
    said = "note: d-psgd: round 1 has 12 messages; rounds of more than 11 are left out of links.csv\n"
    assert done.stderr.count("links.csv") == 1
    assert said in done.stderr
    assert json.loads(done.stdout)["rounds"] == 2
    assert (folder / "listed" / "links.csv").exists()
    assert not (folder / "unlisted" / "links.csv").exists()
    assert coterie("run", *options, "--quiet", "--run-dir", "quiet").stderr == ""


def test_nan_becomes_null_in_json(
    coterie: Command, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.experiments.runs.run import Run

    original = Run.result
    monkeypatch.setattr(Run, "result", lambda self: {**original(self), "seconds": float("nan")})
    # the run folder's own file is written by the library
    monkeypatch.setattr("coterie.experiments.runs.folder.RunFolder.finish", lambda self, result: None)
    done = coterie("run", *small, "--no-plots", "--json")
    assert json.loads(done.stdout)["seconds"] is None


def test_file_then_flags_then_set(coterie: Command, small: list[str], folder: Path) -> None:
    (folder / "e.toml").write_text(
        'algorithm = "d-psgd"\npeers = 9\nrounds = 7\nseed = 1\ntopology = "ring"\n'
        '[training]\nlr = 0.5\nbatch_size = 7\n[settings]\nmixing = "metropolis"\n'
    )
    small = [*small, "--no-plots", "--quiet", "--json", "--config", "e.toml"]
    done = coterie(
        "run", *small, "--seed", "2", "--lr", "0.3", "--set", "training.lr=0.1", "--set", "peers=5"
    )
    result = json.loads(done.stdout)
    assert (result["peers"], result["rounds"], result["seed"], result["topology"]) == (5, 2, 2, "ring")
    config = (Path(result["run_dir"]) / "config.toml").read_text()
    assert "lr = 0.1\n" in config
    assert "batch_size = 7" in config
    assert 'mixing = "metropolis"' in config


def test_a_flag_names_another_algorithm_than_the_file(
    coterie: Command, small: list[str], folder: Path
) -> None:
    (folder / "e.toml").write_text('algorithm = "d-psgd"\n[settings]\nmixing = "metropolis"\n')
    small = [*small, "--no-plots", "--quiet", "--json", "--config", "e.toml"]
    assert json.loads(coterie("run", *small, "--algorithm", "local").stdout)["settings"] == {}
    same = json.loads(coterie("run", *small, "--algorithm", "d-psgd(uniform)").stdout)
    assert same["settings"] == {"mixing": "uniform"}


def test_paths_in_a_file_start_from_its_folder_and_in_flags_from_here(
    coterie: Command, small: list[str], folder: Path
) -> None:
    (folder / "inside").mkdir()
    (folder / "inside" / "links.csv").write_text("0,1\n1,2\n2,3\n")
    (folder / "inside" / "e.toml").write_text('algorithm = "d-psgd"\ntopology = "edges(links.csv)"\n')
    small = [*small, "--no-plots", "--quiet", "--json"]
    from_file = coterie("run", *small, "--config", "inside/e.toml")
    from_flag = coterie("run", *small, "--algorithm", "d-psgd", "--topology", "edges(inside/links.csv)")
    assert timeless(json.loads(from_file.stdout)) == timeless(json.loads(from_flag.stdout))


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    coterie: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [
        "--algorithm",
        "d-psgd",
        "--model",
        "mlr",
        "--peers",
        "4",
        "--rounds",
        "4",
        "--executor",
        "stacked",
    ]
    options += ["--set", "execution.checkpoint_seconds=0", "--no-plots", "--json", "--quiet"]
    whole = coterie("run", *options, "--run-dir", "whole")

    def interrupt(self: object, record: Any, history: Any) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.Watcher, "round", interrupt)
        stopped = coterie("run", *options, "--run-dir", "part")
    assert stopped.exit_code == 130
    assert "coterie run --resume part" in stopped.stderr
    assert stopped.stdout == ""
    resumed = coterie("run", "--resume", "part", "--no-plots", "--json")
    assert "round 2/4" not in resumed.stderr
    assert timeless(json.loads(resumed.stdout)) == timeless(json.loads(whole.stdout))
    for name in ("metrics.csv", "links.csv", "config.toml"):
        assert (folder / "part" / name).read_text() == (folder / "whole" / name).read_text()


def test_a_finished_run_can_be_shown_again(coterie: Command, folder: Path) -> None:
    run(resolve({"peers": 4, "rounds": 2, "model": "mlr"}), run_dir=folder / "done")
    assert coterie("run", "--resume", "done").exit_code == 0
    assert (folder / "done" / "learning_curves.png").exists()


def test_isolated_peers_get_a_note(coterie: Command, small: list[str]) -> None:
    done = coterie("run", "--algorithm", "d-psgd", "--topology", "erdos-renyi(0)", *small, "--no-plots")
    assert done.exit_code == 0, done.stderr
    assert "note: nobody sends to peers 0, 1, 2, 3 in topology" in done.stderr
