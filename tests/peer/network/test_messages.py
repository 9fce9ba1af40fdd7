"""Bytes from strangers become messages or a refusal, never another error."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutated, outcome
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from coterie.errors import RefusedError
from coterie.peer.network.messages import (
    LARGEST_HEAD,
    Claim,
    Finding,
    Had,
    Hello,
    Inquiry,
    Leaf,
    Parcel,
    Receipt,
    Refusal,
    SealAnswer,
    SealStep,
    Voucher,
    Whereabouts,
    decode_head,
    decode_tree,
    encode_head,
    encode_tree,
    shape_of,
)
from coterie.peer.trust.names import Address
from coterie.protocol.trees import Tree, leaves, map_tree

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)

HEADS = [
    Hello(sender="anna", number=0, digest="0" * 64, at=Whereabouts(address="10.0.0.1:7000"), round=-1),
    Hello(
        sender="anna",
        number=3,
        digest="a" * 64,
        at=Whereabouts(address="[::1]:7000", serial=2**53, proof="c2lnbmVk"),
        round=7,
        finished=True,
        missing=(0, 10**6),
        addresses={
            "bob": Whereabouts(address="bob.example:1"),
            "carol": Whereabouts(address="1.2.3.4:65535", serial=1, proof="c2lnbmVk"),
        },
    ),
    Parcel(sender="a.b-c_d", round=10**9, slot=10**6),
    Parcel(sender="bob", round=1, slot=0, empty=True),
    Inquiry(sender="bob", round=1, slot=0),
    SealStep(sender="x", round=0, slot=0, step="mask", session="f" * 32, members=(1, 2, 3), threshold=2),
    Claim(sender="x", round=2, slot=0, session="f" * 32, members=(1, 2), had=(Had(members=(), rounds=(1,)),)),
    Voucher(sender="bob", proof="c2lnbmVk"),
    Receipt(sender="bob", duplicate=True),
    Finding(sender="bob", taken=None),
    SealAnswer(sender="bob", exponent=-64),
    Refusal(sender="bob", reason="not-finite", text="\u2713 a text"),
]

PAYLOAD: dict[str, Any] = {
    "model": {
        "body.weight": torch.arange(12.0).reshape(1, 3, 4),
        "body.bias": torch.zeros(1, 3, dtype=torch.float64),
    },
    "mass": torch.ones(1, dtype=torch.float64),
    "mask": torch.tensor([[True, False]]),
    "count": torch.tensor([5]),
}
SHAPE = shape_of(PAYLOAD)
BODY = encode_tree(PAYLOAD)


def refusal(body: bytes | Path, like: Any = SHAPE) -> str:
    with pytest.raises(RefusedError) as caught:
        decode_tree(body, like)
    assert len(caught.value.text) <= 500
    return caught.value.reason


def with_header(change: Any, body: bytes = BODY) -> bytes:
    """The body with its header rewritten."""
    (length,) = struct.unpack("<Q", body[:8])
    header = json.loads(body[8 : 8 + length])
    text = json.dumps(change(header) or header).encode()
    return struct.pack("<Q", len(text)) + text + body[8 + length :]


def equal(one: Tree, other: Tree) -> bool:
    ours, theirs = dict(leaves(one)), dict(leaves(other))
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


# Heads


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_a_head_comes_back(head: Any) -> None:
    assert decode_head(encode_head(head)) == head


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"kind": "hello"}',
        b'{"kind": "unknown", "sender": "bob"}',
        b'{"kind": "receipt", "sender": "bob", "more": 1}',
        b'{"kind": "receipt", "sender": "../bob"}',
        b'{"kind": "receipt", "sender": 7}',
        b'{"kind": "inquiry", "sender": "bob", "round": 1.0, "slot": 0}',
        b'{"kind": "inquiry", "sender": "bob", "round": 1e999, "slot": 0}',
        b'{"kind": "inquiry", "sender": "bob", "round": ' + b"9" * 5000 + b', "slot": 0}',
        b"\xff\xfe",
        b'"\\ud800"',
        b"[" * 20_000,
        b'{"a":' * 10_000,
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_a_malformed_head_is_refused(raw: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        decode_head(raw)
    assert caught.value.reason == "malformed"
    assert len(caught.value.text) <= 500


def test_a_head_that_is_too_large_is_not_even_parsed() -> None:
    with pytest.raises(RefusedError, match=f"oversized: a head of {LARGEST_HEAD + 1} bytes"):
        decode_head(b" " * (LARGEST_HEAD + 1))


def test_no_head_is_larger_than_others_accept() -> None:
    """A membership counts the bytes of addresses; see there."""
    place = Whereabouts(address="x" * 253 + ":65535", serial=2**53)
    longest = {f"{number:x>64}": place for number in range(100)}
    parts = {f"{number:x>64}": "0" * 8 for number in range(64)}
    said = {**dict(HEADS[0]), "missing": (10**6,) * 100, "parts": parts}
    assert len(encode_head(Hello(**{**said, "addresses": longest}))) <= LARGEST_HEAD
    with pytest.raises(ValidationError, match="at most 100"):
        Hello(**{**said, "addresses": {**longest, "one-more": place}})


# Trees


def rows_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn((2, *shape), generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, (2, *shape), generator=generator).to(dtype)


tensors = st.builds(
    rows_of,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.integers(0, 2**30),
)
keys = st.text(min_size=1, max_size=8).filter(lambda key: "/" not in key)
trees = st.recursive(tensors, lambda inner: st.dictionaries(keys, inner, max_size=4), max_leaves=6)


@given(tree=trees, row=st.integers(0, 1))
@settings(max_examples=200)
def test_a_row_of_any_tree_comes_back(tree: Tree, row: int) -> None:
    shape = shape_of(tree)
    back = decode_tree(encode_tree(tree, row), shape)
    assert equal(back, map_tree(lambda leaf: leaf[row : row + 1], tree))
    assert shape_of(back) == shape  # empty branches and the order of names too


@given(tree=trees)
def test_a_file_gives_the_same_as_bytes(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("bodies") / "body"
    path.write_bytes(encode_tree(tree))
    assert equal(decode_tree(path, shape_of(tree)), decode_tree(encode_tree(tree), shape_of(tree)))


def test_bodies_are_safetensors() -> None:
    flat = dict(leaves(PAYLOAD))
    theirs = safetensors.torch.load(BODY)
    assert {name: leaf[0].tolist() for name, leaf in flat.items()} == {
        name: tensor.tolist() for name, tensor in theirs.items()
    }
    assert equal(
        decode_tree(safetensors.torch.save({k: v[0].clone() for k, v in flat.items()}), SHAPE), PAYLOAD
    )


def test_a_shape_names_one_row() -> None:
    assert SHAPE.leaves == {
        "model/body.weight": Leaf((3, 4), torch.float32),
        "model/body.bias": Leaf((3,), torch.float64),
        "mass": Leaf((), torch.float64),
        "mask": Leaf((2,), torch.bool),
        "count": Leaf((), torch.int64),
    }
    assert SHAPE.size == 48 + 24 + 8 + 2 + 8


def test_a_tree_without_tensors_is_an_empty_body() -> None:
    assert encode_tree({}) == b""
    assert decode_tree(b"", shape_of({})) == {}
    assert refusal(b"x", shape_of({})) == "shape"
    assert refusal(b"") == "truncated"


def test_a_bare_tensor_has_no_name() -> None:
    tensor = torch.tensor([[1.0, 2.0]])
    assert shape_of(tensor).leaves == {"": Leaf((2,), torch.float32)}
    back = decode_tree(encode_tree(tensor), shape_of(tensor))
    assert isinstance(back, Tensor)
    assert torch.equal(back, tensor)


def test_tensors_that_cannot_be_told_apart_are_not_sent() -> None:
    with pytest.raises(ValueError, match="two tensors"):
        encode_tree({"a/b": torch.ones(1), "a": {"b": torch.ones(1)}})
    with pytest.raises(TypeError, match="complex"):
        shape_of(torch.ones(1, dtype=torch.complex64))


def test_decoded_tensors_are_writable_and_own_their_memory() -> None:
    body = encode_tree(PAYLOAD)
    back = decode_tree(body, SHAPE)
    map_tree(lambda leaf: leaf.zero_(), back)
    assert body == BODY


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_floating_point])
def test_numbers_are_finite(dtype: torch.dtype, value: float) -> None:
    tree = {"w": torch.zeros(1, 50, dtype=dtype)}
    tree["w"][0, 37] = value
    assert refusal(encode_tree(tree), shape_of(tree)) == "not-finite"


def test_booleans_are_zero_or_one() -> None:
    tree = {"mask": torch.tensor([[True, False]])}
    assert refusal(encode_tree(tree)[:-1] + b"\x02", shape_of(tree)) == "malformed"


def test_other_names_shapes_and_dtypes_are_refused() -> None:
    without_mass = {key: value for key, value in PAYLOAD.items() if key != "mass"}
    assert refusal(encode_tree(without_mass)) == "shape"
    assert refusal(encode_tree({**PAYLOAD, "more": torch.ones(1)})) == "shape"
    assert refusal(encode_tree({**PAYLOAD, "mass": torch.ones(1)})) == "shape"
    assert refusal(encode_tree({**PAYLOAD, "mass": torch.ones(1, 1, dtype=torch.float64)})) == "shape"
    with pytest.raises(RefusedError, match=r"'mass' is F32 \[\], and F64 \[\] was expected"):
        decode_tree(encode_tree({**PAYLOAD, "mass": torch.ones(1)}), SHAPE)


def test_data_of_another_length_is_refused(tmp_path: Path) -> None:
    assert refusal(BODY[:-1]) == "truncated"
    assert refusal(BODY[:4]) == "truncated"
    assert refusal(BODY[:20]) == "truncated"
    assert refusal(BODY + b"\0") == "oversized"
    (tmp_path / "body").write_bytes(BODY[:-1])
    assert refusal(tmp_path / "body") == "truncated"


def swap(header: dict[str, Any], first: str, second: str) -> None:
    """Two places of equal size: still a valid file."""
    one, other = header[first], header[second]
    one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]


def test_tensors_may_lie_in_any_order() -> None:
    swapped = with_header(lambda header: swap(header, "mass", "count"))
    refused = decode_tree(swapped, SHAPE)
    assert not equal(refused, PAYLOAD)
    assert shape_of(refused) == SHAPE


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["mass"].update(data_offsets=header["count"]["data_offsets"]),  # overlap
        lambda header: header["mass"].update(data_offsets=[-8, 0]),
        lambda header: header["mass"].update(data_offsets=[2**62, 2**62 + 8]),
        lambda header: header["mass"].update(data_offsets=[0]),
        lambda header: header["mass"].update(data_offsets=None),
        lambda header: header["mass"].update(data_offsets=[72.0, 80.0]),
        lambda header: header["mass"].update(shape="[]"),
        lambda header: header["mass"].update(shape=[True]),
        lambda header: header["mass"].update(dtype=["F64"]),
        lambda header: header["mass"].update(more=1),
        lambda header: header["mass"].pop("dtype") and None,
        lambda header: header.update(mass=[]),
        lambda header: list(header),
    ],
)
def test_a_malformed_header_is_refused(change: Any) -> None:
    assert refusal(with_header(change)) == "malformed"


@pytest.mark.parametrize(
    "text", [b"{", b"\xff\xff", b"[" * 1500, b'{"a": 1, "a": 2}', b"1" * 1500, b"null", b""]
)
def test_a_header_that_is_no_json_object_is_refused(text: bytes) -> None:
    assert refusal(struct.pack("<Q", len(text)) + text + bytes(90)) == "malformed"


def test_what_a_header_claims_takes_no_memory() -> None:
    claims = [
        struct.pack("<Q", 2**63) + BODY[8:],
        struct.pack("<Q", 2**40) + BODY[8:],
        with_header(lambda header: header["mass"].update(shape=[2**40], data_offsets=[0, 2**43])),
    ]
    tracemalloc.start()
    try:
        assert [refusal(body) for body in claims] == ["malformed", "malformed", "shape"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# Mutations of what is valid


@given(raw=mutated([encode_head(head) for head in HEADS]))
@settings(max_examples=1000)
def test_a_mutated_head_is_a_head_or_refused(raw: bytes) -> None:
    head, reason = outcome(decode_head, raw)
    assert reason == "malformed" or decode_head(encode_head(head)) == head


@given(raw=mutated([BODY]))
@settings(max_examples=1000)
def test_a_mutated_body_fits_the_shape_or_is_refused(raw: bytes) -> None:
    tree, reason = outcome(decode_tree, raw, SHAPE)
    if reason:
        assert reason in {"shape", "not-finite", "truncated", "malformed", "oversized"}
    else:
        assert shape_of(tree) == SHAPE
        assert all(bool(torch.isfinite(leaf).all()) for _, leaf in leaves(tree))


def test_text_of_others_forges_no_log_line_and_no_terminal_code() -> None:
    forged = "no\n04:52:33 alice: all is well\x1b[2J\x1b]0;title\x07 \u202egnp.exe \u2028 \x00 ok \N{SNOWMAN}"
    raw = json.dumps({"kind": "refusal", "sender": "bob", "reason": "stale", "text": forged}).encode()
    refusal = decode_head(raw)
    assert isinstance(refusal, Refusal)
    assert refusal.text.isprintable()
    assert refusal.text.startswith("no\\n04:52:33 alice: all is well\\x1b[2J")
    assert "\N{SNOWMAN}" in refusal.text


@pytest.mark.parametrize("text", ["x" * 500, "\x1b" * 500, "\N{SNOWMAN}" * 400])
def test_text_of_others_is_cut_and_can_be_passed_on(text: str) -> None:
    refusal = Refusal(sender="bob", reason="stale", text=text)
    assert len(refusal.text) == 300
    assert refusal.text.endswith("...")
    assert decode_head(encode_head(refusal)) == refusal


@pytest.mark.parametrize("host", ["a\x1b[2J", "a\u202eb", "b\xfccher.example", "a b", "a/b", ""])
def test_an_address_is_made_of_plain_characters(host: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Address).validate_python(f"{host}:7400")
