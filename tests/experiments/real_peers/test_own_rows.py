"""A real peer's own files while it runs: new rows come in at a round's start; no test row was trained on."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.cli.swarm.folders import make_folders
from coterie.experiments.real_peers import own_rows
from coterie.experiments.real_peers.joining import Joining, join
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records
from coterie.experiments.real_peers.predicting import personal_model
from coterie.peer.trust.settings import SETTINGS_FILE
from coterie.peer.turn import RoundReport

TABLE: dict[str, Any] = {
    "algorithm": "d-psgd",
    "model": "mlr",
    "classes": 2,
    "rounds": 4,
    "training": {"lr": 0.1, "batch_size": 8},
    "execution": {"executor": "looped"},
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else writes these files."""
    monkeypatch.setattr(own_rows, "_QUIET", 0.0)


def lines(first: int, last: int, label: Callable[[int], int] = lambda n: n % 2) -> str:
    return "".join(f"{n},{n / 7:.3f},{label(n)}\n" for n in range(first, last))


def folders(home: Path, **changes: Any) -> list[Path]:
    """Two peers with 40 rows each in a file of their own."""
    places = make_folders(home, {**TABLE, "peers": 2, **changes}, ["anna", "bob"], "synchronous")
    for number, place in enumerate(places):
        (place / "own.csv").write_text("a,b,label\n" + lines(1000 * number, 1000 * number + 40))
        settings = (place / SETTINGS_FILE).read_text().replace('data = "share"', 'data = "own.csv"')
        (place / SETTINGS_FILE).write_text(settings)
    return places


def learn(places: list[Path], observers: dict[int, Callable[[RoundReport], None]] | None = None) -> None:
    async def all_of_them() -> None:
        peers = [join(place, (observers or {}).get(number)) for number, place in enumerate(places)]
        await asyncio.gather(*(peer.take_part() for peer in peers))

    asyncio.run(all_of_them())


def parts(joining: Joining) -> dict[str, set[float]]:
    """The first numbers of the rows in each part of a peer's data."""
    data = joining.peer.node.federation
    splits = {"train": data.train, "test": data.test}
    return {name: set(data.x[split.index, 0].tolist()) for name, split in splits.items()}  # type: ignore[call-overload]


def test_simulator_and_peers_hold_out_the_same_samples(tmp_path: Path) -> None:
    places = folders(tmp_path)
    learn(places)
    (tmp_path / "all").mkdir()
    for place in places:
        os.link(place / "own.csv", tmp_path / "all" / f"{place.name}.csv")
    run = coterie.simulate(data=f"{tmp_path}/all/*.csv", **TABLE)
    expected = run.scores_over_time(point="after_mixing")
    for number, place in enumerate(places):
        scores = [line["accuracy"]["after_mixing"] for line in Records(place / RECORDS_FILE).read()]
        assert scores == pytest.approx(expected[:, number].tolist(), abs=1e-6)


def test_new_rows_come_in_at_the_start_of_a_round_and_are_in_the_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = folders(tmp_path)
    file = places[0] / "own.csv"

    def grow(report: RoundReport) -> None:
        if report.round == 1:
            file.write_text(file.read_text() + lines(40, 90))

    learn(places, {0: grow})
    anna, bob = ([line["samples"] for line in Records(place / RECORDS_FILE).read()] for place in places)
    assert anna[0] == anna[1]
    assert anna[1]["train"] + anna[1]["test"] == 40
    new_train, new_test = anna[2]["new_train"], anna[2]["new_test"]
    assert new_train + new_test == 50
    assert (anna[2]["train"], anna[2]["test"]) == (anna[1]["train"] + new_train, anna[1]["test"] + new_test)
    assert anna[3] == {key: anna[2][key] for key in ("train", "validation", "test")}
    assert bob == [bob[0]] * 4
    assert f"the data have changed: samples {new_train} new train, {new_test} new test" in caplog.text


