"""Shares of a GPU: what cells and workers ask for, where Ray believes in a GPU that is not there."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_cluster import one_node

import coterie
from coterie.errors import ConfigError
from coterie.experiments.cells.on_ray import Task, run_tasks
from coterie.experiments.cluster.connecting import the_ray
from coterie.experiments.cluster.fleet import Fleet
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.prepare import Objects
from coterie.experiments.setup.schema import Experiment

USUAL: dict[str, Any] = {"algorithm": "d-psgd", "data": "digits", "peers": 4, "rounds": 1, "topology": "ring"}
HALF = {"engine": "ray", "executor": "looped", "device": "cuda", "gpus": 0.5}

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU, and it would be used")


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with one_node(cpus=4, gpus=1) as found:
        found.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
        yield found
        found.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def meet_another(experiment: Experiment, folder: Path, objects: Objects, watching: Any) -> str | None:
    """Wait until two have begun, and leave how many there were and what this one has."""
    (folder.parent / f"{folder.name}.runs").touch()
    (folder.parent / f"{folder.name}.begun").touch()
    deadline = time.monotonic() + 120
    while len(list(folder.parent.glob("*.begun"))) < 2:
        if time.monotonic() > deadline:
            return "alone"
        time.sleep(0.05)
    seen = len(list(folder.parent.glob("*.runs")))
    has = the_ray().get_runtime_context().get_assigned_resources()
    (folder.parent / f"{folder.name}.json").write_text(json.dumps({"seen": seen, "has": has}))
    (folder.parent / f"{folder.name}.runs").unlink()
    return None


def test_two_cells_share_a_gpu_and_a_third_waits(tmp_path: Path) -> None:
    """There are CPUs for four."""
    ends: dict[str, str | None] = {}
    tasks = [Task(f"cell{n}", resolve({**USUAL, "execution": HALF}), Objects()) for n in range(4)]
    run_tasks(tasks, tmp_path, meet_another, lambda task, message: ends.update({task.name: message}))
    assert ends == dict.fromkeys(["cell0", "cell1", "cell2", "cell3"])
    left = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [one["has"] for one in left] == [{"CPU": 1.0, "GPU": 0.5}] * 4
    assert max(one["seen"] for one in left) <= 2


def test_a_cell_where_cuda_is_missing(tmp_path: Path) -> None:
    found = coterie.sweep({"training.lr": [0.1]}, **USUAL, out=tmp_path, execution=HALF)
    (message,) = found.broken.values()
    assert message.startswith(f"on {socket.gethostname()}: execution.device 'cuda' cannot be used: ")
    assert "\n" not in message


def test_two_workers_share_a_gpu_and_say_that_cuda_is_missing(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[dict[str, float]] = []
    prepared = Fleet._prepared_ones

    def seen(fleet: Fleet, actors: list[Any]) -> Any:
        def resources(_: Any) -> Any:
            return the_ray().get_runtime_context().get_assigned_resources()

        had.extend(ray.get([actor.__ray_call__.remote(resources) for actor in actors]))
        return prepared(fleet, actors)

    monkeypatch.setattr(Fleet, "_prepared_ones", seen)
    with pytest.raises(ConfigError, match=f"^on {socket.gethostname()}: execution.device 'cuda' cannot"):
        coterie.simulate(**USUAL, execution={**HALF, "workers": 2})
    assert had == [{"CPU": 1.0, "GPU": 0.5}] * 2


def test_more_of_a_gpu_than_a_node_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"room for \d workers with 1 CPU and 0.5 GPUs each, not for 3"):
        coterie.simulate(**USUAL, execution={**HALF, "workers": 3})
    two = {**HALF, "gpus": 2.0}
    told = "no node of Ray has 1 CPU and 2 GPUs, which execution.cpus and execution.gpus would take of one"
    with pytest.raises(ConfigError, match=told):
        coterie.simulate(**USUAL, execution=two)
    with pytest.raises(ConfigError, match=told):
        coterie.sweep({"training.lr": [0.1]}, **USUAL, out=tmp_path, execution=two)
