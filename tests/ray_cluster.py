"""Ray for tests: small, quiet, and gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coterie.experiments.cluster.connecting import TOKEN, read_environment, the_ray

STORE = 80 << 20  # bytes; Ray takes no less
_QUICK = {  # to notice that a node is gone
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
_NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "RAY_TMPDIR")


@contextlib.contextmanager
def _apart(ray: Any) -> Iterator[str]:
    """A folder for Ray's files, whose name must be short, and the environment as it was afterwards."""
    before = {name: os.environ.get(name) for name in _NAMES}
    os.environ.setdefault("RAY_AUTH_TOKEN", TOKEN)
    read_environment(ray)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@contextlib.contextmanager
def one_node(cpus: int = 2, gpus: int = 0, **system: Any) -> Iterator[Any]:
    """Ray on this machine, and as many GPUs as it is told to believe in."""
    ray = the_ray()
    with _apart(ray) as folder:
        ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=gpus,
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
    with _apart(ray) as folder:
        nodes = Nodes(ray, folder, 3)
        try:
            yield nodes
        finally:
            ray.shutdown()
            nodes.close()


@dataclass(frozen=True)
class Head:
    """A Ray in a process of its own, which wants a token."""

    client: str  # its address for clients
    address: str  # and for drivers on its machines


@contextlib.contextmanager
def head() -> Iterator[Head]:
    """As `ray start --head` makes one; this process has its token."""
    ray = the_ray()
    with _apart(ray) as folder:
        os.environ["RAY_AUTH_MODE"] = "token"
        read_environment(ray)
        client, gcs = _free_ports(2)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        ports = [f"--port={gcs}", f"--ray-client-server-port={client}", "--node-ip-address=127.0.0.1"]
        size = ["--num-cpus=2", f"--object-store-memory={STORE}", "--include-dashboard=false"]
        process = subprocess.Popen(
            [*command, *ports, *size, f"--temp-dir={folder}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            said = []
            while "Ray runtime started" not in (line := process.stdout.readline()):
                said.append(line)
                if not line:
                    raise RuntimeError("".join(said))
            threading.Thread(target=process.stdout.read, daemon=True).start()  # or it would wait for us
            _until_answered(client)  # its client server comes up later than what it announces
            yield Head(f"ray://127.0.0.1:{client}", f"127.0.0.1:{gcs}")
        finally:
            ray.shutdown()
            process.terminate()  # and it ends what it started
            process.wait()
            process.stdout.close()


def _until_answered(port: int, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]
