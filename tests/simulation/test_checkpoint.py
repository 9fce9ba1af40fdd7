"""Checkpoints: replaced atomically, and a damaged one is refused with a reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.catalogue import algorithms
from coterie.data import from_peers
from coterie.errors import ContractError, RunFolderError
from coterie.learning import Executor, Workers
from coterie.protocol.trees import keep_offline, named_tensors, rebuilt
from coterie.randomness import numpy_generator
from coterie.simulation import Simulation, load_checkpoint, save_checkpoint
from coterie.topology import make
from coterie.training import Training

Maker = Callable[..., Simulation]


@pytest.fixture(scope="module")
def simulation() -> Iterator[Maker]:
    rng = numpy_generator(0, "checkpoint")
    data = from_peers([(rng.normal(size=(6, 3)), rng.integers(0, 2, 6)) for _ in range(4)], n_classes=2)
    with Workers(1) as workers:

        def build(algorithm: str = "random-gossip", hidden: int = 4) -> Simulation:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                module = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))
            return Simulation(
                algorithm=algorithms.build(algorithm),
                federation=data,
                module=module,
                topology=make("ring", peers=4, seed=0),
                training=Training(),
                executor=Executor("stacked", module, workers),
                seed=0,
                rounds=5,
            )

        yield build


def test_failed_checkpoint_leaves_the_previous_one_readable(
    simulation: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, path = simulation(), tmp_path / "c"
    s.step()
    save_checkpoint(path, s, {})
    before = dict(named_tensors(s.blocks[0].state))
    s.step()

    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(RunFolderError):
        save_checkpoint(path, s, {})
    monkeypatch.undo()
    fresh = simulation()
    load_checkpoint(path, fresh)
    assert fresh.round == 1
    for name, value in named_tensors(fresh.blocks[0].state):
        assert torch.equal(value, before[name]), name


def test_every_cut_of_a_checkpoint_is_refused(simulation: Maker, tmp_path: Path) -> None:
    s, path = simulation(), tmp_path / "c"
    save_checkpoint(path, s, {"a": [1]})
    content = path.read_bytes()
    damaged = [content[:n] for n in (0, 4, 8, 100, len(content) // 2, len(content) - 1)]
    damaged += [content + b"x", b"\xff" * len(content), content[:8] + b"{" * 20 + content[28:]]
    fresh = simulation()
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(RunFolderError, match="checkpoint"):
            load_checkpoint(path, fresh)
    assert fresh.round == 0
    path.write_bytes(content)
    assert load_checkpoint(path, fresh) == {"a": [1]}


def test_checkpoint_of_another_experiment_is_refused(simulation: Maker, tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, simulation(), {})
    with pytest.raises(RunFolderError, match=r"params/0\.weight"):
        load_checkpoint(path, simulation(hidden=5))
    save_checkpoint(path, simulation("d-psgd"), {})
    with pytest.raises(RunFolderError, match="best"):
        load_checkpoint(path, simulation())
    with pytest.raises(RunFolderError, match="readable"):
        load_checkpoint(tmp_path / "none", simulation())


@dataclass(frozen=True)
class Inner:
    x: Tensor


@dataclass(frozen=True)
class Outer:
    params: dict[str, Tensor]
    inner: Inner


def test_state_trees() -> None:
    state = Outer({"w": torch.ones(3, 2)}, Inner(torch.zeros(3)))
    assert [name for name, _ in named_tensors(state)] == ["params/w", "inner/x"]
    doubled = rebuilt(state, lambda name, value: value + 1)
    assert doubled.inner.x.tolist() == [1.0, 1.0, 1.0]
    kept = keep_offline(state, doubled, torch.tensor([True, False, True]))
    assert kept.inner.x.tolist() == [1.0, 0.0, 1.0]
    assert kept.params["w"].tolist() == [[2.0, 2.0], [1.0, 1.0], [2.0, 2.0]]
    assert keep_offline(state, doubled, torch.ones(3, dtype=torch.bool)) is doubled
    with pytest.raises(ContractError, match="shape"):
        keep_offline(state, Outer({"w": torch.ones(3, 3)}, state.inner), torch.tensor([True, False, True]))
    with pytest.raises(ContractError, match="list"):
        list(named_tensors({"a": [1, 2]}))
