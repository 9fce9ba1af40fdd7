"""Whether the methods of a table trained equally long: a line above it, and a sign for those that did not."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

SIGN = "≠"
_TOLERANCE = 0.02


def steps_of(result: Mapping[str, Any]) -> float | None:
    """Gradient steps per peer over the run; None for results of a version that did not count them."""
    found = result.get("gradient_steps_per_peer")
    return None if found is None else float(found["mean"])


def said_above(results: Sequence[Mapping[str, Any]]) -> str:
    """What a table of these results says about their local work."""
    if not all(result.get("work") == "equal" for result in results):
        return "Local work as each method sets it, which need not be equal"
    local = [result for result in results if result["algorithm"] == "local"] or results
    spread = [(steps, one["rounds"]) for one in local if (steps := one.get("gradient_steps_per_peer"))]
    if not spread:
        return "Equal local work"
    low = f"{min(steps['min'] / rounds for steps, rounds in spread):.3g}"
    high = f"{max(steps['max'] / rounds for steps, rounds in spread):.3g}"
    steps = f"{low} step{'' if low == '1' else 's'}" if low == high else f"{low} to {high} steps"
    return f"Equal local work: every peer takes {steps} a round" + (", by its data" if low != high else "")


def said_below(reference: str) -> str:
    """What the sign means. reference: whose steps the others are compared with."""
    return f"{SIGN}: its steps differ from {reference} by more than {100 * _TOLERANCE:.0f} %"


def unequal(steps: Sequence[float | None], local: float | None = None) -> list[bool]:
    """Which of these differ from Local's steps, or from their median where Local is not among them."""
    known = [value for value in steps if value is not None]
    reference = local if local is not None or not known else statistics.median(known)
    return [
        value is not None and reference is not None and abs(value - reference) > _TOLERANCE * reference
        for value in steps
    ]
