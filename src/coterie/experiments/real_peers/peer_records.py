"""What a real peer writes down of its rounds. Needs no PyTorch to be read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.files import write_atomically

if TYPE_CHECKING:
    from coterie.peer.turn import RoundReport

RECORDS_FILE = "records.jsonl"


class Records:
    """One JSON line per round in a peer's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, report: RoundReport) -> None:
        line = {
            "round": report.round,
            "seconds": round(report.seconds, 3),
            "train_loss": _number(report.train_loss),
            "metric": next(iter(report.scores), None),
            **{name: _numbers(by_point) for name, by_point in report.scores.items()},
            "gradient_steps": report.gradient_steps,
            "samples_seen": report.samples_seen,
            "samples": dict(report.samples),
            "skipped": report.skipped,
            "alone": report.alone,
        }
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def keep_until(self, round: int) -> None:
        """After a restart: drop lines of rounds that were not committed."""
        if not self.path.exists():
            return
        kept = [line for line in self.read() if line["round"] < round]
        write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def read(self) -> list[dict[str, Any]]:
        """The rounds so far; a line that a crash cut off is left out."""
        lines = []
        if self.path.exists():
            for text in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, RecursionError):
                    line = json.loads(text)
                    if isinstance(line, dict) and isinstance(line.get("round"), int):
                        lines.append(line)
        return lines


def main_metric(lines: Sequence[Mapping[str, Any]]) -> str:
    """Its name; records of older versions have accuracy only."""
    return str(lines[-1].get("metric") or "accuracy") if lines else "accuracy"


def last_scores(lines: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, float]]:
    """The main metric, and its values by point of the round when it was last measured."""
    name = main_metric(lines)
    return name, last_of(lines, name)


def until_best(
    lines: Sequence[Mapping[str, Any]], point: str, higher_is_better: bool
) -> Sequence[Mapping[str, Any]]:
    """The rounds up to the one with the best validation score at this point of a round, the first of equals.

    All of them if there are no such scores.
    """
    column = f"validation_{main_metric(lines)}"
    scores = [(line.get(column) or {}).get(point) for line in lines]
    known = {number: float(score) for number, score in enumerate(scores) if score is not None}
    if not known:
        return lines
    best = max(known, key=lambda number: known[number] if higher_is_better else -known[number])
    return lines[: best + 1]


def last_of(lines: Sequence[Mapping[str, Any]], column: str) -> dict[str, float]:
    """By point of the round, when it was last measured."""
    return next((dict(line[column]) for line in reversed(lines) if line.get(column)), {})


def _numbers(by_point: Mapping[str, float]) -> dict[str, float | None]:
    return {point: _number(value) for point, value in by_point.items()}


def _number(value: float) -> float | None:
    return None if value != value else value  # NaN is not JSON
