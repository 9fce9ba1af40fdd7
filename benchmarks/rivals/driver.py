"""`make bench-peers`: the same work by Coterie and by others, by turns, in one table of ratios.

Every rival has a virtual environment of its own, with the versions of requirements.toml. One that does not
install, or does not run, has a line that says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from coterie.learning import cores
from coterie.learning.executor import pinned_threads

_HERE = Path(__file__).parent
_HOME = Path(".venv-rivals")
Asked = dict[str, int | str]
FULL: Asked = {"peers": 20, "samples": 300, "batch": 32, "rounds": 20}
TINY: Asked = {"peers": 3, "samples": 40, "batch": 32, "rounds": 3}
_TURNS = 3
MODELS = {"mlp": "MLP-128", "cnn": "small CNN"}
# Products of one image's forward pass: of the two layers, or of two convolutions of 3 x 3 and a layer.
_PRODUCTS = {"mlp": 784 * 128 + 128 * 10, "cnn": 784 * 16 * 9 + 196 * 32 * 16 * 9 + 32 * 49 * 10}


@dataclass(frozen=True)
class Taken:
    """By one process, from the command to its end."""

    per_round: float  # seconds, the median of all rounds but the first
    cpu: float  # seconds, with all children
    peak: float  # bytes of the largest process
    first: float  # seconds from the command to the first finished round


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks rivals")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rivals; all if none is named")
    parser.add_argument("--tiny", action="store_true", help="whether they run, in seconds")
    parser.add_argument("--model", choices=MODELS, action="append", help="both if none is named")
    parser.add_argument("--turns", type=int, default=_TURNS)
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args(arguments)
    names = given.names
    known = tomllib.loads((_HERE / "requirements.toml").read_text())
    if unknown := set(names) - set(known):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(known)}")
    pythons: dict[str, Path | str] = {"coterie": Path(sys.executable)}
    for name in names or known:
        pythons[name] = _environment(name, known[name]["install"])
    for model in given.model or MODELS:
        asked = {"model": model, **(TINY if given.tiny else FULL)}
        if given.rounds:
            asked["rounds"] = given.rounds
        found = measured(pythons, asked, 1 if given.tiny else given.turns)
        Console().print(table(found, asked))


def measured(pythons: dict[str, Path | str], asked: Asked, turns: int) -> dict[str, list[Taken] | str]:
    """By turns: a disturbance of the machine hits all alike. A text says why there is nothing."""
    found: dict[str, list[Taken] | str] = {
        name: [] if isinstance(python, Path) else python for name, python in pythons.items()
    }
    for _ in range(turns):
        for name, python in pythons.items():
            before = found[name]
            if isinstance(before, list) and isinstance(python, Path):
                one = run(python, _HERE / f"{name}_work.py", asked)
                found[name] = one if isinstance(one, str) else [*before, one]
    return found


def run(python: Path, script: Path, asked: Asked) -> Taken | str:
    """One process; a text says why it failed."""
    command, environment = [str(python), str(script)], {**os.environ, "BENCHMARK_ASKED": json.dumps(asked)}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        _, status, usage = os.wait4(process.pid, 0)  # of it and of the children that it waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        lines = [line for line in output if line.startswith('{"ends"')]
        if process.returncode or not lines:
            return f"does not run: {_reason(errors.read())}"
    ends: list[float] = json.loads(lines[-1])["ends"]
    rounds = [after - before for before, after in itertools.pairwise(ends)]
    return Taken(median(rounds), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0, ends[0] - start)


def _reason(errors: str) -> str:
    """The line that names an error, or the last."""
    lines = errors.strip().splitlines() or ["no output"]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1])[:90]


def table(found: dict[str, list[Taken] | str], asked: Asked) -> Table:
    """Ratios to Coterie; above 1, Coterie needs less."""
    ours = found["coterie"]
    if isinstance(ours, str):
        raise SystemExit(f"coterie {ours}")
    own, limit = _median(ours), limit_seconds(asked)
    said = ", ".join(f"{value} {name}" for name, value in asked.items() if name != "model")
    title = f"{MODELS[_model(asked)]}, {said}, ring; ratios to Coterie"
    drawn = Table(title=title, caption=_caption(own, limit))
    for column in ("", "seconds a round", "CPU seconds", "peak memory", "to the first round"):
        drawn.add_column(column, justify="left" if not column else "right")
    for name, takens in found.items():
        if isinstance(takens, str):
            drawn.add_row(name, takens, "", "", "")
            continue
        one = _median(takens)
        pairs = (
            (one.per_round, own.per_round),
            (one.cpu, own.cpu),
            (one.peak, own.peak),
            (one.first, own.first),
        )
        drawn.add_row(name, *(f"{theirs / mine:.2f}" for theirs, mine in pairs))
    return drawn


def limit_seconds(asked: Asked) -> float:
    """Forward and backward products of a round at the speed of a large product on all cores."""
    size, taken = 1024, []
    a, b = torch.randn(size, size), torch.randn(size, size)
    with pinned_threads(cores()):
        for _ in range(6):
            start = time.perf_counter()
            torch.mm(a, b)
            taken.append(time.perf_counter() - start)
    speed = 2 * size**3 / min(taken)
    return 6 * _PRODUCTS[_model(asked)] * int(asked["peers"]) * int(asked["samples"]) / speed


def _model(asked: Asked) -> str:
    return str(asked.get("model", "mlp"))


def _caption(own: Taken, limit: float) -> str:
    return (
        f"Coterie: {1000 * own.per_round:.1f} ms a round, {own.per_round / limit:.1f} times the limit of "
        f"{1000 * limit:.1f} ms by its products alone; {own.cpu:.1f} CPU s, {own.peak / 2**20:.0f} MiB, "
        f"{own.first:.1f} s to the first round"
    )


def _median(takens: list[Taken]) -> Taken:
    def middle(name: str) -> float:
        return float(median(getattr(one, name) for one in takens))

    return Taken(middle("per_round"), middle("cpu"), middle("peak"), middle("first"))


def _environment(name: str, install: list[str]) -> Path | str:
    """The interpreter of a rival's environment, which is made if it is not there; a text says why not."""
    if not install:
        return Path(sys.executable)
    folder = _HOME / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    if stamp.is_file() and stamp.read_text() == " ".join(install):
        return python
    venv.create(folder, with_pip=True, clear=True)
    inside = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
    )
    borrowed = [sysconfig.get_path("purelib"), str(Path(torch.__file__).parents[1])]
    Path(inside.stdout.strip(), "torch_of_coterie.pth").write_text("\n".join(dict.fromkeys(borrowed)) + "\n")
    more = os.environ.get("PIP_ARGS", "").split()
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *more, *install], capture_output=True, text=True
    )
    if done.returncode:
        return f"does not install: {_reason(done.stderr)}"
    stamp.write_text(" ".join(install))
    return python
