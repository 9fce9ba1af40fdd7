"""Tables say what the results say."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console

from coterie.data import load, split
from coterie.reporting.data_tables import bars, label_table
from coterie.reporting.tables import gain, in_bytes, label_of, summary, summary_over_seeds


def text_of(table: Any, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def result(algorithm: str = "d-psgd", mean: float = 0.5, **more: Any) -> dict[str, Any]:
    values = {"mean": mean, "std": 0.1, "worst_decile": 0.25, "per_peer": [mean]}
    return {
        "algorithm": algorithm, "settings": {}, "data": "digits", "model": "mlr", "partition": "iid",
        "topology": "ring", "peers": 1, "rounds": 2, "seed": 0, "point": "after_mixing",
        "personal_accuracy": values, "personal_accuracy_after_local": {**values, "mean": 0.4},
        "personal_accuracy_after_mixing": values, "global_accuracy": None, "bytes_sent_per_peer": 1234567.0,
        "bytes_sent_busiest": 0.0, "seconds": 1.25, **more,
    }  # fmt: skip


def row_of(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(name))


def test_a_single_run_has_no_gain() -> None:
    row = row_of(text_of(summary([result()])), "d-psgd")
    assert row == [
        "d-psgd",
        "50.0",
        "10.0",
        "25.0",
        "40.0",
        "50.0*",
        "-",
        "-",
        "-",
        "1.23",
        "MB",
        "0",
        "B",
        "1.2",
    ]


def test_a_narrow_terminal_loses_no_number() -> None:
    """In two parts; a name too long for the line goes on in the next."""
    runs = [result("d-psgd"), result("random-gossip", settings={"peers": 5})]
    narrow, wide = (text_of(summary(runs, local=result("local")), width) for width in (80, 140))
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    assert sorted(narrow.split()) == sorted([*wide.split(), "algorithm", "d-psgd", "random-gossip(peers=5)"])


def test_the_gain_is_in_points_and_the_own_point_is_marked() -> None:
    local = result("local", 0.6, point="after_local")
    text = text_of(summary([local, result()], local=local))
    assert row_of(text, "local")[4:7] == ["40.0*", "60.0", "-"]
    assert row_of(text, "d-psgd")[6] == "-10.0"
    assert gain(result(), local) == pytest.approx(-0.1)
    assert gain(result(), None) is None


def test_mean_and_spread_over_seeds() -> None:
    local = [result("local", 0.5), result("local", 0.5)]
    text = text_of(
        summary_over_seeds([local, [result(mean=0.4), result(mean=0.6)]], ["local", "d-psgd"], local)
    )
    assert row_of(text, "d-psgd")[1] == "50.0±10.0"
    assert "2 seeds" in text


def trained(algorithm: str, *steps: float, work: str = "equal") -> dict[str, Any]:
    """A result whose peers took so many steps, in 2 rounds."""
    counted = {"mean": sum(steps) / len(steps), "min": min(steps), "max": max(steps)}
    return result(algorithm, work=work, gradient_steps_per_peer=counted)


def test_equal_work_is_said_above_the_table() -> None:
    local = trained("local", 10.0, 10.0)
    text = text_of(summary([local, trained("d-psgd", 10.0, 10.0)], local=local))
    assert "Equal local work: every peer takes 5 steps a round" in text
    assert "≠" not in text
    assert row_of(text, "d-psgd")[8] == "10"
    uneven = trained("local", 2.0, 10.0)
    assert "takes 1 to 5 steps a round, by its data" in text_of(summary([uneven, uneven], local=uneven))
    assert "takes 1 step a round" in text_of(summary(2 * [trained("local", 2.0)]))
    assert "local work" not in text_of(summary([local])), "one run is compared with nothing"


def test_unequal_work_is_marked() -> None:
    """Local took 100 steps: 98 and 102 are within 2 %, 97 and 103 are not."""
    local = trained("local", 100.0, work="own")
    others = {f"m{steps}": trained(f"m{steps}", float(steps), work="own") for steps in (97, 98, 102, 103)}
    text = text_of(summary([local, *others.values()], local=local))
    assert "Local work as each method sets it, which need not be equal" in text
    assert [row_of(text, name)[8] for name in ("local", *others)] == ["100", "97≠", "98", "102", "103≠"]
    assert "≠: its steps differ from Local's by more than 2 %" in text


def test_without_local_the_median_is_the_measure() -> None:
    text = text_of(summary([trained("x", 10.0), trained("y", 10.0), trained("z", 30.0), result("w")]))
    assert [row_of(text, name)[8] for name in "xyzw"] == ["10", "10", "30≠", "-"]
    assert "differ from the median" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB"), (2.5e12, "2.5 TB")],
)
def test_bytes_are_readable(value: float, text: str) -> None:
    assert in_bytes(value) == text


def test_labels_name_the_settings() -> None:
    assert label_of(result(settings={"mixing": "metropolis"})) == "d-psgd(mixing=metropolis)"


def test_bars_show_what_is_missing_and_what_is_little() -> None:
    assert bars([0, 1, 50, 100]) == " ▁▄█"
    assert bars([0, 0]) == "  "


def test_label_table_has_every_peer_and_its_sizes() -> None:
    federation = split(load("digits", peers=4, seed=0), "pathological(2)", peers=4, seed=0)
    rows = [line.split() for line in text_of(label_table(federation, "x")).splitlines()]
    sizes = federation.train.sizes.tolist()
    assert [row[1] for row in rows if row[0].isdigit()] == list(map(str, sizes))
    assert torch.equal(federation.label_histogram().sum(1), federation.train.sizes)
