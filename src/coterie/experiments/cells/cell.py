"""A cell: one run of those that a sweep or a paper's table is made of, in a folder of its own.

A cell's folder is named after a fingerprint of its experiment and of the user's own files. So a finished cell
is found again whoever asks for it, a changed experiment or network is another cell, and two tables that need
the same run share it.

    <folder>/<cell>/                a run folder (see `runs.folder`), and
    <folder>/<cell>/facts.json      what the records lack: clusters, majority-class floor, collaboration
    <folder>/<cell>.broken.json     why the last attempt failed, until one succeeds
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.experiments.setup.digest import fingerprint
from coterie.experiments.setup.schema import Experiment
from coterie.files import write_atomically
from coterie.user_code import in_short

FACTS = "facts.json"
MOST_PEERS_IN_SHARES = 500  # a denser matrix of who learned from whom would be larger than all other records


@dataclass(frozen=True)
class Cell:
    """One run, and what distinguishes it from others for its reader: `{"algorithm": "local", "seed": 0}`."""

    experiment: Experiment
    labels: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def name(self) -> str:
        """The name of its folder; files that are edited from now on do not change it."""
        e = self.experiment
        words = f"{in_short(e.algorithm)}-{Path(in_short(e.data)).name}"
        words = re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.")
        return f"{words}-s{e.seed}-{fingerprint(e)}"

    def on(self, engine: str) -> Cell:
        """The same cell, to be run there."""
        return replace(self, experiment=self.experiment.executed(engine=engine))

    def describe(self) -> str:
        return ", ".join(
            f"{value}" if key != "seed" else f"seed {value}" for key, value in self.labels.items()
        )


def is_finished(folder: Path) -> bool:
    return (folder / "result.json").is_file() and (folder / FACTS).is_file()


def breakage(folder: Path) -> str | None:
    """Why the last attempt at the cell of this folder failed; None if it did not."""
    try:
        return str(json.loads(_breakage_file(folder).read_text(encoding="utf-8"))["error"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        return f"{_breakage_file(folder)} cannot be read: {error}"


def note_breakage(folder: Path, message: str) -> None:
    write_atomically(_breakage_file(folder), json.dumps({"error": message}, indent=2).encode())


def forget_breakage(folder: Path) -> None:
    _breakage_file(folder).unlink(missing_ok=True)


def _breakage_file(folder: Path) -> Path:
    return folder.with_name(folder.name + ".broken.json")
