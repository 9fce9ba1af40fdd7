"""`coterie compare` and `coterie demo`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.running import progress
from coterie.cli.running.demo import ALGORITHMS, conclusion
from coterie.experiments.cells.comparing import split_names

Command = Callable[..., Any]


def test_commas_inside_parentheses_do_not_split() -> None:
    text = "random-gossip(3), d-psgd(mixing=metropolis),dfedavgm(uniform,0.5),local"
    names = [name.strip() for name in split_names(text)]
    assert names == ["random-gossip(3)", "d-psgd(mixing=metropolis)", "dfedavgm(uniform,0.5)", "local"]


def test_json_is_a_list_with_local_and_the_gain_over_it(
    coterie: Command, small: list[str], folder: Path
) -> None:
    done = coterie(
        "compare", "--algorithms", "random-gossip(2),fedavg", "--algorithm", "d-psgd(metropolis)",
        "--topology", "ring", *small, "--json", "--run-dir", "c",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    results = json.loads(done.stdout)
    names = [result["algorithm"] for result in results]
    assert names == ["local", "random-gossip", "fedavg", "d-psgd"]
    assert [result["topology"] for result in results] == ["ring", "ring", "star", "ring"]
    local = results[0]["personal_accuracy"]["mean"]
    for result in results:
        assert result["gain_over_local"] == result["personal_accuracy"]["mean"] - local
    assert "local is added" in done.stderr
    assert "fedavg goes through a hub: topology star" in done.stderr
    assert {path.name for path in (folder / "c").iterdir()} == {
        "report.html",
        "compare.json", "local", "random-gossip-2", "fedavg", "d-psgd-metropolis", "learning_curves.png",
        "per_peer_accuracy.png", "who_learned_from_whom.png", "learning_curves.svg", "per_peer_accuracy.svg",
        "who_learned_from_whom.svg",
    }  # fmt: skip


def test_the_table_has_a_row_for_each_and_seeds_a_spread(coterie: Command, small: list[str]) -> None:
    done = coterie("compare", "--algorithms", "local,d-psgd", *small, "--seeds", "2", "--no-plots")
    assert done.exit_code == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "±" in rows["local"]
    assert "±" in rows["d-psgd"]
    assert "2 seeds" in done.stdout


def test_an_interrupted_comparison_goes_on(
    coterie: Command, small: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--algorithms", "local,d-psgd,gossip-fedavg", *small, "--no-plots", "--json"]
    whole = json.loads(coterie("compare", *options, "--run-dir", "whole").stdout)

    def interrupt(self: Any, record: Any, history: Any) -> None:
        if self.label == "d-psgd":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.Watcher, "round", interrupt)
        stopped = coterie("compare", *options, "--run-dir", "part")
    assert stopped.exit_code == 130
    assert "coterie compare --resume part" in stopped.stderr
    assert not (folder / "part" / "gossip-fedavg").exists()
    done = coterie("compare", "--resume", "part", "--json")
    assert "local: round" not in done.stderr
    resumed = json.loads(done.stdout)
    accuracies = [[result["personal_accuracy"] for result in results] for results in (whole, resumed)]
    assert accuracies[0] == accuracies[1]
    refused = coterie("compare", "--resume", "part", "--algorithms", "local", "--rounds", "3")
    assert refused.exit_code == 2
    assert "--rounds, --algorithms" in refused.stderr


def test_names_that_look_alike_as_folders_are_runs_of_their_own(
    coterie: Command, small: list[str], folder: Path
) -> None:
    options = ["--algorithms", "fedprox(mu=1e+1),fedprox(mu=1e-1)", *small, "--no-plots", "--json"]
    done = coterie("compare", *options, "--run-dir", "c")
    assert done.exit_code == 0, done.stderr
    results = json.loads(done.stdout)
    assert [result["settings"] for result in results] == [{}, {"mu": "1e+1"}, {"mu": "1e-1"}]
    assert results[1]["personal_accuracy"] != results[2]["personal_accuracy"]
    places = [entry["folder"] for entry in json.loads((folder / "c" / "compare.json").read_text())]
    assert places == ["local", "fedprox-mu-1e-1", "fedprox-mu-1e-1-2"]
    again = json.loads(coterie("compare", "--resume", "c", "--no-plots", "--json").stdout)
    assert [result["settings"] for result in again] == [result["settings"] for result in results]


def test_a_folder_with_another_experiment_is_not_taken_for_the_planned_one(
    coterie: Command, small: list[str], folder: Path
) -> None:
    coterie("compare", "--algorithms", "d-psgd", *small, "--no-plots", "--run-dir", "c")
    plan = folder / "c" / "compare.json"
    plan.write_text(plan.read_text().replace('"rounds": 2', '"rounds": 3'))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    refused = coterie("compare", "--resume", "c")
    assert refused.exit_code == 2
    assert "holds another experiment (different: rounds)" in refused.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_settings_in_a_file_are_for_its_own_algorithm(
    coterie: Command, small: list[str], folder: Path
) -> None:
    (folder / "e.toml").write_text('algorithm = "d-psgd"\n[settings]\nmixing = "metropolis"\n')
    options = [*small, "--config", "e.toml", "--no-plots", "--quiet", "--json"]
    alone = json.loads(coterie("compare", *options).stdout)
    assert [(r["algorithm"], r["settings"]) for r in alone] == [
        ("local", {}),
        ("d-psgd", {"mixing": "metropolis"}),
    ]


def test_the_demo(coterie: Command, folder: Path) -> None:
    done = coterie("demo", "--peers", "8", "--rounds", "2", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert all(name in done.stdout for name in ALGORITHMS)
    assert "one seed" in done.stdout
    [made] = (folder / "runs").iterdir()
    assert made.name.startswith("demo-")
    results = [json.loads(path.read_text()) for path in made.glob("*/result.json")]
    work = {
        one["algorithm"]: [one[f"{n}_per_peer"] for n in ("gradient_steps", "samples_seen")]
        for one in results
    }
    assert {name for name in ALGORITHMS if work[name] != work["local"]} == {"pfedkd-wcl"}  # for its hub
    assert "Equal local work: every peer takes" in done.stdout
    assert done.stdout.count("≠") == 2  # in its row, and what the sign means
    assert {path.name for path in made.glob("*.png")} == {
        "learning_curves.png", "per_peer_accuracy.png", "who_learned_from_whom.png",
    }  # fmt: skip


def test_the_demo_says_what_the_numbers_say() -> None:
    def results(**means: float) -> list[dict[str, Any]]:
        return [
            {"algorithm": name, "rounds": 1, "personal_accuracy": {"mean": mean, "per_peer": [mean, mean]}}
            for name in ALGORITHMS
            for mean in [means.get(name.replace("-", "_"), 0.5)]
        ]

    assert "loses 20.0 points" in conclusion(results(local=0.7, oracle=0.8))
    assert "gains 10.0 points" in conclusion(results(local=0.7, oracle=0.8))
    assert "2 of 2 peers" in conclusion(results(local=0.7))
    assert "loses" not in conclusion(results(local=0.4))
    assert "changes nothing" in conclusion(results())


def test_validation_data_that_one_needs_are_set_aside_by_all(coterie: Command, folder: Path) -> None:
    """Local would train on more data otherwise."""
    done = coterie(
        "compare", "--algorithms", "ppdl(1)", "--peers", "3", "--rounds", "1", "--model", "mlr",
        "--no-plots", "--run-dir", "both",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "note: ppdl(1) needs validation data: 0.2 of every peer's training data" in done.stderr
    for name in ("local", "ppdl-1"):
        assert "validation = 0.2" in (folder / "both" / name / "config.toml").read_text()


def test_a_failed_comparison_goes_on_with_corrected_settings(
    coterie: Command, small: list[str], folder: Path
) -> None:
    options = [
        "--algorithms",
        "local,dfedpgp(head_lr=1e30)",
        *small,
        "--model",
        "mlp(8)",
        "--no-plots",
        "--json",
    ]
    failed = coterie("compare", *options, "--run-dir", "c")
    assert failed.exit_code == 1
    assert "finished: local" in failed.stderr
    assert "coterie compare --resume c" in failed.stderr
    refused = coterie("compare", "--resume", "c", "--rounds", "3")
    assert refused.exit_code == 2
    assert "rounds must be the same for all runs" in refused.stderr
    done = coterie("compare", "--resume", "c", "--set", "settings.head_lr=0.1", "--no-plots", "--json")
    assert done.exit_code == 0, done.stderr
    assert "settings.head_lr 1e30 -> 0.1" in done.stderr
    assert "local: round" not in done.stderr
    assert [result["settings"] for result in json.loads(done.stdout)] == [{}, {"head_lr": 0.1}]
    again = coterie("compare", "--resume", "c", "--no-plots", "--json")
    assert _without_seconds(again.stdout) == _without_seconds(done.stdout)
    shown = coterie("compare", "--resume", "c", "--no-plots", "--quiet").stdout
    assert "dfedpgp(head_lr=0.1)" in shown  # what was run, not what was asked for first
    assert "1e30" not in shown


def test_seeds_of_one_row_have_the_same_settings(
    coterie: Command, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second seed was interrupted: with another rate, the row would be a mean of unlike runs."""

    def interrupt(self: Any, record: Any, history: Any) -> None:
        if self.label == "d-psgd-s1":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.Watcher, "round", interrupt)
        coterie("compare", "--algorithms", "d-psgd", *small, "--seeds", "2", "--no-plots", "--run-dir", "c")
    refused = coterie("compare", "--resume", "c", "--set", "training.lr=0.2")
    assert refused.exit_code == 2
    assert "d-psgd is finished for seed 0 with what it had" in refused.stderr
    assert "leave out training.lr" in refused.stderr
    other_threads = coterie("compare", "--resume", "c", "--set", "execution.workers=1", "--no-plots")
    assert other_threads.exit_code == 0, other_threads.stderr


