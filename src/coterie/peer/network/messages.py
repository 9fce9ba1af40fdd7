"""What peers say to each other, how it becomes bytes, and how large it may be.

A message is a small head and, for some kinds, a body. Heads are JSON, checked against the classes below.
Every head names its sender, and the receiver compares that with the TLS certificate of the connection.
Bodies are safetensors, or what `exchange/sealed/bodies.py` packs for secure sums. Nothing is unpickled.

Bytes from strangers become a message or a refusal. `LARGEST_HEAD` and `LARGEST_BODY` bound what is read at
all. A receiver also knows the names, shapes and dtypes that an exchange carries (`TreeShape`). It compares a
body with them before it makes any tensor: what a header claims never decides how much memory is used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, RawIOBase
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from coterie.errors import RefusedError, printable
from coterie.peer.trust.names import Address, Name
from coterie.protocol.trees import Tree, leaves

WIRE = 4
"""The version of the messages: releases of the same one talk to each other. 0.1.0 states none: that is 1."""
LARGEST_HEAD = 64 << 10
LARGEST_BODY = 256 << 20
MOST_PARTS = 64  # of an experiment, by which peers find out what differs

Body: TypeAlias = "bytes | Path"
"""A received body: in memory, or in a file of its own when it is large. Whoever takes it removes the file."""

Reason: TypeAlias = Literal[
    "certificate",  # unknown, expired, or signed by a stranger
    "sender",  # the message names another sender than the connection's certificate
    "experiment",  # the peers' experiment files differ
    "stale",  # a round that is over
    "early",  # a round that is too far ahead
    "shape",  # names, shapes or dtypes of tensors are not those of this exchange
    "not-finite",  # NaN or infinity
    "implausible",  # no honest peer of this experiment has such a model, or such a share
    "oversized",
    "truncated",
    "malformed",
    "slow",  # too few bytes in too long a time
    "busy",  # too many connections or messages at once
    "disk",  # what must be kept cannot be written
    "sealing",  # a step of a secure sum that does not fit
    "unexpected",  # a message that this peer has no use for
]

Round = Annotated[int, Field(ge=0, le=10**9)]
Slot = Annotated[int, Field(ge=0, le=10**6)]
Number = Annotated[int, Field(ge=0, le=10**6)]
Numbers = Annotated[tuple[Number, ...], Field(max_length=1000)]
Session = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Proof = Annotated[str, Field(max_length=4000, pattern=r"^[A-Za-z0-9+/=]*$")]  # a signature in base64

Parts = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]],
    Field(max_length=MOST_PARTS),
]


class _Head(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Whereabouts(_Head):
    """Where a peer can be reached, in its own words: only what it signed itself is believed, or passed on."""

    address: Address
    serial: Annotated[int, Field(ge=0, le=2**53)] = 0  # a later statement counts more
    proof: Proof = ""

    def statement(self, name: str) -> bytes:
        """What the proof is for."""
        return f"coterie address\n{name}\n{self.address}\n{self.serial}".encode()


class Terms(_Head):
    """What members may change together while they learn, as this one's files have it."""

    rounds: Annotated[int, Field(ge=1, le=10**9)]
    lr: Annotated[float, Field(ge=0, le=1e300)]
    deadline: Annotated[float, Field(gt=0, le=1e6)]


class Hello(_Head):
    """Who I am and where I am; also the heartbeat, and its own answer."""

    kind: Literal["hello"] = "hello"
    wire: Annotated[int, Field(ge=1, le=10**6)] = WIRE
    sender: Name
    number: Number  # place in the experiment
    digest: Digest  # of the experiment
    parts: Parts = Field(default_factory=dict)  # of it, from those who have not joined yet
    at: Whereabouts
    round: Annotated[
        int, Field(ge=-1, le=10**9)
    ]  # where the peer is: before, or in, this round's exchange number `slot`; -1: not started
    slot: Slot = 0
    finished: bool = False
    since: Round = 0  # the first round that I take part in
    until: Round | None = None  # the first round without me; None: I stay to the end
    terms: Terms | None = None  # that I would like
    news: Annotated[str, Field(pattern=r"^[0-9a-f]{0,16}$")] = ""  # a digest of what I know; see `News`
    lend: bool = False  # I cannot reach you: open connections to me, over which I can ask you
    missing: Annotated[tuple[Number, ...], Field(max_length=100)] = ()  # whose addresses I would like to know
    addresses: Annotated[dict[Name, Whereabouts], Field(max_length=100)] = Field(default_factory=dict)


