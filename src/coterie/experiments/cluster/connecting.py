"""Ray: started here for a run, or found where an address says. Nobody else imports it, and not before.

Ray runs what it is sent, with the rights of whoever started it: it stays inside one organisation. One that is
started here answers only to those who have its token, keeps its files in a folder of its own, and ends with
the run.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

from coterie.errors import ConfigError, CoterieError, RunFailedError
from coterie.experiments.setup.schema import Experiment
from coterie.learning import cores

PATIENCE = 20.0  # seconds until an address must have answered
_TRIES, _PAUSE = 3, 1.0  # at a Ray that answers but fails to take a client, and seconds between them
_STORE = 0.3  # of the free memory, for what travels between the processes of one machine
_LEAST_STORE, _MOST_STORE = 80 << 20, 8 << 30  # bytes; Ray refuses less
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise a warning
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what nodes say of their workers, which Ray prints on stdout
}
TOKEN = secrets.token_hex(32)  # of what this process starts


class WorkerLostError(RunFailedError):
    """A process that hosted peers ended, or its node did; whoever has a checkpoint can go on."""


def the_ray() -> Any:
    """The package, where it is installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError(
            "engine 'ray' needs Ray, which is not installed; pip install 'coterie[ray]'"
        ) from None


def read_environment(ray: Any) -> None:
    """Let Ray forget who asked this process for a token before, and look into its environment again.

    Otherwise a process that had a Ray with a token goes on to want it, also from a second Ray that has none:
    the driver refuses what that says, and its workers end as soon as they begin.
    """
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def connected(experiment: Experiment) -> Iterator[Any]:
    """Ray, for as long as it is needed: what was there before stays, what is started here ends."""
    address = address_of(experiment.execution.engine)
    ray = the_ray()
    if ray.is_initialized():
        yield ray
        return
    read_environment(ray)
    logging.getLogger("ray").setLevel(logging.ERROR)
    with _started(ray, experiment) if address is None else _joined(ray, address):
        try:
            yield ray
        finally:
            ray.shutdown()


def address_of(engine: str) -> str | None:
    """Where Ray is; None: it is to be started here."""
    return os.environ.get("RAY_ADDRESS") or None if engine == "ray" else engine


@contextlib.contextmanager
def _started(ray: Any, experiment: Experiment) -> Iterator[None]:
    """A Ray of this machine alone."""
    execution = experiment.execution
    before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    folder = tempfile.mkdtemp(prefix="coterie-ray-", dir="/tmp" if os.path.isdir("/tmp") else None)
    try:
        os.environ.setdefault("RAY_AUTH_TOKEN", TOKEN)  # otherwise Ray would leave a file with one
        with _explained("a Ray of this machine"):
            ray.init(
                address="local",
                num_cpus=max(cores(), (execution.workers or 1) * execution.cpus),
                object_store_memory=_store_bytes(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=folder,
            )
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _joined(ray: Any, address: str) -> Iterator[None]:
    """A Ray that is there already."""
    if address != "auto":
        _require_answer(address)
    with _explained(f"Ray at {address}"), _muted():
        for left in range(_TRIES, 0, -1):
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
                break
            except ConnectionAbortedError as error:  # it makes a process for each client, or is too busy to
                if left == 1 or "nitialization failure" not in str(error):
                    raise
                time.sleep(_PAUSE)
    yield


def _require_answer(address: str) -> None:
    """Refuse an address where nothing like Ray answers within `PATIENCE`."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{address!r} is no address of Ray; one is such as ray://head:10001")
    started = time.monotonic()
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
        grpc = importlib.import_module("grpc")
        with grpc.insecure_channel(f"{host}:{port}") as channel:
            left = max(0.1, PATIENCE - (time.monotonic() - started))
            grpc.channel_ready_future(channel).result(timeout=left)
    except ImportError:
        raise ConfigError("an address of Ray needs grpcio; pip install 'coterie[ray]'") from None
    except OSError as error:
        why = error.strerror or "it did not answer"
        raise ConfigError(f"Ray at {address} cannot be reached: {why}; is it started there?") from None
    except Exception as error:
        if type(error).__name__ != "FutureTimeoutError":
            raise
        raise ConfigError(
            f"Ray at {address} did not answer within {PATIENCE:g} s; is the address that of Ray "
            "(ray:// with port 10001, without ray:// port 6379), and is nothing between that refuses it?"
        ) from None


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Without what the C++ half of Ray writes to the screen while it tries to get in."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """What Ray says when it cannot start or be joined, in a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say is said below
            yield
    except (RuntimeError, ConnectionError, ValueError, TimeoutError) as error:
        text = " ".join(str(error).split())
        if "ersion mismatch" in text:
            raise ConfigError(
                f"{what} has another version of Ray or Python than this process, and both must be the same: "
                f"{text[:300]}"
            ) from None
        if "oken" in text and "uthenticat" in text:
            raise ConfigError(f"{what} wants its token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN") from None
        raise ConfigError(
            f"{what} cannot be used: {text[:300]} (which may also mean that RAY_AUTH_TOKEN is another one)"
        ) from None


def _store_bytes() -> int:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return int(min(max(_LEAST_STORE, _STORE * free), _MOST_STORE))


def answers(ray: Any, references: Any, timeout: float | None = None) -> Any:
    """What was asked for; Ray's own troubles as sentences, and those of a worker as they were."""
    gone = ray.exceptions
    try:
        return ray.get(references, timeout=timeout)
    except (gone.RayActorError, gone.ObjectLostError, gone.WorkerCrashedError, gone.NodeDiedError) as error:
        raise WorkerLostError(f"a worker was lost: {_first_line(error)}") from None
    except (gone.ObjectStoreFullError, gone.OutOfDiskError) as error:
        raise _full(error) from None
    except gone.OutOfMemoryError as error:
        raise WorkerLostError(f"a worker had no memory left: {_first_line(error)}") from None
    except gone.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, (gone.ObjectLostError, gone.RayActorError)):
            raise WorkerLostError(f"a worker was lost: {_first_line(cause)}") from None
        if isinstance(cause, (gone.ObjectStoreFullError, gone.OutOfDiskError)):
            raise _full(cause) from None
        if isinstance(cause, gone.RaySystemError):
            raise _unreadable(cause) from None
        raise cause from None
    except gone.RaySystemError as error:  # after errors of tasks, which are of their cause's class as well
        raise _unreadable(error) from None


def _unreadable(error: BaseException) -> CoterieError:
    """Of a system error, which most often is that a worker lacks the module of an object."""
    said = _first_line(error).removeprefix("System error: ")
    if "deserialize" not in str(error):
        return RunFailedError(f"Ray failed: {said}")
    return ConfigError(
        f"a worker of Ray cannot read what was passed as Python objects: {said}; define it in the script or "
        "notebook itself, or in a file that is named, such as file.py:Class, or install its package on every "
        "node"
    )


def _full(error: BaseException) -> RunFailedError:
    return RunFailedError(
        "Ray's object store is full, which carries models between workers; start Ray with more "
        "(ray start --object-store-memory=...), give its folder more disk, or use fewer workers on a machine "
        f"({_first_line(error)})"
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).strip()
