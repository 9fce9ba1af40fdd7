"""Finding and reading data files in official formats; every failure names the file and what was expected."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import DataError

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a truncated or altered compressed file raises."""


def find(data_dir: Path, candidates: Iterable[str], what: str) -> Path:
    """The first of the relative paths that exists, each with or without `.gz`."""
    tried = list(candidates)
    for name in tried:
        for path in (data_dir / name, data_dir / f"{name}.gz"):
            if path.exists():
                return path
    raise DataError(f"{what} not found in {data_dir}; expected {' or '.join(tried)} (gzipped or not)")


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        if not packed:
            if path.suffix == ".gz":
                raise DataError(f"{path} is not a gzip file; download it again")
            return path.read_bytes()
        with gzip.open(path) as unpacked:
            return unpacked.read()
    except DAMAGED as error:
        raise DataError(f"{path} is truncated or damaged ({error}); download it again") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error


def as_text(content: bytes, where: Path | str) -> str:
    """The text that a file holds."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not text in UTF-8: byte {error.start} is {content[error.start]:#04x}; "
            "download it again"
        ) from error


def scaled(images: NDArray[np.uint8], mean: float, std: float) -> Tensor:
    """Bytes to float32: (value / 255 - mean) / std, without a second copy of the data."""
    x = torch.from_numpy(images).float()
    return x.mul_(1.0 / (255.0 * std)).sub_(mean / std)
