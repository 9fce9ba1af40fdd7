"""Numbers as the page gets them: JSON without NaN, with as many digits as can be seen, and as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.metric import Metric

_DIGITS = 6


def plain(values: Any, digits: int = _DIGITS) -> Any:
    """Arrays as lists; NaN and infinity as None."""
    if isinstance(values, np.ndarray):
        return plain(values.tolist(), digits)
    if isinstance(values, list | tuple):
        return [plain(value, digits) for value in values]
    if isinstance(values, dict):
        return {key: plain(value, digits) for key, value in values.items()}
    if isinstance(values, float):
        return None if not math.isfinite(values) else round(values, digits)
    return values


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"training": {"lr": 0.1}}` as `{"training.lr": 0.1}`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def in_words(metric: Metric, value: float) -> str:
    """87.1 %, or 0.3124."""
    return f"{metric.text(value)} %" if metric.percent else metric.text(value)


def signed(metric: Metric, gain: float) -> str:
    """+3.6, -0.4, or 0.0: what rounds to nothing has no sign."""
    text = metric.text(gain, signed=True)
    return text.lstrip("+-") if is_nothing(text) else text


def difference(metric: Metric, gain: float) -> str:
    """3.6 points; without a sign, which words give."""
    return f"{metric.text(abs(gain))} points" if metric.percent else metric.text(abs(gain))


def is_nothing(text: str) -> bool:
    """Whether a number rounds to nothing as it is written."""
    return not any(digit in text for digit in "123456789")


def listing(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def metric_entry(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "title": metric.title,
        "unit": metric.unit,
        "percent": metric.percent,
        "higher_is_better": metric.higher_is_better,
        "better": metric.better,
    }
