"""What can be wrong with Ray gets a sentence, and nothing is left running."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ray_cluster import one_node

import coterie
from coterie.errors import ConfigError, DataError, RunFailedError
from coterie.experiments.cluster import connecting
from coterie.experiments.cluster.fleet import Fleet

USUAL: dict[str, Any] = {"data": "digits", "peers": 4, "rounds": 1, "topology": "full"}
LOOPED = {"executor": "looped"}


def refused(**how: Any) -> str:
    """What is said without any Ray."""
    with pytest.raises(ConfigError) as error:
        coterie.simulate("d-psgd", **USUAL, execution=how)
    return str(error.value)


def test_an_unknown_engine() -> None:
    assert "choose local, ray, or the address" in refused(engine="rey")


def test_more_workers_than_peers() -> None:
    assert "5 workers are more than the 4 peers" in refused(engine="ray", workers=5)


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it fails
    assert "pip install 'coterie[ray]'" in refused(engine="ray")


def test_an_address_where_nobody_is() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert f"Ray at ray://127.0.0.1:{port} cannot be reached" in refused(engine=f"ray://127.0.0.1:{port}")


def test_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connecting.PATIENCE == 20
    monkeypatch.setattr(connecting, "PATIENCE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        address = f"ray://127.0.0.1:{silent.getsockname()[1]}"
        assert f"Ray at {address} did not answer within 0.3 s" in refused(engine=address)


def test_an_address_that_fails_to_take_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a process for each; on a busy machine the first may come too late."""
    tried: list[str] = []

    def init(address: str, **given: Any) -> None:
        tried.append(address)
        if len(tried) < fails:
            raise ConnectionAbortedError("Initialization failure from server:\nit was late")

    monkeypatch.setattr(connecting, "_require_answer", lambda address: None)
    monkeypatch.setattr(connecting, "_PAUSE", 0.0)
    some = SimpleNamespace(init=init)
    for fails in (1, 3):
        tried.clear()
        with connecting._joined(some, "ray://head:10001"):
            assert tried == ["ray://head:10001"] * fails
    tried.clear()
    fails = 4
    with (
        pytest.raises(ConfigError, match="it was late"),
        connecting._joined(some, "ray://head:10001"),
    ):
        pass
    assert len(tried) == 3


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    assert "'nowhere' is no address of Ray" in refused(engine="ray")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    full = {"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.0001}
    with one_node(**full, object_store_full_delay_ms=10) as found:  # type: ignore[arg-type]
        yield found


def test_more_workers_than_there_is_room_for(ray: Any) -> None:
    assert "there is room for 2 workers with 1 CPU each, not for 3" in refused(engine="ray", workers=3)


@dataclass(frozen=True)
class Locked(coterie.ModelAlgorithm):
    """Has something that belongs to this process."""

    lock: Any = field(default_factory=threading.Lock)
    facts = coterie.Facts(paper="none", measured="after_local", communication="nothing")

    def settings(self) -> dict[str, Any]:
        return {}

    def round(self, state: coterie.ModelState, node: coterie.Node) -> coterie.Round[coterie.ModelState]:
        yield from ()
        return state


def test_an_algorithm_that_cannot_be_sent(ray: Any) -> None:
    with pytest.raises(ConfigError, match=r"\(algorithm\) cannot be sent to Ray's workers.*file.py:Class"):
        coterie.simulate(Locked(), **USUAL, execution={"engine": "ray"})


OWN = """
from dataclasses import dataclass
import coterie

@dataclass(frozen=True)
class Own(coterie.ModelAlgorithm):
    facts = coterie.Facts(paper="none", measured="after_local", communication="nothing")

    def round(self, state, node):
        yield from ()
        return state
"""


def test_an_algorithm_of_a_module_that_workers_do_not_have(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("only_here").Own()
    told = r"cannot read what was passed.*No module named 'only_here'; define it in the script or notebook"
    for ask in (coterie.simulate, lambda own, **given: coterie.compare([own], **given)):
        with pytest.raises(ConfigError, match=told) as error:
            ask(own, **USUAL, execution={**LOOPED, "engine": "ray"})
        assert "\n" not in str(error.value)


@dataclass(frozen=True)
class Changed(coterie.ModelAlgorithm):
    """Has what a user writes in a notebook."""

    change: Any = field(default=lambda params: params)
    facts = coterie.Facts(paper="none", measured="after_local", communication="nothing")

    def settings(self) -> dict[str, Any]:
        return {}

    def round(self, state: coterie.ModelState, node: coterie.Node) -> coterie.Round[coterie.ModelState]:
        mine = self.change(node.train(state.params))
        node.measure(after_local=mine)
        yield from ()
        return coterie.ModelState(mine)


def test_an_algorithm_of_a_notebook_may_have_a_lambda(ray: Any) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's own classes are
    try:
        there = coterie.simulate(Changed(), **USUAL, execution={**LOOPED, "engine": "ray"})
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    here = coterie.simulate(Changed(), **USUAL, execution=LOOPED)
    assert torch.equal(there.personal_accuracy, here.personal_accuracy)


def test_a_node_without_the_data(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for ward in range(4):
        rows = [f"{ward + n},{n},{n % 2}" for n in range(20)]
        (data / f"ward{ward}.csv").write_text("\n".join(["a,b,label", *rows]))
    started = Fleet._started

    def without_data(fleet: Fleet, count: int) -> Any:
        found = started(fleet, count)
        shutil.rmtree(data)
        return found

    monkeypatch.setattr(Fleet, "_started", without_data)
    with pytest.raises(DataError, match=f"on {socket.gethostname()}: ") as error:
        coterie.simulate(
            "local",
            data=f"{data}/*.csv",
            rounds=1,
            topology="full",
            execution={"engine": "ray", "workers": 1},
        )
    assert "every node of a cluster reads the data itself" in str(error.value)


def test_a_full_object_store(ray: Any) -> None:
    held = [ray.put(np.zeros(10 << 20, dtype=np.uint8)) for _ in range(7)]
    big = {"model": "mlp(20000)", "training": {"steps": 1}}
    try:
        with pytest.raises(RunFailedError, match=r"Ray's object store is full.*--object-store-memory"):
            coterie.simulate(
                "d-psgd", **USUAL, **big, execution={"engine": "ray", "workers": 2, "executor": "looped"}
            )
    finally:
        held.clear()


def test_another_version(ray: Any, tmp_path: Path) -> None:
    """A process with another version of Ray joins the cluster of these tests."""
    code = (
        "import ray, sys; ray.__version__ = '1.0.0'\n"
        "from coterie.cli import main\n"
        "sys.argv = ['coterie', 'run', '--rounds', '1', '--engine', 'ray', '-q']\n"
        "main()"
    )
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "another version of Ray or Python" in done.stderr
    assert "1.0.0" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_command_starts_and_ends_its_own_ray(tmp_path: Path) -> None:
    """Nothing on the screen is Ray's, and nothing of it is left."""
    mark = uuid.uuid4().hex
    hidden = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = "run --rounds 2 --peers 4 --engine ray --workers 2 --json --no-plots --run-dir run"
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *command.split()],
        env={**environment, "COTERIE_TEST_MARK": mark, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{")
    assert done.stdout.rstrip().endswith("}")
    assert "2 workers with" in done.stderr
    assert "ray" not in done.stderr.lower()
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _text(path)]


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # it has ended, or belongs to somebody else
        return ""
