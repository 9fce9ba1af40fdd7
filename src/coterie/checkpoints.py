"""Checkpoints: tensors and a head of words in one safetensors file, replaced atomically.

A simulation and a real peer keep different things in theirs. The head says which by its `format`. It is read
without PyTorch, which only tensors need.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from coterie.errors import DamagedRunError, RunFolderError
from coterie.files import write_atomically

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LONGEST_HEAD = 100 << 20  # bytes, as safetensors allows
_WRITTEN_BYTES = 16 << 20  # of a tensor that are written at once
_KINDS = {  # of numbers, as safetensors calls them
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_ATTEMPTS = 5  # to read a file that a running peer replaces meanwhile


@dataclass(frozen=True)
class Elsewhere:
    """A tensor in another process, which is fetched when it is written."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    fetch: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor | Elsewhere],
    head: Mapping[str, str],
    *,
    durable: bool = True,
    mode: int = 0o666,
) -> None:
    """Replace the file. head: `format`, and whatever else its reader needs; durable, mode: see `files`."""
    write_atomically(path, _pieces(tensors, head), durable=durable, mode=mode)


def _pieces(
    tensors: Mapping[str, Tensor | Elsewhere], head: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """A safetensors file, block of rows by block of rows: no second copy of the tensors is in memory."""
    import torch

    # Large elements first, so that all of them lie at multiples of their size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    places: dict[str, object] = {"__metadata__": dict(head)}
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        kind = _KINDS[str(tensor.dtype).removeprefix("torch.")]
        places[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(places, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        stored = tensors[name]
        tensor = (stored.fetch() if isinstance(stored, Elsewhere) else stored).detach()
        rows = tensor.reshape(1) if not tensor.dim() else tensor
        for part in rows.split(max(1, _WRITTEN_BYTES * len(rows) // max(1, rows.nbytes))):
            if part.numel():
                yield part.cpu().contiguous().flatten().view(torch.uint8).numpy().data


def read_checkpoint(path: Path, format: str, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors whose names begin so, and the head; fails if it is damaged, or of another format."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with safe_open(str(path), framework="pt") as file:
                head = file.metadata() or {}
                names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
                tensors = {name: file.get_tensor(name) for name in names}
            break
        except (SafetensorError, OSError) as error:
            raise DamagedRunError(f"{path} is not a readable checkpoint: {error}") from None
        except RuntimeError as error:  # the head's file and the tensors' were not the same: once more
            if attempt == _ATTEMPTS:
                raise DamagedRunError(f"{path} is not a readable checkpoint: {error}") from None
    _require(format, head, path)
    return tensors, head


def read_head(path: Path, format: str) -> dict[str, str]:
    """The head of a whole file, without PyTorch, however large the tensors are."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            places = json.loads(file.read(min(size, _LONGEST_HEAD)))
            head = dict[str, str](places.pop("__metadata__"))
            end = max((place["data_offsets"][1] for place in places.values()), default=0)
            if file.seek(0, os.SEEK_END) != 8 + size + end:
                raise ValueError("tensors are missing")
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedRunError(f"{path} is not a readable checkpoint") from None
    _require(format, head, path)
    return head


def fitting(path: Path, tensors: Mapping[str, Tensor], advice: str = "") -> Callable[[str, Tensor], Tensor]:
    """Finds the saved tensor for a fresh one of the same name; the error ends with `advice`."""

    def saved(name: str, fresh: Tensor) -> Tensor:
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != fresh.shape or tensor.dtype != fresh.dtype:
            raise DamagedRunError(
                f"{path} does not fit this experiment: {name!r} is missing or has another shape{advice}"
            )
        return tensor.to(fresh.device)

    return saved


def _require(format: str, head: Mapping[str, str], path: Path) -> None:
    if head.get("format") != format:
        raise DamagedRunError(f"{path} is not a checkpoint of this version of Coterie")
