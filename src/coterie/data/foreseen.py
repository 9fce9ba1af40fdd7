"""How much memory the samples in data files will take, told from sizes and headers before they are read.

A bound from below, of what the readers hold at once: whoever has less memory than that need not begin.
"""

from __future__ import annotations

import importlib
import math
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_FLOAT = 4  # bytes of a number in memory; a pixel is one byte in its file
_PIXELS = (".bin", "ubyte")  # endings of files that hold a byte for each pixel
_TEXT = 57  # bytes of a cell of a table while its text is read, beside its characters
_LOOKED_AT = 1 << 16  # bytes of a table, whose other lines are like the first ones
_ZIPPED_SIZES = 1 << 32  # a gzip file says its size up to multiples of this


def foreseen(paths: Iterable[Path]) -> int:
    """Bytes, at least, that the samples in these files take."""
    return sum(_of(path) for path in paths)


def _of(path: Path) -> int:
    """Of a file that cannot be read, its size: the reader will say what is wrong with it."""
    size, name = path.stat().st_size, path.name.removesuffix(".gz")
    try:
        if path.suffix == ".npz":
            return _of_arrays(path)
        if path.suffix == ".parquet":
            return _of_columns(path)
        if path.suffix == ".csv":
            return _of_table(path, size)
        unpacked = _unpacked(path, size) if path.suffix == ".gz" else size
    except (OSError, ValueError, ImportError, zipfile.BadZipFile):
        return size
    return unpacked * (_FLOAT if name.endswith((*_PIXELS, "-binary.tar")) else 1)


def _of_arrays(path: Path) -> int:
    """As the headers of its arrays say; inputs become float32 beside what is read."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
                shape, _, kind = (read or np.lib.format.read_array_header_2_0)(file)
                total += math.prod(shape) * (kind.itemsize + (_FLOAT if kind != np.float32 else 0))
    return total


def _of_columns(path: Path) -> int:
    """A float32 for each cell."""
    about = importlib.import_module("pyarrow.parquet").read_metadata(path)
    return int(about.num_rows) * int(about.num_columns) * _FLOAT


def _of_table(path: Path, size: int) -> int:
    """A text for each cell, of which there are as many in a byte of the file as in its first lines."""
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    cells = start.count(b",") + start.count(b"\n")
    return size + int(size * cells / max(1, len(start))) * _TEXT


def _unpacked(path: Path, size: int) -> int:
    """The size that the end of a gzip file tells, or what it must be more: files hardly grow when packed."""
    with path.open("rb") as file:
        file.seek(-4, 2)
        told = int.from_bytes(file.read(4), "little")
    return told + max(0, -(-(size // 2 - told) // _ZIPPED_SIZES)) * _ZIPPED_SIZES
