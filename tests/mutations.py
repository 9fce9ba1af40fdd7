"""Small changes of valid bytes, which get further into a decoder than noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from coterie.errors import RefusedError


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    raw = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(raw)))
        change = draw(st.sampled_from(["flip", "insert", "remove", "cut"]))
        if change == "flip" and place < len(raw):
            raw[place] ^= 1 << draw(st.integers(0, 7))
        elif change == "insert":
            raw[place:place] = draw(st.binary(min_size=1, max_size=9))
        elif change == "remove":
            del raw[place : place + draw(st.integers(1, 9))]
        elif change == "cut":
            del raw[place:]
    return bytes(raw)


def outcome(decode: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """What was decoded, or the reason of the refusal; any other error fails the test."""
    try:
        return decode(*args), ""
    except RefusedError as error:
        return None, error.reason
