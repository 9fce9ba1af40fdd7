"""The IoT device identification data of KD-PDFL: traffic statistics of nine kinds of devices."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.source import Source, hold_out
from coterie.data.sources.files import as_text, find, read_bytes
from coterie.errors import DataError
from coterie.randomness import numpy_generator

_LABEL = "device_category"
_LEFT_OUT = "water_sensor"  # in the training file only, so the paper has nine classes
_FOLDERS = ("iot-device-identification", "iot-devices", "iot")


@dataclass(frozen=True)
class IotDevices:
    """IoT device identification: 296 traffic statistics, 9 kinds of devices.

    Both files are joined, water_sensor and repeated rows are dropped, and so is the first column that
    is constant in what remains: 297 features become the paper's 296. The fraction `test` of each class,
    drawn by the seed, is for testing. Each feature is standardised by its mean and standard deviation in
    the training samples; the raw numbers go beyond 10^18. One that is constant there becomes 0.
    """

    default_model: ClassVar[str] = "iot-mlp"
    default_partition: ClassVar[str] = "dirichlet(0.1)"
    needs_files: ClassVar[bool] = True

    test: float = 0.25

    def files(self, data_dir: Path) -> list[Path]:
        return [_part(data_dir, "train"), _part(data_dir, "test")]

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        assert data_dir is not None
        header, rows = read_joined(data_dir)
        label = header.index(_LABEL)
        class_names, codes = np.unique([row[label] for row in rows], return_inverse=True)
        numbers = [_numbers(row[:label] + row[label + 1 :], place) for row, place in rows.items()]
        values = drop_first_constant(np.stack(numbers))
        held = hold_out(codes, self.test, numpy_generator(seed, "hold-out"))
        standard = standardised(values, by=values[~held])
        x, y = torch.from_numpy(standard.astype(np.float32)), torch.from_numpy(codes.astype(np.int64))
        test = torch.from_numpy(held)
        return Source(
            x[~test],
            y[~test],
            x[test],
            y[test],
            n_classes=len(class_names),
            names=tuple(map(str, class_names)),
        )


def read_joined(data_dir: Path) -> tuple[list[str], dict[tuple[str, ...], str]]:
    """Header and the distinct rows of both files, in file order, without the category left out.

    With each row goes the place where it stands first, to be named if something is wrong with it.
    """
    header: list[str] = []
    distinct: dict[tuple[str, ...], str] = {}
    for part in ("train", "test"):
        path = _part(data_dir, part)
        first, *lines = _read_lines(path) or [[]]
        if _LABEL not in first or (header and first != header):
            raise DataError(
                f"{path}: the first line must name the columns, {_LABEL} among them, alike in both files"
            )
        header = first
        for number, line in enumerate(lines, start=2):
            if len(line) != len(header):
                raise DataError(f"{path}, line {number}: {len(line)} values, expected {len(header)}")
            if line[header.index(_LABEL)] != _LEFT_OUT:
                distinct.setdefault(tuple(line), f"{path}, line {number}")
    if not distinct:
        raise DataError(f"the iot-devices files in {data_dir} hold no rows")
    return header, distinct


def _part(data_dir: Path, part: str) -> Path:
    candidates = [f"{folder}/iot_device_{part}.csv" for folder in (*_FOLDERS, ".")]
    return find(data_dir, candidates, f"iot-devices {part} data")


def _read_lines(path: Path) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(as_text(read_bytes(path), path))))
    except csv.Error as error:
        raise DataError(f"{path} is not a readable CSV file: {error}; download it again") from error


def drop_first_constant(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without the first column that has one value in all rows, if there is one."""
    constant = np.flatnonzero((values == values[0]).all(0))
    return np.delete(values, constant[0], axis=1) if len(constant) else values


def standardised(values: NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns with the mean 0 and standard deviation 1 of those of `by`."""
    varies = (by != by[0]).any(0)  # rounding gives a constant column of large numbers a deviation
    shifted = np.where(varies, values - by.mean(0), 0.0)
    return shifted / np.where(varies, by.std(0), 1.0)


def _numbers(row: tuple[str, ...], place: str) -> NDArray[np.float64]:
    try:
        values = np.array(row, dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{place}: all columns but {_LABEL} must hold numbers: {error}") from error
    if not np.isfinite(values).all():
        raise DataError(
            f"{place}: infinite or missing numbers; all columns but {_LABEL} must hold finite ones"
        )
    return values
