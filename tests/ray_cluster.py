"""Ray for tests: small, quiet, and gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from coterie.experiments.cluster.connecting import TOKEN, the_ray

STORE = 80 << 20  # bytes; Ray takes no less
_QUICK = {  # to notice that a node is gone
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
_NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "RAY_TMPDIR")


@contextlib.contextmanager
def _apart() -> Iterator[str]:
    """A folder for Ray's files, whose name must be short, and the environment as it was afterwards."""
    before = {name: os.environ.get(name) for name in _NAMES}
    os.environ.setdefault("RAY_AUTH_TOKEN", TOKEN)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@contextlib.contextmanager
def one_node(cpus: int = 2, **system: Any) -> Iterator[Any]:
    """Ray on this machine."""
    ray = the_ray()
    with _apart() as folder:
        ray.init(
            address="local",
            num_cpus=cpus,
            object_store_memory=STORE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
            _system_config=system,
        )
        try:
            yield ray
        finally:
            ray.shutdown()


class Nodes:
    """A cluster of several nodes with a CPU each, all of them processes here."""

    def __init__(self, ray: Any, folder: str, count: int) -> None:
        from ray.cluster_utils import Cluster

        first = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "temp_dir": folder}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**first, "_system_config": dict(_QUICK)}
        )
        self.others = [self.add() for _ in range(count - 1)]
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")

    def add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=STORE, include_dashboard=False)

    def remove(self, node: Any) -> None:
        """As if its machine had lost power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def three_nodes() -> Iterator[Nodes]:
    ray = the_ray()
    with _apart() as folder:
        nodes = Nodes(ray, folder, 3)
        try:
            yield nodes
        finally:
            ray.shutdown()
            nodes.close()
