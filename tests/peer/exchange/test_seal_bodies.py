"""Named byte strings of secure sums come back, or are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutated, outcome

from coterie.errors import RefusedError
from coterie.peer.exchange.sealed.bodies import decode_parts, encode_parts


@given(parts=st.dictionaries(st.text(max_size=20), st.binary(max_size=50), max_size=20))
def test_parts_come_back(parts: dict[str, bytes]) -> None:
    assert decode_parts(encode_parts(parts)) == parts


def test_malformed_parts_are_refused() -> None:
    good = encode_parts({"one": b"1", "two": b"22"})
    repeated = encode_parts({"one": b"1", "onf": b"1"}).replace(b"onf", b"one")
    bodies = {
        b"": "truncated",
        good[:-1]: "truncated",
        good[:7]: "truncated",
        good + b"\0": "oversized",
        struct.pack("!I", 2002): "oversized",
        struct.pack("!IHQ", 1, 3, 2**63) + b"one": "truncated",
        struct.pack("!IHQ", 1, 256, 0) + b"x" * 256: "malformed",
        good.replace(b"one", b"\xff\xff\xff"): "malformed",
        repeated: "malformed",
    }
    for body, reason in bodies.items():
        with pytest.raises(RefusedError) as caught:
            decode_parts(body)
        assert caught.value.reason == reason


def test_too_many_parts_are_not_sent() -> None:
    with pytest.raises(ValueError, match="2002 parts"):
        encode_parts({str(number): b"" for number in range(2002)})
    with pytest.raises(ValueError, match="name"):
        encode_parts({"x" * 256: b""})


@given(raw=mutated([encode_parts({"one": b"1", "two": b"22" * 30, "": b""})]))
@settings(max_examples=1000)
def test_mutated_parts_are_parts_or_refused(raw: bytes) -> None:
    parts, reason = outcome(decode_parts, raw)
    assert reason in {"truncated", "malformed", "oversized"} or encode_parts(parts) == raw