def test_methods_train_equally_long_unless_the_user_says_otherwise(
    coterie: Command, small: list[str], folder: Path
) -> None:
    def steps(*options: str, note: str = "") -> list[float]:
        done = coterie(
            "compare", "--algorithms", "local,kd-pdfl(exchange_every=9)", *small, *options, "--json"
        )
        assert done.exit_code == 0, done.stderr
        assert ("whatever exchange_every says" in done.stderr) == bool(note)
        return [result["gradient_steps_per_peer"]["mean"] for result in json.loads(done.stdout)]

    local, other = steps("--run-dir", "c", note="overruled")
    assert local == other
    (config,) = (path.read_text() for path in (folder / "c").glob("kd-pdfl*/config.toml"))
    assert 'work = "equal"' in config
    assert "whatever exchange_every of kd-pdfl says" in config.splitlines()[0]
    assert steps("--work", "own", "--run-dir", "o") == steps("--set", "training.work=own") == [local, 7 * 2]
    (config,) = (path.read_text() for path in (folder / "o").glob("kd-pdfl*/config.toml"))
    assert "also up to exchange_every of kd-pdfl" in config.splitlines()[0]  # not one epoch, as it says below
    (folder / "e.toml").write_text('[training]\nwork = "own"\n')
    assert steps("--config", "e.toml") == [local, 7 * 2]


def test_the_table_says_what_local_work_was_done(coterie: Command, small: list[str]) -> None:
    options = ("compare", "--algorithms", "local,d-psgd", *small, "--no-plots")
    assert "Equal local work: every peer takes" in coterie(*options).stdout
    assert "Local work as each method sets it" in coterie(*options, "--work", "own").stdout
    wrong = coterie(*options, "--work", "fair")
    assert wrong.exit_code == 2
    assert "'own' or 'equal'" in wrong.stderr


def _without_seconds(text: str) -> list[dict[str, object]]:
    """Results without their times, which records hold rounded."""
    return [{key: value for key, value in one.items() if "seconds" not in key} for one in json.loads(text)]
