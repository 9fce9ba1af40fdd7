"""A run that would not fit into memory is refused before anything is made, with figures that are true."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.data.foreseen import foreseen
from coterie.errors import ConfigError
from coterie.experiments.setup import room
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.hosting import hosting, ingredients
from coterie.experiments.setup.prepare import prepare
from coterie.learning import Workers
from coterie.memory import GIB, free_memory
from coterie.protocol.trees import named_tensors
from coterie.simulation import Simulation, need_of

SMALL: dict[str, Any] = {
    "algorithm": "d-psgd",
    "data": "synthetic(0.5,0.5,size=8)",
    "model": "mlr",
    "topology": "random-regular(4)",
    "peers": 50,
    "rounds": 1,
    "execution": {"executor": "stacked", "workers": 1},
}


def lying(monkeypatch: pytest.MonkeyPatch, free: int | None) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: free)


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 500 kB\n")
    assert free_memory(proc, cgroup) == 500 * 1024
    for name, text in {"max": "300000", "current": "250000", "stat": "anon 7\ninactive_file 5000\n"}.items():
        (cgroup / f"memory.{name}").write_text(text)
    assert free_memory(proc, cgroup) == 300000 - 250000 + 5000
    (cgroup / "memory.max").write_text("max\n")
    assert free_memory(proc, cgroup) == 500 * 1024
    old = cgroup / "memory"
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("100000")
    (old / "memory.usage_in_bytes").write_text("160000")
    (old / "memory.stat").write_text("total_inactive_file 20000\n")
    assert free_memory(proc, cgroup) == 0


@pytest.mark.parametrize("algorithm", ["d-psgd", "osgp", "dfedpgp", "kd-pdfl", "ppdl", "local"])
def test_two_rows_tell_the_state_of_all(algorithm: str) -> None:
    experiment = resolve({**SMALL, "algorithm": algorithm})
    with Workers(1) as workers:
        made_of = hosting(prepare(experiment), "stacked", workers)
        need = need_of(made_of)
        simulation = Simulation(**ingredients(made_of))
    held = sum(tensor.nbytes for block in simulation.blocks for _, tensor in named_tensors(block.state))
    params = sum(value.nbytes for value in simulation.personal().values())
    assert need.state == pytest.approx(2 * held, rel=0.02)
    # PPDL's round holds the weighted models, the sums that came and the means; the others, what was trained
    assert need.models == params * (3 if algorithm == "ppdl" else 1)
    assert need.numbers == params // 4 // 50
    pool = made_of.federation
    assert need.data >= pool.x.nbytes + pool.y.nbytes  # type: ignore[union-attr]


def test_what_does_not_fit_is_refused_with_what_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lying(monkeypatch, 1 << 20)
    with pytest.raises(
        ConfigError, match=r"50 nodes with models of 610 numbers need about .* are free"
    ) as found:
        coterie.simulate(**SMALL | {"algorithm": "kin", "execution": {"workers": 3}})
    assert "What would fit: " in str(found.value)
    assert "fewer --workers" in str(found.value)
    lying(monkeypatch, None)
    assert coterie.simulate(**SMALL).finished


def test_force_tries_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lying(monkeypatch, 20_000)
    flags = ["--peers", "4", "--rounds", "1", "--data", "synthetic(0.5,0.5,size=8)", "--executor", "stacked"]
    refused = CliRunner().invoke(app, ["run", *flags, "--run-dir", str(tmp_path / "run")])
    assert refused.exit_code == 2
    assert "--force tries all the same" in refused.stderr
    assert not (tmp_path / "run").exists()
    forced = CliRunner().invoke(
        app, ["run", *flags, "--force", "--no-plots", "--run-dir", str(tmp_path / "run")]
    )
    assert forced.exit_code == 0, forced.stderr


def test_samples_that_are_made_at_once_are_counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 peers of the usual sizes, dealt out anew: 25 GiB that nobody must begin to make."""
    lying(monkeypatch, 12 * GIB)
    table = SMALL | {"peers": 100_000, "data": "synthetic(0.5,0.5)", "partition": "dirichlet(0.5)"}
    with pytest.raises(
        ConfigError, match=r"twice 2\d\.\d GiB while they are dealt out, and 12\.0 GiB are free"
    ):
        coterie.simulate(**table)


def test_samples_in_files_are_foreseen_from_headers_and_sizes(tmp_path: Path) -> None:
    """A pixel of a byte becomes four bytes; an array of doubles is read beside its float32."""
    images, packed = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-images-idx3-ubyte.gz"
    images.write_bytes(bytes(16 + 28 * 28 * 100))
    packed.write_bytes(gzip.compress(images.read_bytes()))
    assert foreseen([images]) == foreseen([packed]) == 4 * (16 + 28 * 28 * 100)
    arrays = tmp_path / "own.npz"
    np.savez_compressed(arrays, x=np.zeros((300, 20)), y=np.zeros(300, np.int64))
    assert foreseen([arrays]) == 300 * 20 * (8 + 4) + 300 * (8 + 4)
    table = tmp_path / "own.csv"
    table.write_text("a,b,label\n" + "1,2,0\n" * 50_000)
    assert foreseen([table]) == pytest.approx(150_000 * (2 + 57), rel=0.01)
    assert foreseen([images, arrays]) == foreseen([images]) + foreseen([arrays])


def test_data_files_that_do_not_fit_are_refused_unread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "own.csv"
    table.write_text("a,b,label\n" + "1,2,0\n3,4,1\n" * 20_000)
    lying(monkeypatch, 6 << 20)
    with pytest.raises(ConfigError, match=r"1 file\) take at least 7 MiB in memory, and 6 MiB are free"):
        coterie.simulate("local", data=str(table), peers=4, rounds=1)
    lying(monkeypatch, 12 << 20)
    monkeypatch.setattr(room, "_UNDOUBTED", 1.0)
    assert coterie.simulate("local", data=str(table), peers=4, rounds=1).finished


def test_what_optimisers_keep_is_counted() -> None:
    training = {"optimizer": "adam", "optimizer_state": "kept"}
    with Workers(1) as workers:
        made_of = hosting(prepare(resolve({**SMALL, "training": training})), "stacked", workers)
        need = need_of(made_of)
        simulation = Simulation(**ingredients(made_of))
        simulation.step()
    kept = simulation.blocks[0].node.remembered()
    moments = sum(value.nbytes for value in kept.values() if value.dim() > 1 and value.is_floating_point())
    assert need.optimiser == moments
    assert torch.is_tensor(next(iter(kept.values())))