class Parcel(_Head):
    """The payload of an exchange for the receiver, in the body; or word that there is none."""

    kind: Literal["parcel"] = "parcel"
    sender: Name
    round: Round
    slot: Slot
    empty: bool = False  # nothing for you in this exchange: do not wait for me


class Inquiry(_Head):
    """Did my parcel reach you? Asked by a sender that got no answer."""

    kind: Literal["inquiry"] = "inquiry"
    sender: Name
    round: Round
    slot: Slot


class News(_Head):
    """What members have signed for all others, in the body; the answer has what the other side knows."""

    kind: Literal["news"] = "news"
    sender: Name


class Lend(_Head):
    """From now on you ask on this connection, and I answer. For whoever cannot be dialled."""

    kind: Literal["lend"] = "lend"
    sender: Name


class SealStep(_Head):
    """A collector asks a member for its part in a secure sum."""

    kind: Literal["seal"] = "seal"
    sender: Name
    round: Round
    slot: Slot
    step: Literal["measure", "advertise", "share", "mask", "unmask"]
    session: Session
    members: Numbers = ()
    threshold: Annotated[int, Field(ge=0, le=1000)] = 0
    exponent: Annotated[int, Field(ge=-64, le=64)] = 0  # all values are within 2^exponent


class Had(_Head):
    """A group of whose sealed sums a collector had some, and in which rounds."""

    members: Numbers
    rounds: Annotated[tuple[Round, ...], Field(max_length=1000)]


class Claim(_Head):
    """I am about to have this sealed sum, and those are all that I had in the rounds that count."""

    kind: Literal["claim"] = "claim"
    sender: Name
    round: Round
    slot: Slot
    session: Session
    members: Numbers
    had: Annotated[tuple[Had, ...], Field(max_length=1000)] = ()

    def statement(self) -> bytes:
        """What those who vouch for it sign."""
        return b"coterie claim 1\n" + self.model_dump_json().encode()


class Receipt(_Head):
    """The parcel was taken, now or before."""

    kind: Literal["receipt"] = "receipt"
    sender: Name
    duplicate: bool = False


class Finding(_Head):
    """The answer to an inquiry; None: too long ago to know."""

    kind: Literal["finding"] = "finding"
    sender: Name
    taken: bool | None


class SealAnswer(_Head):
    """accused: members whose shares this member cannot use, instead of its masked vector."""

    kind: Literal["seal-answer"] = "seal-answer"
    sender: Name
    exponent: Annotated[int, Field(ge=-64, le=64)] = 0
    accused: Numbers = ()


class Voucher(_Head):
    """The answer to a claim: I sign it, or it does not say what I know. See `exchange/sealed/`."""

    kind: Literal["voucher"] = "voucher"
    sender: Name
    proof: Proof = ""  # of the claim's statement
    missing: Annotated[tuple[Had, ...], Field(max_length=1000)] = ()


class Refusal(_Head):
    """Why a message was not taken; nothing else changed at the receiver."""

    kind: Literal["refusal"] = "refusal"
    sender: Name
    reason: Reason
    text: Annotated[str, Field(max_length=500), AfterValidator(printable)]


Head: TypeAlias = Annotated[
    Hello
    | Parcel
    | Inquiry
    | News
    | Lend
    | SealStep
    | Claim
    | Receipt
    | Finding
    | SealAnswer
    | Voucher
    | Refusal,
    Field(discriminator="kind"),
]
HEAD: TypeAdapter[Head] = TypeAdapter(Head)


# Sizes


def check_head_size(length: int) -> None:
    if length > LARGEST_HEAD:
        raise RefusedError("oversized", f"a head of {length} bytes; at most {LARGEST_HEAD} are allowed")


def check_body_size(size: int, most: int = LARGEST_BODY) -> None:
    if size > most:
        raise RefusedError("oversized", f"a body of {size} bytes; at most {most} are allowed")


# Heads


def encode_head(head: Head) -> bytes:
    raw = HEAD.dump_json(head)
    check_head_size(len(raw))
    return raw