def test_after_a_restart_no_test_row_was_a_training_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file was sorted anew, has twice as many rows, and some of the old ones once more."""
    places = folders(tmp_path)
    learn(places)
    place, before = places[0], parts(join(places[0]))
    assert "the data have changed" not in caplog.text
    rows = (lines(0, 40) + lines(40, 90) + lines(5, 20)).splitlines(keepends=True)
    np.random.default_rng(0).shuffle(rows)
    (place / "own.csv").write_text("a,b,label\n" + "".join(rows))
    after = parts(join(place))
    assert before["train"] <= after["train"]
    assert before["test"] <= after["test"]
    assert not after["train"] & after["test"]
    assert f"have changed since round 4: samples train {len(before['train'])}, now" in caplog.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b,label\n1,2,0\n3,4", "the header names 3 columns, and line 3 has 2"),
        (
            "a,b,c,label\n" + "".join(f"{n},1,{n},0\n" for n in range(9)),
            "shape .3,., and the model was built",
        ),
        ("a,b,label\n" + lines(0, 20, lambda n: 2), "labels run from 2 to 2, but there are 2 classes"),
        (None, "there is no file"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(
    content: str | None, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    joining = join(folders(tmp_path)[0])
    assert joining.peer.renew is not None
    before, file = parts(joining), joining.folder / "own.csv"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    for _ in range(3):
        assert joining.peer.renew() == {}
    assert parts(joining) == before
    assert caplog.text.count("the changed data are not used") == 1  # not in every round again
    assert re.search(said, caplog.text)
    file.write_text("a,b,label\n" + lines(0, 45))
    assert sum(joining.peer.renew().values()) == 5


def test_a_file_that_is_still_being_written_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joining, now = join(folders(tmp_path)[0]), 100.0
    assert joining.peer.renew is not None
    monkeypatch.setattr(own_rows, "_QUIET", 1.0)
    monkeypatch.setattr(own_rows.time, "monotonic", lambda: now)
    file = joining.folder / "own.csv"
    for rows, wait in ((45, 0.0), (50, 0.9), (60, 0.9)):
        now += wait
        file.write_text("a,b,label\n" + lines(0, rows))
        assert joining.peer.renew() == {}
    now += 0.9
    assert joining.peer.renew() == {}
    now += 0.2
    assert sum(joining.peer.renew().values()) == 20
    file.write_text("a,b,label\n" + lines(10, 60))
    assert joining.peer.renew() == {}
    now += 1.0
    assert joining.peer.renew() == {"gone": 10}
    file.touch()
    now += 2.0
    assert joining.peer.renew() == joining.peer.renew() == {}  # another time, the same rows


def test_whole_numbers_that_become_real_ones_move_no_row(tmp_path: Path) -> None:
    """A table of whole numbers is read as such until a single 0.5 comes."""
    place = folders(tmp_path)[0]
    whole = "a,b,label\n" + "".join(f"{n},{-n},{n % 2}\n" for n in range(40))
    (place / "own.csv").write_text(whole)
    joining = join(place)
    assert joining.peer.renew is not None
    before = parts(joining)
    (place / "own.csv").write_text(whole + "0.5,1,0\n")
    assert sum(joining.peer.renew().values()) == 1
    after = parts(joining)
    assert before["train"] <= after["train"]
    assert before["test"] <= after["test"]


def test_what_a_method_keeps_of_single_samples_starts_afresh(tmp_path: Path) -> None:
    """BlendDFL remembers what teachers said of each sample: with other samples it must ask again."""
    places = folders(tmp_path, algorithm="blend-dfl")
    file = places[0] / "own.csv"

    def grow(report: RoundReport) -> None:
        if report.round == 1:
            file.write_text(file.read_text() + lines(40, 60))

    learn(places, {0: grow})
    assert len(Records(places[0] / RECORDS_FILE).read()) == 4
    file.write_text(file.read_text() + lines(60, 70))
    assert personal_model(places[0]).round == 4
    joining = join(places[0])

    async def load() -> Any:
        await joining.peer.load()
        return joining.peer.state

    state = asyncio.run(load())
    assert state.teacher_logits.shape[1] == int(joining.peer.node.n_samples[0])
    assert state.taught.tolist() == [0.0]


def test_a_function_is_asked_again_when_a_file_changes_that_its_code_names(tmp_path: Path) -> None:
    place = folders(tmp_path)[0]
    (place / "load.py").write_text(
        "from pathlib import Path\nimport numpy as np\n"
        "def ward():\n"
        "    x = np.load(Path(__file__).parent / 'rows.npy')\n"
        "    return x, np.arange(len(x)) % 2\n"
    )
    np.save(place / "rows.npy", np.arange(60.0).reshape(30, 2))
    settings = place / SETTINGS_FILE
    settings.write_text(settings.read_text().replace('data = "own.csv"', 'data = "load.py:ward"'))
    joining = join(place)
    assert joining.peer.renew is not None
    assert joining.peer.renew() == {}
    np.save(place / "rows.npy", np.arange(70.0).reshape(35, 2))
    assert sum(joining.peer.renew().values()) == 5
