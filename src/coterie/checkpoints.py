"""Checkpoints: tensors and a head of words in one safetensors file, replaced atomically.

A simulation and a real peer keep different things in theirs. The head says which by its `format`. It is read
without PyTorch, which only tensors need.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from coterie.errors import DamagedRunError, RunFolderError
from coterie.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

_LONGEST_HEAD = 100 << 20  # bytes, as safetensors allows
_ATTEMPTS = 5  # to read a file that a running peer replaces meanwhile


def write_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    head: Mapping[str, str],
    *,
    durable: bool = True,
    mode: int = 0o666,
) -> None:
    """Replace the file. head: `format`, and whatever else its reader needs; durable, mode: see `files`."""
    from safetensors.torch import save  # imports PyTorch

    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, save(content, dict(head)), durable=durable, mode=mode)


def read_checkpoint(path: Path, format: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the head; fails if the file is damaged, or of another format."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with safe_open(str(path), framework="pt") as file:
                head = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
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