def decode_head(raw: bytes) -> Head:
    check_head_size(len(raw))
    try:
        head = HEAD.validate_json(raw)
        if isinstance(head, Hello):
            _check_wire(head.wire)
        return head
    except ValidationError as error:
        _check_wire(_wire_of(raw))
        # Without the input: what a stranger wrote has no place in our logs.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:64] for part in first["loc"][:3])
        raise RefusedError("malformed", f"the head is not valid: {place} {first['msg']}"[:400]) from None


def _check_wire(version: int) -> None:
    if version != WIRE:
        raise RefusedError(
            "version",
            f"a hello in version {version} of the messages, where version {WIRE} is spoken; install releases "
            "of Coterie that speak the same",
        )


def _wire_of(raw: bytes) -> int:
    """The version that a hello states, which may have fields that this release does not know."""
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError):
        return WIRE
    if not isinstance(table, dict) or table.get("kind") != "hello":
        return WIRE
    version = table.get("wire", 1 if "address" in table else WIRE)  # as 0.1.0 says where it is
    return version if type(version) is int and 0 < version <= 10**6 else WIRE


# Trees

_HEADER_LENGTH = struct.Struct("<Q")  # safetensors: little-endian length of the JSON header, header, data

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Leaf:
    """One row of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{_DTYPE_NAMES[self.dtype]} {list(self.shape)}"


_Shape: TypeAlias = "Leaf | Mapping[str, _Shape]"


@dataclass(frozen=True)
class TreeShape:
    """What one row of an exchange's payload looks like."""

    tree: _Shape  # nested like the payload

    @property
    def leaves(self) -> dict[str, Leaf]:
        """From names, written `outer/inner`, to shapes and dtypes."""
        return dict(_named(self.tree))

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(leaf.size for _, leaf in _named(self.tree))


def shape_of(tree: Tree) -> TreeShape:
    """The shape of one row of a tree whose tensors have a leading axis of rows."""
    return TreeShape(_row_shape(tree))


def _row_shape(tree: Tree) -> _Shape:
    if isinstance(tree, Tensor):
        if tree.dtype not in _DTYPE_NAMES:
            raise TypeError(f"tensors of {tree.dtype} cannot be sent")
        return Leaf(tuple(tree.shape[1:]), tree.dtype)
    return {key: _row_shape(value) for key, value in tree.items()}


