"""`coterie doctor`: what this machine has, what is fine, and what to fix.

Everything is looked at, whatever else is wrong; so nothing that may be broken is imported at the top.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import typer
from rich.table import Table
from rich.text import Text

from coterie.catalogue import sources
from coterie.cli.output import Json, print_json
from coterie.cli.upkeep.dashboard import PAGE_PORT
from coterie.errors import DataError
from coterie.experiments.runs.naming import RUNS
from coterie.files import alone, somebody_has
from coterie.reporting.tables import in_bytes, show

State = Literal["fine", "note", "fix"]
EXTRAS = {  # what `pip install 'coterie[EXTRA]'` brings, by a module of it, and what for
    "adapters": ("peft", "adapters of pretrained models"),
    "dashboard": ("starlette", "the page in the browser"),
    "frames": ("pandas", "data frames"),
    "huggingface": ("datasets", "data sets of Hugging Face"),
    "mlflow": ("mlflow", "runs in MLflow"),
    "metrics": ("sklearn", "AUC, average precision, F1"),
    "optuna": ("optuna", "searches by Optuna"),
    "parquet": ("pyarrow", "Parquet files"),
    "ray": ("ray", "runs and sweeps on many machines"),
    "tensorboard": ("tensorboard", "runs in TensorBoard"),
    "transformers": ("transformers", "pretrained models"),
    "wandb": ("wandb", "runs in Weights & Biases, offline"),
}
_NEEDED = ("coterie", "torch", "numpy", "pydantic", "safetensors", "cryptography", "matplotlib", "typer")
_LITTLE_MEMORY = 2 << 30
_LITTLE_DISK = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    state: State
    what: str
    said: str


def doctor(json: Json = False) -> None:
    """Look at versions, threads, memory, GPU, Ray, disk, data, ports: what is fine, what to fix."""
    found = examine()
    if json:
        print_json([asdict(one) for one in found])
    else:
        table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
        styles = {"fine": "green", "note": "yellow", "fix": "bold red"}
        for one in found:
            table.add_row(Text(one.state, styles[one.state]), one.what, Text(one.said))
        show(table)
    if any(one.state == "fix" for one in found):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """All findings, in the order in which they are shown."""
    looks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python, _packages, _extras, _threads, _memory, _gpu, _ray, _disk, _data, _network,
    )  # fmt: skip
    found: list[Finding] = []
    for look in looks:
        try:
            found += look()
        except Exception as error:  # the others are still worth knowing
            found.append(Finding("fix", look.__name__.strip("_"), f"cannot be examined: {error}"))
    return found


def _python() -> Iterator[Finding]:
    said = f"Python {platform.python_version()} on {platform.platform()}"
    yield Finding("fine", "Python", said)


def _packages() -> Iterator[Finding]:
    for name in _NEEDED:
        try:
            yield Finding("fine", "package", f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("fix", "package", f"{name} is not installed: pip install {name}")


def _extras() -> Iterator[Finding]:
    for extra, (module, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module) is not None:
            yield Finding("fine", "extra", f"{extra}: {purpose}")
        else:
            yield Finding(
                "note", "extra", f"{extra} is not installed ({purpose}): pip install 'coterie[{extra}]'"
            )


def _threads() -> Iterator[Finding]:
    count = importlib.import_module("coterie.learning").cores()
    said = f"{count} core{'s' * (count != 1)}; a run has a worker thread for each (execution.workers)"
    yield Finding("fine", "threads", said)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        value = os.environ.get(name, "1")
        if value != "1":
            yield Finding(
                "note", "threads", f"{name} is {value}; runs use one thread for each worker, whatever it says"
            )


def _memory() -> Iterator[Finding]:
    total = _memory_bytes()
    if total is None:
        yield Finding("note", "memory", "not known on this system")
    elif total < _LITTLE_MEMORY:
        yield Finding("note", "memory", f"{in_bytes(total)}: little for many peers or large models")
    else:
        yield Finding("fine", "memory", in_bytes(total))


def _memory_bytes() -> int | None:
    """Of this machine, or what its container may use, if that is less."""
    known = []
    if sys.platform != "win32" and "SC_PHYS_PAGES" in os.sysconf_names:
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        known.append(int(text))
    return min(known, default=None)


def _gpu() -> Iterator[Finding]:
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_name(number)
            yield Finding("fine", "GPU", f"{name}; use it with --set execution.device=cuda:{number}")
    else:
        yield Finding("fine", "GPU", "none; models train on the CPU")


def _ray() -> Iterator[Finding]:
    if importlib.util.find_spec("ray") is None:
        yield Finding("note", "Ray", "not installed; runs stay on this machine")
        return
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        where = "starts one on this machine" if not address else f"joins {address}, as RAY_ADDRESS says"
        yield Finding("fine", "Ray", f"Ray {version('ray')}; --engine ray {where}")
        return
    try:
        with socket.create_connection((host, int(port)), timeout=3):
            yield Finding("fine", "Ray", f"Ray {version('ray')}; RAY_ADDRESS is {address}, which answers")
    except (OSError, OverflowError) as error:
        yield Finding("fix", "Ray", f"RAY_ADDRESS is {address}, which does not answer: {error}")


def _disk() -> Iterator[Finding]:
    here = next(folder for folder in (RUNS.resolve(), *RUNS.resolve().parents) if folder.is_dir())
    free = shutil.disk_usage(here).free
    if not os.access(here, os.W_OK):
        yield Finding("fix", "disk", f"runs cannot be written in {here}; go to another folder")
        return
    said = f"{in_bytes(free)} free for runs in {here}"
    yield Finding("note" if free < _LITTLE_DISK else "fine", "disk", said)
    with tempfile.TemporaryDirectory(dir=here) as folder, alone(Path(folder) / "lock", wait=False):
        if somebody_has(Path(folder) / "lock"):
            yield Finding("fine", "disk", "locks keep two processes out of one run")
        else:
            yield Finding("note", "disk", "no locks here: do not start two processes on one run")


def _data() -> Iterator[Finding]:
    named = os.environ.get("COTERIE_DATA")
    if not named:
        yield Finding(
            "note", "data", "COTERIE_DATA names no folder; data sets with files need it, or --data-dir"
        )
        return
    folder = Path(named).expanduser()
    if not folder.is_dir():
        yield Finding("fix", "data", f"COTERIE_DATA is {named}, which is no folder")
        return
    yield Finding("fine", "data", f"COTERIE_DATA is {folder}")
    for name in sources:
        if getattr(sources[name], "needs_files", False):
            yield _data_set(name, folder)


def _data_set(name: str, folder: Path) -> Finding:
    try:
        missing = [path for path in sources[name]().files(folder) if not path.exists()]
    except DataError as error:
        return Finding("note", "data", str(error))
    if missing:
        return Finding("note", "data", f"{name}: there is no {missing[0]}")
    return Finding("fine", "data", f"{name} is there")


def _network() -> Iterator[Finding]:
    if not ssl.HAS_TLSv1_3:
        yield Finding("fix", "network", f"{ssl.OPENSSL_VERSION} has no TLS 1.3, which real peers speak")
    else:
        yield Finding("fine", "network", f"TLS 1.3 ({ssl.OPENSSL_VERSION})")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname(), timeout=5):
            yield Finding("fine", "network", "ports on this machine can be opened and reached")
    with socket.socket() as wanted:
        wanted.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            wanted.bind(("127.0.0.1", PAGE_PORT))
        except OSError:
            hint = "coterie dashboard --port 0 takes another"
            yield Finding("note", "network", f"port {PAGE_PORT}, the page's, is in use: {hint}")
