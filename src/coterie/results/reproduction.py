"""A reproduced table or figure as it was written: our numbers beside the paper's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import RunFolderError
from coterie.experiments.runs.frames import frame
from coterie.reporting.comparison import Lines
from coterie.reporting.reproduction_text import RESULTS


@dataclass(frozen=True, repr=False)
class Reproduced:
    """One table or figure of a paper at one scale."""

    folder: Path
    result: dict[str, Any]  # what `coterie reproduce --json` prints of it

    @classmethod
    def read(cls, folder: Path) -> Reproduced:
        try:
            found = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
            lacking = [key for key in ("name", "scale", "numbers", "claims", "missing") if key not in found]
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(f"{folder / RESULTS} cannot be read: {error}") from None
        if lacking:
            raise RunFolderError(f"{folder / RESULTS} cannot be read: it has no {lacking[0]!r}")
        return cls(folder, found)

    def __repr__(self) -> str:
        """Which table it is, how much of it was run, and how the paper's claims fared, in a line."""
        said = [claim["status"] for claim in self.result["claims"]]
        holds = f"{said.count('holds')} of {len(said)} claims hold" if said else "no claims"
        missing = len(self.result["missing"])
        runs = f", {missing} runs missing" if missing else ""
        return f"<Reproduced {self.result['name']} at scale {self.result['scale']}, {holds}{runs}>"

    @property
    def numbers(self) -> Lines:
        """A line for each method, setting and metric: ours with its interval, and the printed number."""
        return list(self.result["numbers"])

    def frame(self, library: str | None = None) -> Any:
        """The numbers as a data frame of pandas or polars."""
        lines = self.numbers
        return frame({name: [line[name] for line in lines] for name in (lines[0] if lines else ())}, library)
