"""Cells: found again when finished, resumed when not, reported when broken."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import RunFolderError
from coterie.experiments.cells.cell import Cell, breakage, is_finished
from coterie.experiments.cells.working_off import CellRunner, Event, _Worker, work_off
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.digest import fingerprint
from coterie.reporting.measures import read_record

SMALL = {
    "data": "digits",
    "model": "mlr",
    "peers": 4,
    "rounds": 3,
    "execution": {"executor": "stacked", "checkpoint_seconds": 0.0},
}


def cell(**changes: Any) -> Cell:
    table = {**SMALL, **changes}
    return Cell(resolve(table), {"algorithm": table.get("algorithm", "local"), "seed": table.get("seed", 0)})


def three_cells() -> list[Cell]:
    return [cell(algorithm=name) for name in ("local", "d-psgd", "gossip-fedavg")]


def accuracy(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())["personal_accuracy"]["per_peer"]


class Events:
    """Remembers what happened; `stop_at` interrupts as Ctrl-C would."""

    def __init__(self, stop_at: tuple[str, int] | None = None) -> None:
        self.kinds: Counter[str] = Counter()
        self.stop_at = stop_at

    def __call__(self, event: Event) -> None:
        self.kinds[event.kind] += 1
        if self.stop_at == (event.kind, self.kinds[event.kind]):
            raise KeyboardInterrupt


def test_the_fingerprint_is_of_what_changes_results() -> None:
    one = cell().experiment
    assert fingerprint(one) == fingerprint(cell(execution={"workers": 1}).experiment)
    assert fingerprint(one) == fingerprint(cell(data_dir="/somewhere").experiment)
    assert fingerprint(one) == fingerprint(cell(execution={"sealing": "plain"}).experiment)
    assert fingerprint(one) != fingerprint(cell(execution={"sealing": "masked"}).experiment)
    assert fingerprint(one) != fingerprint(cell(seed=1).experiment)
    assert fingerprint(one) != fingerprint(cell(training={"lr": 0.2}).experiment)


def test_a_preset_and_its_values_are_the_same_cell() -> None:
    preset = cell(algorithm="pfedkd-wcl", preset="paper")
    values = cell(algorithm="pfedkd-wcl", preset="paper", settings={"alpha": 0.1})
    assert preset.name == values.name


def test_a_folder_with_another_experiment_is_refused(tmp_path: Path) -> None:
    """Such as one that was made when a default had another value."""
    one = cell()
    with CellRunner(tmp_path) as runner:
        runner.work_off([one])
        config = tmp_path / one.name / "config.toml"
        config.write_text(config.read_text().replace("lr = 0.05", "lr = 0.07"))
        assert "another experiment" in runner.work_off([one])[one.name]


def test_records_of_other_data_files_are_refused(tmp_path: Path) -> None:
    """Files of the same name may hold other data: a subset here, the whole there."""
    folders = [tmp_path / "some", tmp_path / "all"]
    for folder in folders:
        folder.mkdir()
    one, other = (cell(data="mnist", data_dir=str(folder)) for folder in folders)
    assert one.name == other.name
    stored = tmp_path / one.name
    stored.mkdir()
    (stored / "config.toml").write_text(one.experiment.to_toml())
    RunFolder(stored).require_same(one.experiment)
    with pytest.raises(
        RunFolderError, match=r"was run with the data files in .*some, not with those in .*all"
    ):
        RunFolder(stored).require_same(other.experiment)
    digits = cell(data_dir=str(folders[0])).experiment
    (stored / "config.toml").write_text(digits.to_toml())
    RunFolder(stored).require_same(cell(data_dir=str(folders[1])).experiment)  # digits are read from no file
    (stored / "config.toml").write_text(one.experiment.to_toml())
    folders[0].rmdir()
    RunFolder(stored).require_same(other.experiment)  # it may have been moved


def test_bytes_of_peers_do_not_count_the_hub(tmp_path: Path) -> None:
    """FedAvg: every client sends one model to the hub in a round, and the hub sends one to each."""
    one = cell(algorithm="fedavg", topology="star")
    with CellRunner(tmp_path) as runner:
        assert runner.work_off([one]) == {}
    record = read_record(tmp_path / one.name)
    assert record is not None
    assert record.bytes_until(one.experiment.rounds) == record.result["bytes_sent_per_peer"] > 0
    assert record.bytes_until(1) == pytest.approx(record.bytes_until(2) / 2)


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    first, again = Events(), Events()
    cells = [*three_cells(), cell(algorithm="local")]  # one of them twice
    with CellRunner(tmp_path) as runner:
        assert runner.work_off(cells, first) == {}
        assert runner.work_off(cells, again) == {}
    assert first.kinds == {"started": 3, "round": 9, "finished": 3}
    assert again.kinds == {"kept": 3}


def test_after_an_interruption_between_cells_only_the_rest_is_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), CellRunner(tmp_path) as runner:
        runner.work_off(three_cells(), Events(stop_at=("finished", 1)))
    again = Events()
    with CellRunner(tmp_path) as runner:
        runner.work_off(three_cells(), again)
    assert again.kinds == {"kept": 1, "started": 2, "round": 6, "finished": 2}


def test_a_half_done_cell_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    one = cell(algorithm="d-psgd")
    with pytest.raises(KeyboardInterrupt), CellRunner(tmp_path / "a") as runner:
        runner.work_off([one], Events(stop_at=("round", 2)))
    assert not is_finished(tmp_path / "a" / one.name)
    again = Events()
    with CellRunner(tmp_path / "a") as runner:
        runner.work_off([one], again)
    with CellRunner(tmp_path / "b") as runner:
        runner.work_off([one])
    assert again.kinds["round"] == 1
    assert accuracy(tmp_path / "a" / one.name) == accuracy(tmp_path / "b" / one.name)


def test_a_cell_killed_before_it_started_is_started_again(tmp_path: Path) -> None:
    one = cell()
    (tmp_path / one.name).mkdir()
    (tmp_path / one.name / "environment.json").write_text("{}")
    with CellRunner(tmp_path) as runner:
        assert runner.work_off([one]) == {}
    assert is_finished(tmp_path / one.name)


def test_a_broken_cell_is_reported_and_the_others_finish(tmp_path: Path) -> None:
    bad = cell(algorithm="oracle", partition="iid")  # nobody knows any clusters
    events = Events()
    with CellRunner(tmp_path) as runner:
        broken = runner.work_off([cell(), bad, cell(algorithm="d-psgd")], events)
    assert list(broken) == [bad.name]
    assert "must be told the true clusters" in broken[bad.name]
    assert breakage(tmp_path / bad.name) == broken[bad.name]
    assert events.kinds["finished"] == 2


def test_a_repaired_cell_is_no_longer_broken(tmp_path: Path) -> None:
    source, disk = tmp_path / "own.py", tmp_path / "disk"
    lines = (
        "from coterie import data",
        "def load(peers, seed):",
        f"    open({str(disk)!r} + '/mounted').close()",
        "    return data.load('digits', peers=4, seed=0)",
    )
    source.write_text("\n".join(lines))
    one = cell(data=f"{source}:load")
    with CellRunner(tmp_path / "cells") as runner:
        assert "mounted" in runner.work_off([one])[one.name]
    disk.mkdir()
    (disk / "mounted").touch()
    with CellRunner(tmp_path / "cells") as runner:
        assert runner.work_off([one]) == {}
    assert breakage(tmp_path / "cells" / one.name) is None


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_edited_loader_is_not_run_under_its_old_name(tmp_path: Path, jobs: int) -> None:
    source = tmp_path / "own.py"
    source.write_text("def load(peers, seed): ...\n")
    planned = [cell(data=f"{source}:load", seed=seed) for seed in (0, 1)]
    names = {one.name for one in planned}
    source.write_text("def load(peers, seed): ...  # edited\n")
    with CellRunner(tmp_path / "cells", jobs=jobs) as runner:
        broken = runner.work_off(planned)
    assert set(broken) == names
    assert all("edited since the command began" in message for message in broken.values())
    assert not any((tmp_path / "cells" / name).exists() for name in names)


def test_processes_give_the_same_and_survive_one_that_dies(tmp_path: Path) -> None:
    source = tmp_path / "own.py"
    source.write_text("import os\n\ndef load(peers, seed):\n    os._exit(9)\n")
    deadly = cell(data=f"{source}:load")
    here = tmp_path / "here"
    with CellRunner(tmp_path / "there", jobs=2) as runner:
        broken = runner.work_off([deadly, *three_cells()])
    with CellRunner(here) as runner:
        runner.work_off(three_cells())
    assert list(broken) == [deadly.name]
    assert "exit code 9" in broken[deadly.name]
    for one in three_cells():
        assert accuracy(here / one.name) == accuracy(tmp_path / "there" / one.name)


def test_a_cell_whose_asker_was_killed_is_interrupted_and_not_broken(tmp_path: Path) -> None:
    """The line to a killed process is closed, but nobody ends the process at its other end."""
    one = cell(algorithm="d-psgd", rounds=40)
    worker = _Worker(tmp_path)
    worker.give(one)
    assert worker.receive()[0] == "round"
    worker.connection.close()
    worker.process.join(60)
    assert worker.process.exitcode == 0
    assert breakage(tmp_path / one.name) is None
    assert not is_finished(tmp_path / one.name)
    with CellRunner(tmp_path) as runner, CellRunner(tmp_path / "at once") as other:
        assert runner.work_off([one]) == other.work_off([one]) == {}
    assert accuracy(tmp_path / one.name) == accuracy(tmp_path / "at once" / one.name)


def test_facts_hold_the_floor_and_the_clusters(tmp_path: Path) -> None:
    one = cell(algorithm="oracle", partition="label-pairs(2)", settings={"peers": 1})
    with CellRunner(tmp_path) as runner:
        assert runner.work_off([one]) == {}
    facts = json.loads((tmp_path / one.name / "facts.json").read_text())
    assert facts["clusters"] == [0, 0, 1, 1]
    assert all(0.4 < floor < 0.7 for floor in facts["majority_floor"])  # two labels, about half each
    assert [row.index(1.0) for row in facts["shares"]] == [1, 0, 3, 2]
    shutil.rmtree(tmp_path / one.name)
    assert not is_finished(tmp_path / one.name)


def test_a_cell_whose_data_belong_to_peers_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def load(peers, seed):\n"
        "    return [(np.eye(4).repeat(5, axis=0), np.arange(20) // 5) for _ in range(peers)]\n"
    )
    mine = cell(data=f"{tmp_path}/mine.py:load")
    assert work_off(mine, tmp_path / "cells") is None
    folder = tmp_path / "cells" / mine.name
    assert json.loads((folder / "result.json").read_text())["partition"] == "own"
    (folder / "result.json").unlink()
    assert work_off(mine, tmp_path / "cells") is None
    assert is_finished(folder)
    with pytest.raises(RunFolderError, match="different: rounds"):
        RunFolder(folder).require_same(cell(data=f"{tmp_path}/mine.py:load", rounds=4).experiment)
