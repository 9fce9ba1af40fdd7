"""Results are those of the official data files as they are now, or it is said which of them changed."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.catalogue import sources
from coterie.experiments.setup import contents
from coterie.experiments.setup.config import resolve

Command = Callable[..., Any]
LABELS = "mnist/train-labels-idx1-ubyte"
OPTIONS = [
    *("--data", "mnist", "--data-dir", "data", "--partition", "iid", "--model", "mlr", "--peers", "3"),
    *("--rounds", "2", "--executor", "stacked"),
]


def write_idx(path: Path, values: np.ndarray[Any, Any]) -> None:
    head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def data(folder: Path) -> Path:
    """Sixty images of 4 x 4 pixels in the official format."""
    rng, place = np.random.default_rng(0), folder / "data" / "mnist"
    place.mkdir(parents=True)
    for part, count in (("train", 60), ("t10k", 30)):
        write_idx(place / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (count, 4, 4)))
        write_idx(place / f"{part}-labels-idx1-ubyte", np.arange(count) % 10)
    return folder / "data"


def swap_two_labels(data: Path) -> None:
    """The file keeps its size and its time."""
    path = data / LABELS
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[8:10] = content[9:7:-1]
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_run_is_not_resumed_with_other_data(coterie: Command, data: Path, command: str) -> None:
    algorithms = ["--algorithms", "local"] if command == "compare" else []
    done = coterie(command, *algorithms, *OPTIONS, "--run-dir", "r", "--no-plots")
    assert done.exit_code == 0, done.stderr
    swap_two_labels(data)
    refused = coterie(command, "--resume", "r", "--no-plots")
    assert refused.exit_code == 2
    assert f"{LABELS} in {data} changed since the run in r" in refused.stderr
    swap_two_labels(data)
    assert coterie(command, "--resume", "r", "--no-plots").exit_code == 0


def test_a_sweep_does_not_show_results_of_other_data(coterie: Command, data: Path, folder: Path) -> None:
    options = ("sweep", *OPTIONS, "--over", "training.lr=0.1,0.2", "--jobs", "1", "--out", "s", "--json")
    first = coterie(*options)
    assert first.exit_code == 0, first.stderr
    swap_two_labels(data)
    refused = coterie(*options)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert f"0.1, seed 0: {LABELS} in {data} changed since the run in s" in refused.stderr
    swap_two_labels(data)
    assert json.loads(coterie(*options).stdout) == json.loads(first.stdout)


def test_the_folder_of_data_may_be_moved_and_copied(coterie: Command, data: Path, folder: Path) -> None:
    options = ("sweep", *OPTIONS, "--over", "algorithm=local", "--jobs", "1", "--out", "s", "--json")
    first = coterie(*options)
    assert first.exit_code == 0, first.stderr
    shutil.copytree(data, folder / "copy")
    kept = coterie(*options, "--data-dir", "copy")
    assert json.loads(kept.stdout) == json.loads(first.stdout)
    swap_two_labels(folder / "copy")
    assert LABELS in coterie(*options, "--data-dir", "copy").stderr


def test_a_table_of_runs_on_different_data_says_so(coterie: Command, data: Path, folder: Path) -> None:
    """Tables only: nothing is compared with the files, which need not be there."""
    text = (
        'title = "t"\nsource = "s"\nshows = "s"\nsetting = "s"\n'
        '[experiment]\ndata = "mnist"\npartition = "iid"\nmodel = "mlr"\npeers = 3\nrounds = 2\n'
        "[scales]\nsmoke = {}\nlaptop = {}\npaper = {}\n"
        '[[columns]]\nname = "c"\n'
        '[[rows]]\nname = "local"\n[[rows]]\nname = "d-psgd"\nexperiment = { algorithm = "d-psgd" }\n'
    )
    (folder / "own.toml").write_text(text)
    options = ("reproduce", "own.toml", "--data-dir", "data", "--jobs", "1", "--out", "o", "--no-plots")
    assert coterie(*options, "--only", "local").exit_code == 0
    swap_two_labels(data)
    refused = coterie(*options)
    assert refused.exit_code == 2
    assert f"local, c, seed 0: {LABELS} in {data} changed" in refused.stderr
    assert coterie(*options, "--only", "d-psgd").exit_code == 1  # its own run is fine, the table is not
    shutil.rmtree(data)
    done = coterie(*options[:2], *options[4:], "--tables-only")
    assert done.exit_code == 1
    assert f"own: these runs are not comparable: {LABELS} was edited between them" in done.stderr
    assert "Not comparable" in done.stdout
    assert "Not comparable" in (folder / "o" / "own" / "smoke" / "table.md").read_text()


def test_runs_of_a_version_that_wrote_no_digests_go_on(coterie: Command, data: Path, folder: Path) -> None:
    assert coterie("run", *OPTIONS, "--run-dir", "r", "--no-plots").exit_code == 0
    path = folder / "r" / "environment.json"
    environment = json.loads(path.read_text())
    assert set(environment.pop("data_files")) == {
        f"mnist/{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    }
    path.write_text(json.dumps(environment))
    assert coterie("run", "--resume", "r", "--no-plots").exit_code == 0


def test_an_edit_within_a_process_is_noticed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read once in a process, unless they change; of the change neither size nor time tells."""
    monkeypatch.setattr(contents, "_WORTH_REMEMBERING", 1)
    before = contents.digest_of_content(data / LABELS)
    swap_two_labels(data)
    assert contents.digest_of_content(data / LABELS) != before
    swap_two_labels(data)
    assert contents.digest_of_content(data / LABELS) == before


def test_every_data_set_that_needs_files_names_them() -> None:
    """Else their results would be shown whatever is in them."""
    for name in sources:
        if sources[name].needs_files:  # type: ignore[attr-defined]
            assert hasattr(sources[name], "files"), name


def test_many_files_are_listed_as_their_folder(folder: Path) -> None:
    place = folder / "data" / "tiny-imagenet-200"
    (place / "train").mkdir(parents=True)
    (place / "wnids.txt").write_text("n01\n")
    for number in range(60):
        (place / "train" / f"{number}.JPEG").write_bytes(bytes([number]))
    experiment = resolve({"data": "tiny-imagenet", "data_dir": str(folder / "data"), "partition": "iid"})
    before = contents.data_contents(experiment)
    assert list(before) == ["tiny-imagenet-200"]
    (place / "train" / "7.JPEG").write_bytes(b"x")
    assert contents.data_contents(experiment) != before
    shutil.rmtree(place)
    assert contents.data_contents(experiment) == {}  # nothing is known of what is not there
