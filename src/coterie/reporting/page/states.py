"""How a run stands: running and for how long yet, finished, interrupted, or broken and why."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from coterie.files import somebody_has
from coterie.reporting.numbers.folders import OfFolder

Kind = Literal["running", "finished", "interrupted", "broken"]
_LATELY = 10  # rounds from which the time left is estimated


@dataclass(frozen=True)
class State:
    kind: Kind
    text: str  # in words
    left: float | None = None  # seconds, of a run that goes on

    def entry(self) -> dict[str, Any]:
        return {"kind": self.kind, "text": self.text, "left": self.left}


def state_of(run: OfFolder) -> State:
    done, planned = len(run.done), run.planned
    if run.result:
        stopped = run.result.get("stopped")
        said = f"finished early after {done} of {planned} rounds: {stopped}" if stopped else "finished"
        return State("finished", said)
    if is_running(run.path):
        left = None
        if done:
            left = statistics.fmean(run.done.seconds[-_LATELY:]) * max(0, planned - done)
        return State("running", f"running, round {done} of {planned}" + time_left(left), left)
    reason = breakage(run.path)
    if reason is not None:
        return State("broken", f"broken: {reason}")
    return State("interrupted", f"interrupted after {done} of {planned} rounds")


def is_running(folder: Path) -> bool:
    """Whether a process writes to the folder."""
    return somebody_has(folder / ".lock")


def breakage(folder: Path) -> str | None:
    """Why the last attempt at a cell failed, as the file beside its folder says."""
    path = folder.with_name(folder.name + ".broken.json")
    try:
        return str(json.loads(path.read_bytes())["error"])[:500]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "the note on why it failed cannot be read"


def time_left(seconds: float | None) -> str:
    return "" if seconds is None else f", {in_time(max(1, round(seconds)))} left"


def in_time(seconds: float) -> str:
    """1.6 s, 42 s, 12 min or 3 h."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 and seconds != round(seconds) else f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{round(minutes / 60)} h"


def of_other_version(run: OfFolder) -> str:
    """What to say of a run that another version made; empty if this one did."""
    here = version("coterie")
    if run.version == here:
        return ""
    made = f"version {run.version}" if run.version else "an unknown version"
    return f"This run was made by {made} of Coterie, and is read by {here}: some numbers may be missing."
