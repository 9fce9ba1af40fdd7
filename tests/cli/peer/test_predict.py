"""`coterie peer predict`: the personal model of a peer's checkpoint on files of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_peers import Swarm, experiment

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Two peers that have learned for two rounds."""
    with Swarm(tmp_path_factory.mktemp("peers"), experiment(peers=2, rounds=2)) as swarm:
        swarm.start()
        swarm.finish()
        yield swarm


@pytest.fixture(scope="module")
def samples(swarm: Swarm) -> tuple[Any, Any]:
    """The test data of peer 1, on which its records measure it."""
    federation = swarm.join(1).peer.node.federation
    index = federation.test.of(0)
    return federation.x[index].numpy(), federation.y[index].numpy()


def rows(text: str) -> list[dict[str, str]]:
    header, *lines = [line.split(",") for line in text.splitlines()]
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_the_accuracy_is_that_of_the_records(
    coterie: Command, folder: Path, swarm: Swarm, samples: tuple[Any, Any]
) -> None:
    x, y = samples
    np.savez(folder / "own.npz", x=x, y=y)
    done = coterie("peer", "predict", "own.npz", "--dir", str(swarm.place(1)))
    assert done.exit_code == 0, done.stderr
    table = rows(done.stdout)
    right = np.mean([row["class"] == row["label"] for row in table])
    assert right == pytest.approx(swarm.records(1)[-1]["accuracy"]["after_mixing"], abs=1e-6)
    assert f"accuracy {right:.4f}" in done.stderr
    assert f"{len(y)} samples, model of peer-1 after 2 rounds" in done.stderr
    assert [int(row["row"]) for row in table] == list(range(len(y)))
    assert all(0.1 <= float(row["probability"]) <= 1 for row in table)


def test_files_of_all_kinds_give_the_same_classes(
    coterie: Command, folder: Path, swarm: Swarm, samples: tuple[Any, Any]
) -> None:
    x, y = samples
    flat = x.reshape(len(x), -1)
    names = [f"pixel{number}" for number in range(flat.shape[1])]

    def write_csv(name: str, header: list[str], table: Any) -> None:
        np.savetxt(folder / name, table, delimiter=",", header=",".join(header), comments="")

    np.savez(folder / "flat.npz", x=flat)
    write_csv("plain.csv", names, flat)
    write_csv("named.csv", ["label", *names], np.column_stack([y, flat]))
    write_csv("last.csv", [*names, "digit"], np.column_stack([flat, y]))
    found = {}
    for name in ("flat.npz", "plain.csv", "named.csv", "last.csv"):
        done = coterie("peer", "predict", name, "--dir", str(swarm.place(1)), "--out", f"{name}.out")
        assert done.exit_code == 0, done.stderr
        assert done.stdout.endswith(f"; predictions: {name}.out\n")
        assert ("accuracy" in done.stdout) == (name in ("named.csv", "last.csv"))
        found[name] = [row["class"] for row in rows((folder / f"{name}.out").read_text())]
    assert len({tuple(classes) for classes in found.values()}) == 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": np.zeros((3, 7))},
            "its samples are 7, but the model of peer-0 takes 1 x 8 x 8, or 64 numbers",
        ),
        ({"x": np.zeros((3, 64)), "y": np.array([0, 1])}, "3 samples but 2 labels"),
        (
            {"x": np.zeros((1, 64)), "y": np.array([10])},
            "the label 10, but the model knows the classes 0 to 9",
        ),
        ({"x": np.full((1, 64), np.nan)}, "NaN"),
        ({"images": np.zeros((3, 64))}, "there is no array 'x'; it has images"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    coterie: Command, folder: Path, swarm: Swarm, arrays: dict[str, Any], message: str
) -> None:
    np.savez(folder / "wrong.npz", **arrays)
    done = coterie("peer", "predict", "wrong.npz", "--dir", str(swarm.place(0)), "--out", "out.csv")
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "out.csv").exists()


def test_without_file_or_checkpoint(coterie: Command, folder: Path) -> None:
    assert coterie("peer", "init", "alice").exit_code == 0
    missing = coterie("peer", "predict", "nothing.npz", "--dir", "alice")
    assert (missing.exit_code, missing.stderr) == (2, "error: there is no file nothing.npz\n")
    np.savez(folder / "x.npz", x=np.zeros((1, 64)))
    early = coterie("peer", "predict", "x.npz", "--dir", "alice")
    assert early.exit_code == 2
    assert "alice has not finished a round yet" in early.stderr
