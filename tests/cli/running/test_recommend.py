"""`coterie recommend`, and `auto` in the place of an algorithm's name."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coterie as library
from coterie.catalogue import algorithms
from coterie.experiments.cells.comparing import make_plan
from coterie.experiments.setup.config import build_algorithm, resolve
from coterie.experiments.setup.recommending import Wishes, recommend

Command = Callable[..., Any]
SMALL = ("--peers", "2", "--rounds", "1", "--model", "mlp(4)")


@pytest.mark.parametrize(
    ("table", "wishes", "expected"),
    [
        ({}, {}, "kin"),
        ({"topology": "ring", "models": {"mlp(8)": "0-1"}}, {}, "kin"),
        ({"peers": 1}, {}, "local"),
        ({"topology": "star"}, {}, "fedper"),
        ({"topology": "star"}, {"one_model": True}, "fedavg"),
        ({}, {"one_model": True}, "d-psgd"),
        ({}, {"free_running": True}, "pdfl"),
        ({}, {"sealed": True}, "kin(private=always)"),
        ({"robust": "clipping"}, {}, "kin(private=never)"),
        ({"faults": {"byzantine": {"noise": "0"}}}, {}, "kin(private=never)"),
    ],
)
def test_what_kin_cannot_do_another_is_recommended_for(
    table: dict[str, Any], wishes: dict[str, bool], expected: str
) -> None:
    advice = recommend(table, Wishes(**wishes))
    assert advice.written == expected
    assert advice.reason


def test_what_is_recommended_can_do_what_was_wished() -> None:
    def facts(**wishes: bool) -> Any:
        return algorithms[recommend({}, Wishes(**wishes)).algorithm].facts  # type: ignore[attr-defined]

    assert facts(free_running=True).free_running
    assert not facts(one_model=True).personal
    assert algorithms[recommend({"topology": "star"}).algorithm].facts.hub  # type: ignore[attr-defined]
    sealed = recommend({}, Wishes(sealed=True))
    built = build_algorithm(resolve({"algorithm": sealed.written}))
    assert built.settings()["private"] == "always"
    guarded = resolve({"algorithm": "auto", "robust": "clipping"})
    assert guarded.settings == {"private": "never"}


def test_the_command_says_which_and_why(coterie: Command) -> None:
    assert coterie("recommend").stdout.startswith("kin: ")
    star = coterie("recommend", "--topology", "star").stdout
    assert star.startswith("fedper: ")
    assert "hub" in star
    advice = json.loads(coterie("recommend", "--sealed", "--json").stdout)
    assert advice["algorithm"] == "kin"
    assert advice["settings"] == {"private": "always"}


def test_a_file_that_has_an_algorithm_may_ask_for_another(coterie: Command, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('algorithm = "fedavg"\ntopology = "star"\n', encoding="utf-8")
    assert coterie("recommend", "--config", str(file), "--one-model").stdout.startswith("fedavg: ")


def test_a_wrong_name_is_found(coterie: Command) -> None:
    assert "did you mean star" in coterie("recommend", "--topology", "sta").stderr


def test_auto_runs_what_is_recommended_and_says_so(coterie: Command, tmp_path: Path) -> None:
    done = coterie("run", "--algorithm", "auto", *SMALL, "--json", "--run-dir", str(tmp_path / "run"))
    assert json.loads(done.stdout)["algorithm"] == "kin"
    assert "note: algorithm kin: " in done.stderr


def test_auto_in_python_and_in_a_comparison(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = library.simulate(algorithm="auto", data="digits", peers=2, rounds=1, model="mlp(4)")
    assert run.experiment.algorithm == "kin"
    assert "note: algorithm kin: " in caplog.text
    said: list[str] = []
    plan = make_plan(lambda name: {"algorithm": name} if name else {}, ["auto"], 1, said.append)
    assert [one.label for one in plan] == ["local", "kin"]
    assert any(text.startswith("note: auto is kin: ") for text in said)


def test_local_reports_its_best_model_beside_those_who_do() -> None:
    """Only with validation data, and not where the user says how."""

    def local_of(names: list[str], **splitting: float) -> dict[str, Any]:
        base: dict[str, Any] = {"splitting": splitting} if splitting else {}
        plan = make_plan(
            lambda name: {**base, **({"algorithm": name} if name else {})}, names, 1, said.append
        )
        return next(one for one in plan if one.label.startswith("local")).experiment.settings

    said: list[str] = []
    assert local_of(["local", "ppdl"]) == {"best": True}
    assert any("local reports its best model" in text for text in said)
    assert local_of(["random-gossip"], validation=0.1) == {"best": True}
    assert local_of(["random-gossip"]) == {}
    assert local_of(["d-psgd"], validation=0.1) == {}
    assert local_of(["local(best=False)", "ppdl"]) == {"best": "False"}


def test_a_comparison_of_nothing_in_particular_has_kin() -> None:
    said: list[str] = []
    plan = make_plan(lambda name: {"algorithm": name} if name else {}, [], 1, said.append)
    assert [one.label for one in plan] == ["local", "d-psgd", "kin"]
    assert any("compared are local, d-psgd, kin" in text for text in said)