def _named(shape: _Shape, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """As `protocol.trees.leaves` names tensors."""
    if isinstance(shape, Leaf):
        yield prefix, shape
    else:
        for key, value in shape.items():
            yield from _named(value, f"{prefix}/{key}" if prefix else key)


def encode_tree(tree: Tree, row: int = 0) -> bytes:
    """One row of a tree as safetensors; nothing for a tree without tensors."""
    rows = [(name, leaf[row].detach().cpu().contiguous()) for name, leaf in leaves(tree)]
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in rows:
        if name in header:
            raise ValueError(f"two tensors are named {name!r}")
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    if not rows:
        return b""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers map the data into memory: keep it aligned
    # join copies each tensor once, straight to its place.
    return b"".join([_HEADER_LENGTH.pack(len(text)), text, *(_bytes_of(tensor) for _, tensor in rows)])


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def decode_tree(body: bytes | Path, like: TreeShape) -> Tree:
    """The tree in a body, each tensor with a leading axis of one row; a file is read tensor by tensor."""
    expected = like.leaves
    with _opened(body) as (file, size):
        if not expected:
            if size:
                raise RefusedError("shape", f"a body of {size} bytes where no tensors are expected")
            return _nested(like.tree, {})
        header, start = _read_header(file, size, expected)
        _check_leaves(header, expected)
        _check_offsets(header, expected, size - start)
        tensors = {}
        for name, leaf in expected.items():
            file.seek(start + header[name]["data_offsets"][0])
            tensors[name] = _read_tensor(file, name, leaf)
    return _nested(like.tree, tensors)


@contextmanager
def _opened(body: bytes | Path) -> Iterator[tuple[RawIOBase | BytesIO, int]]:
    if isinstance(body, Path):
        with body.open("rb", buffering=0) as file:
            yield file, body.stat().st_size
    else:
        yield BytesIO(body), len(body)  # shares the bytes


def _nested(shape: _Shape, tensors: Mapping[str, Tensor], prefix: str = "") -> Tree:
    if isinstance(shape, Leaf):
        return tensors[prefix]
    return {
        key: _nested(value, tensors, f"{prefix}/{key}" if prefix else key) for key, value in shape.items()
    }


def _read_header(
    file: RawIOBase | BytesIO, size: int, expected: Mapping[str, Leaf]
) -> tuple[dict[str, Any], int]:
    """The header, and where the data starts."""
    if size < _HEADER_LENGTH.size:
        raise RefusedError("truncated", f"a body of {size} bytes is too short for safetensors")
    (length,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
    # Enough for any writer's spacing, however each character of a name is escaped.
    most = 1024 + sum(200 + 12 * len(name) + 40 * len(leaf.shape) for name, leaf in expected.items())
    if length > most:
        raise RefusedError("malformed", f"the header claims {length} bytes; at most {most} make sense here")
    if _HEADER_LENGTH.size + length > size:
        raise RefusedError("truncated", f"a header of {length} bytes in a body of {size}")
    return _parse_header(file.read(length)), _HEADER_LENGTH.size + length


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError):
        raise RefusedError("malformed", "the header of the body is not valid JSON") from None
    if not isinstance(header, dict):
        raise RefusedError("malformed", "the header of the body is not a JSON object")
    return header


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a repeated key")
    return found


def _check_leaves(header: Mapping[str, Any], expected: Mapping[str, Leaf]) -> None:
    """Names, dtypes and shapes are those of this exchange."""
    if missing := [name for name in expected if name not in header]:
        raise RefusedError("shape", f"{len(missing)} tensors are missing, the first is {missing[0][:100]!r}")
    if extra := [name for name in header if name not in expected]:
        raise RefusedError("shape", f"{len(extra)} tensors are unknown, the first is {extra[0][:100]!r}")
    for name, leaf in expected.items():
        entry = header[name]
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise RefusedError("malformed", f"{name[:100]!r} needs dtype, shape and data_offsets")
        dtype, shape = entry["dtype"], entry["shape"]
        if not isinstance(dtype, str) or not _are_counts(shape):
            raise RefusedError("malformed", f"the dtype or shape of {name[:100]!r} is not valid")
        if _DTYPES.get(dtype) != leaf.dtype or tuple(shape) != leaf.shape:
            got = f"{dtype[:10]} {shape}"[:100]
            raise RefusedError("shape", f"{name[:100]!r} is {got}, and {leaf} was expected")


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_offsets(header: Mapping[str, Any], expected: Mapping[str, Leaf], data: int) -> None:
    """The tensors fill the data exactly, one after another."""
    needed = sum(leaf.size for leaf in expected.values())
    if data < needed:
        raise RefusedError("truncated", f"{data} bytes of tensors where {needed} are expected")
    if data > needed:
        raise RefusedError("oversized", f"{data} bytes of tensors where {needed} are expected")
    for name, leaf in expected.items():
        offsets = header[name]["data_offsets"]
        if not _are_counts(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != leaf.size:
            raise RefusedError("malformed", f"the place of {name[:100]!r} does not fit its shape")
    end = 0
    for begin, next_end in sorted(header[name]["data_offsets"] for name in expected):
        if begin != end:
            raise RefusedError("malformed", "tensors overlap, or leave a gap between them")
        end = next_end


def _read_tensor(file: RawIOBase | BytesIO, name: str, leaf: Leaf) -> Tensor:
    tensor = torch.empty((1, *leaf.shape), dtype=leaf.dtype)
    if not leaf.size:
        return tensor
    view = _bytes_of(tensor)
    done = 0
    while done < leaf.size:
        count = file.readinto(view[done:])
        if not count:
            raise RefusedError("truncated", f"the file ended within {name[:100]!r}")
        done += count
    _check_values(tensor, name)
    return tensor


def _check_values(tensor: Tensor, name: str) -> None:
    if tensor.is_floating_point():
        # NaN and infinity survive minimum and maximum, which need no memory, unlike isfinite.
        if not all(torch.isfinite(extreme) for extreme in tensor.aminmax()):
            raise RefusedError("not-finite", f"{name[:100]!r} holds NaN or infinity")
    elif tensor.dtype is torch.bool and tensor.view(torch.uint8).max() > 1:
        raise RefusedError("malformed", f"{name[:100]!r} holds booleans that are neither 0 nor 1")
