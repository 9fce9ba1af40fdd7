"""How messages become bytes, and bytes from strangers become messages or a refusal.

Heads are JSON; models are safetensors; the byte strings of secure sums are length-prefixed. A receiver knows
the names, shapes and dtypes that an exchange carries (`TreeShape`): a body is compared with them before any
tensor is made: what a header claims never decides how much memory is used.
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
from typing import Any, TypeAlias

import torch
from pydantic import ValidationError
from torch import Tensor

from coterie.errors import RefusedError
from coterie.peer.network.messages import HEAD, Head
from coterie.protocol.trees import Tree, leaves

LARGEST_HEAD = 64 << 10
MOST_PARTS = 2000
LONGEST_PART_NAME = 255

_HEADER_LENGTH = struct.Struct("<Q")  # safetensors: little-endian length of the JSON header, header, data
_PART_COUNT = struct.Struct("!I")
_PART_LENGTHS = struct.Struct("!HQ")  # of the name, of the value

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


# Heads


def encode_head(head: Head) -> bytes:
    raw = HEAD.dump_json(head)
    if len(raw) > LARGEST_HEAD:
        raise RefusedError("oversized", f"a head of {len(raw)} bytes; at most {LARGEST_HEAD} are allowed")
    return raw


def decode_head(raw: bytes) -> Head:
    if len(raw) > LARGEST_HEAD:
        raise RefusedError("malformed", f"a head of {len(raw)} bytes; at most {LARGEST_HEAD} are allowed")
    try:
        return HEAD.validate_json(raw)
    except ValidationError as error:
        # Without the input: what a stranger wrote has no place in our logs.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:64] for part in first["loc"][:3])
        raise RefusedError("malformed", f"the head is not valid: {place} {first['msg']}"[:400]) from None


# Trees


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


def spec_of(tree: Tree) -> TreeShape:
    """The spec of one row of a tree whose tensors have a leading axis of rows."""
    return TreeShape(_shape_of(tree))


def _shape_of(tree: Tree) -> _Shape:
    if isinstance(tree, Tensor):
        if tree.dtype not in _DTYPE_NAMES:
            raise TypeError(f"tensors of {tree.dtype} cannot be sent")
        return Leaf(tuple(tree.shape[1:]), tree.dtype)
    return {key: _shape_of(value) for key, value in tree.items()}


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


# Parts


def encode_parts(parts: Mapping[str, bytes]) -> bytes:
    """Named byte strings: their number, then for each both lengths, the name, the value."""
    if len(parts) > MOST_PARTS:
        raise ValueError(f"{len(parts)} parts; at most {MOST_PARTS} are allowed")
    pieces = [_PART_COUNT.pack(len(parts))]
    for name, value in parts.items():
        raw = name.encode()
        if len(raw) > LONGEST_PART_NAME:
            raise ValueError(f"a part's name has {len(raw)} bytes; at most {LONGEST_PART_NAME} are allowed")
        pieces += [_PART_LENGTHS.pack(len(raw), len(value)), raw, value]
    return b"".join(pieces)


def decode_parts(body: bytes) -> dict[str, bytes]:
    if len(body) < _PART_COUNT.size:
        raise RefusedError("truncated", f"a body of {len(body)} bytes is too short for named parts")
    (count,) = _PART_COUNT.unpack_from(body)
    if count > MOST_PARTS:
        raise RefusedError("oversized", f"the body claims {count} parts; at most {MOST_PARTS} are allowed")
    parts: dict[str, bytes] = {}
    place = _PART_COUNT.size
    for _ in range(count):
        name, value, place = _part_at(body, place)
        if name in parts:
            raise RefusedError("malformed", f"two parts are named {name!r}")
        parts[name] = value
    if place != len(body):
        raise RefusedError("oversized", f"{len(body) - place} bytes follow the last part")
    return parts


def _part_at(body: bytes, place: int) -> tuple[str, bytes, int]:
    start = place + _PART_LENGTHS.size
    if start > len(body):
        raise RefusedError("truncated", "the body ended before a part")
    name_length, value_length = _PART_LENGTHS.unpack_from(body, place)
    if name_length > LONGEST_PART_NAME:
        raise RefusedError("malformed", f"a part's name claims {name_length} bytes")
    middle = start + name_length
    end = middle + value_length
    if end > len(body):
        raise RefusedError("truncated", f"a part claims {end} bytes of a body of {len(body)}")
    try:
        name = body[start:middle].decode()
    except UnicodeDecodeError:
        raise RefusedError("malformed", "a part's name is not UTF-8") from None
    return name, body[middle:end], end
