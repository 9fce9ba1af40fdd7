"""The data of one peer, from a file: `.npz` with x and y, or `.csv` or `.parquet` with a column of labels.

Arrays of an .npz file that are named x.tokens and x.mask are two inputs of a sample, x.0 and x.1 two that the
network is given by position.
"""

from __future__ import annotations

import csv
import importlib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.own.several import Part, Ragged, Raw, samples, size
from coterie.data.own.values import plain_array
from coterie.data.targets import Targets, read_targets, task_of_labels
from coterie.errors import DataError
from coterie.registry import nearest

Labels: TypeAlias = NDArray[Any]  # whole numbers of classes, or other targets
OwnData: TypeAlias = "tuple[Raw, Labels] | tuple[Raw, Labels, Raw, Labels]"

LABEL = "label"
_EXACT = 2.0**53  # whole numbers below it are exact as floats
_ARRAYS = ("x", "y", "x_test", "y_test")


@dataclass(frozen=True)
class Columns:
    """What is no feature in a file."""

    label: str = ""  # the column of labels; empty: `label`, or else the last
    kept: tuple[str, ...] = ()  # one value for each sample, numbers or text, to split by


@dataclass(frozen=True)
class OwnFile:
    """What a file holds."""

    arrays: OwnData
    features: tuple[str, ...]  # their names, in a table; empty for arrays
    kept: Mapping[str, tuple[NDArray[Any], ...]]  # values of training samples, and of test samples if any


def load_own(path: Path | str, targets: Targets = "classes", columns: Columns | None = None) -> OwnData:
    """(x, y) or (x, y, x_test, y_test): samples, and labels as whole numbers from 0 or other targets."""
    return load_file(path, targets, columns).arrays


def load_file(path: Path | str, targets: Targets = "classes", columns: Columns | None = None) -> OwnFile:
    """All that a file holds, by the rules that hold for real peers."""
    path, columns = Path(path), columns or Columns()
    if path.suffix == ".npz":
        return _load_npz(path, targets, columns)
    readers: dict[str, Callable[..., Table]] = {
        ".npz": _csv_table,  # read above; here for the error that names all endings
        ".csv": lambda path: _csv_table(path, 2, columns),
        ".parquet": lambda path: _parquet_table(path, 2, columns),
    }
    header, table, kept = _read(path, readers)
    arrays = _split_off_labels(header, table, path, targets, columns.label)
    features = tuple(name for n, name in enumerate(header) if n != _label_of(header, path, columns.label))
    return OwnFile(
        checked(arrays, str(path), targets), features, {name: (values,) for name, values in kept.items()}
    )


def _load_npz(path: Path, targets: Targets, columns: Columns) -> OwnFile:
    """Each kept column is an array of its name, and, with a test set, one more that ends in _test."""
    if columns.label:
        raise DataError(f"{path}: the labels of an .npz file are its array y; leave out label=")
    chosen: list[str] = []

    def wanted(names: list[str], path: Path) -> tuple[str, ...]:
        extra = [name for name in names if name.removesuffix("_test") in columns.kept]
        chosen.extend(_wanted([name for name in names if name not in extra], path))
        tests = ("", "_test") if len(chosen) == 4 else ("",)
        for name in (f"{kept}{test}" for kept in columns.kept for test in tests):
            if name not in extra:
                raise DataError(f"{path}: there is no array {name!r}; it has {', '.join(names)}")
            chosen.append(name)
        return tuple(chosen)

    values = _read(path, {".npz": lambda path: _npz_arrays(path, wanted)})
    found = dict(zip(chosen, values, strict=True))
    arrays = checked(tuple(found[name] for name in _ARRAYS if name in found), str(path), targets)
    kept = {
        name: tuple(found[part] for part in (name, f"{name}_test") if part in found) for name in columns.kept
    }
    return OwnFile(arrays, (), kept)


def checked(arrays: Any, where: str, targets: Targets = "classes") -> OwnData:
    """Arrays of one peer, whoever made them: two, or four with a test set."""
    if not isinstance(arrays, (tuple, list)) or len(arrays) not in (2, 4):
        raise DataError(f"{where}: expected (x, y) or (x, y, x_test, y_test)")
    y = _targets(arrays[1], targets, f"{where}: y")
    x = _samples(arrays[0], f"{where}: x", len(y))
    _refuse_unequal(x, y, where)
    if len(arrays) == 2:
        return x, y
    y_test = _targets(arrays[3], targets, f"{where}: y_test")
    x_test = _samples(arrays[2], f"{where}: x_test", len(y_test))
    _refuse_unequal(x_test, y_test, f"{where}, test set")
    if isinstance(x, Tensor) and isinstance(x_test, Tensor) and x_test.shape[1:] != x.shape[1:]:
        shapes = tuple(x.shape[1:]), tuple(x_test.shape[1:])
        raise DataError(f"{where}: samples of x have shape {shapes[0]}, those of x_test {shapes[1]}")
    return x, y, x_test, y_test


def load_samples(path: Path | str, features: int, targets: Targets = "classes") -> tuple[Raw, Labels | None]:
    """Samples that a model is to be used on, and their labels where the file has them.

    features: numbers in a sample, by which a .csv without the column `label` is seen to end in one or not.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], tuple[Any, ...]]] = {".npz": _npz_samples}
    readers |= dict.fromkeys((".csv", ".parquet"), lambda path: _table_samples(path, features, targets))
    arrays = _read(path, readers)
    y = _targets(arrays[1], targets, f"{path}: y") if len(arrays) > 1 else None
    x = _samples(arrays[0], f"{path}: x", -1 if y is None else len(y))
    if y is not None:
        _refuse_unequal(x, y, str(path))
    return x, y


def _read(path: Path, readers: Mapping[str, Callable[[Path], tuple[Any, ...]]]) -> tuple[Any, ...]:
    if path.suffix not in readers:
        raise DataError(f"{path}: expected a file that ends in {' or '.join(readers)}")
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        return readers[path.suffix](path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _npz_samples(path: Path) -> tuple[Any, ...]:
    return _npz_arrays(path, _wanted_samples)


def _npz_arrays(path: Path, wanted: Callable[[list[str], Path], tuple[str, ...]]) -> tuple[Any, ...]:
    try:
        with open(path, "rb") as raw:  # np.load leaves a damaged file open
            loaded = np.load(raw, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise DataError(f"{path} is a single array; save it with np.savez(file, x=x, y=y)")
            with loaded as file:
                inputs = _inputs_of(file.files, path)
                chosen = wanted(list(inputs), path)
                return tuple(_inputs(file, inputs[name], name) for name in chosen)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a readable .npz file of plain arrays: {error}") from None


def _inputs_of(names: list[str], path: Path) -> dict[str, list[str]]:
    """Names of arrays by what they are inputs of: x.tokens and x.mask of x; else an array is itself."""
    inputs: dict[str, list[str]] = {}
    for name in names:
        inputs.setdefault(name.partition(".")[0], []).append(name)
    for name, arrays in inputs.items():
        if name in arrays and len(arrays) > 1:
            raise DataError(f"{path}: it has {', '.join(arrays)}; give {name} as one array or as several")
    return inputs


def _inputs(file: Mapping[str, Any], arrays: list[str], name: str) -> Any:
    if arrays == [name]:
        return file[name]
    return {array.partition(".")[2]: file[array] for array in sorted(arrays, key=_place)}


def _place(array: str) -> int:
    """x.2 comes before x.10; names keep the order of the file."""
    name = array.partition(".")[2]
    return int(name) if name.isdigit() else 0


def _wanted(names: list[str], path: Path) -> tuple[str, ...]:
    """The arrays to read: two, or four if any of a test set is there."""
    for name in names:
        if name not in _ARRAYS:
            raise DataError(f"{path}: unknown array {name!r}; {nearest(name, _ARRAYS)}")
    wanted = _ARRAYS if {"x_test", "y_test"} & set(names) else _ARRAYS[:2]
    for name in wanted:
        if name not in names:
            raise DataError(f"{path}: there is no array {name!r}; expected {', '.join(wanted)}")
    return wanted


def _wanted_samples(names: list[str], path: Path) -> tuple[str, ...]:
    """x, and y if it is there; those of a test set are left alone."""
    if "x" not in names:
        raise DataError(f"{path}: there is no array 'x'; it has {', '.join(names) or 'none'}")
    return ("x", "y") if "y" in names else ("x",)


def _table_samples(path: Path, features: int, targets: Targets) -> tuple[Any, ...]:
    """Labels are in the column `label`, or in one column more than there are features, or missing."""
    readers: dict[str, Callable[..., Table]] = {".csv": _csv_table, ".parquet": _parquet_table}
    header, table, _ = readers[path.suffix](path, 1, Columns())
    if LABEL in header or len(header) == features + 1:
        return _split_off_labels(header, table, path, targets)
    return (_whole_if_all_are(table),)


Table: TypeAlias = "tuple[list[str], NDArray[np.float64], dict[str, NDArray[Any]]]"
"""Names and values of the columns that hold numbers, and the columns that are kept."""


def _csv_table(path: Path, fewest: int, columns: Columns) -> Table:
    """A header, then numbers; only kept columns may hold text."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
            _check_header(header, path, fewest, columns)
            numbers = [n for n, name in enumerate(header) if name not in columns.kept]
            lines = [line for line in csv.reader(file) if line]
    except (ValueError, csv.Error) as error:  # text that is not UTF-8
        raise DataError(f"{path} is no text that can be read as a table: {error}") from None
    if not lines:
        raise DataError(f"{path} has a header, but no samples")
    odd = next((n for n, line in enumerate(lines) if len(line) != len(header)), None)
    if odd is not None:
        raise DataError(
            f"{path}: the header names {len(header)} columns, and line {odd + 2} has {len(lines[odd])}"
        )
    table = np.empty((len(lines), len(numbers)))
    for place, column in enumerate(numbers):
        table[:, place] = _numbers([line[column] for line in lines], header[column], path)
    kept = {name: np.array([line[header.index(name)].strip() for line in lines]) for name in columns.kept}
    return [header[n] for n in numbers], table, kept


def _numbers(texts: list[str], name: str, path: Path) -> NDArray[np.float64]:
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError:
        bad = next(text for text in texts if not _is_number(text))
        if not bad.strip():
            line = texts.index(bad) + 2
            raise DataError(
                f"{path}: the column {name!r} is empty in line {line}; fill it in or drop it"
            ) from None
        raise DataError(
            f"{path}: the column {name!r} has {bad!r}, and only numbers are expected; to split by a column "
            f"of text, write natural({name}) for the partition"
        ) from None


def _parquet_table(path: Path, fewest: int, columns: Columns) -> Table:
    """Columns of numbers; only kept columns may hold text."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(
            f"{path}: reading .parquet files needs pyarrow, which is not installed: pip install "
            "'coterie[parquet]'"
        ) from None
    try:
        found = parquet.ParquetFile(path).read()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise DataError(f"{path} is not a readable .parquet file: {error}") from None
    header = [str(name) for name in found.column_names]
    _check_header(header, path, fewest, columns)
    if not found.num_rows:
        raise DataError(f"{path} has columns, but no samples")
    numbers = [name for name in header if name not in columns.kept]
    table = np.empty((found.num_rows, len(numbers)))
    for place, name in enumerate(numbers):
        values = np.asarray(found[name].to_numpy())
        if values.dtype.kind not in "biuf":
            raise DataError(
                f"{path}: the column {name!r} holds {found[name].type}, and only numbers are expected; to "
                f"split by a column of text, write natural({name}) for the partition"
            )
        table[:, place] = values
    return numbers, table, {name: np.asarray(found[name].to_pylist()) for name in columns.kept}


def _label_of(header: list[str], path: Path, label: str) -> int:
    """The place of the column of labels: the one that is named, or `label`, or else the last."""
    if label and label not in header:
        raise DataError(f"{path}: there is no column {label!r} of labels; {nearest(label, header)}")
    if label or LABEL in header:
        return header.index(label or LABEL)
    return len(header) - 1


def _split_off_labels(
    header: list[str], table: NDArray[np.float64], path: Path, targets: Targets, label: str = ""
) -> tuple[Any, ...]:
    if targets in ("labels", "tokens"):
        raise DataError(f"{path}: several targets for each sample need an .npz file, with y as {targets}")
    column = _label_of(header, path, label)
    labels = table[:, column]
    if targets == "numbers":
        return _whole_if_all_are(np.delete(table, column, axis=1)), labels
    if not np.isfinite(labels).all() or (labels != np.floor(labels)).any():
        raise DataError(f"{path}: the column {header[column]!r} must hold whole numbers, the labels")
    return _whole_if_all_are(np.delete(table, column, axis=1)), labels.astype(np.int64)


def _whole_if_all_are(table: NDArray[np.float64]) -> NDArray[Any]:
    """Text does not say what is meant: numbers of words, for example, come without a decimal point."""
    whole = (np.abs(table) < _EXACT) & (table == np.floor(table))
    return table.astype(np.int64) if whole.all() else table


def _check_header(header: list[str], path: Path, fewest: int, columns: Columns) -> None:
    for name in columns.kept:
        if name not in header:
            raise DataError(f"{path}: there is no column {name!r}; {nearest(name, header or ['none'])}")
    if len(header) - len(columns.kept) < fewest:
        raise DataError(f"{path}: expected a header with at least one feature and the column {LABEL!r}")
    if all(_is_number(name) for name in header):
        raise DataError(f"{path}: the first line holds numbers; expected a header such as a,b,{LABEL}")
    twice = next((name for name in (LABEL, *columns.kept, columns.label) if header.count(name) > 1), None)
    if twice:
        raise DataError(f"{path}: the header names {twice!r} twice")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _samples(values: Any, where: str, n: int) -> Raw:
    x = samples(values, where, n)
    if isinstance(x, Tensor) and (x.ndim < 2 or not x.numel()):
        shape = tuple(x.shape)
        raise DataError(f"{where} must be (samples, features...) and not empty, not of shape {shape}")
    for part in x.values() if isinstance(x, dict) else [x]:
        _refuse_missing(part, where)
    return x


def _refuse_missing(part: Part, where: str) -> None:
    values, owner = part, torch.arange(len(part))
    if isinstance(part, Ragged):
        values, owner = part.flat, owner.repeat_interleave(part.lengths)
    assert isinstance(values, Tensor)
    bad = owner[~values.reshape(len(owner), -1).isfinite().all(dim=1)].unique()
    if len(bad):
        raise DataError(
            f"{where}: {len(bad)} samples have missing, NaN or infinite values, first sample {int(bad[0])}; "
            "clean or drop them"
        )


def _targets(values: Any, targets: Targets, where: str) -> Labels:
    return _labels(values, where) if targets == "classes" else read_targets(values, targets, where).numpy()


def _labels(values: Any, where: str) -> Labels:
    array = plain_array(values, where)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DataError(
            f"{where} must be one whole number per sample, not {array.dtype} of shape {array.shape}"
            + (task_of_labels(array) or "; all peers must number the classes alike")
        )
    if array.size and int(array.min()) < 0:
        raise DataError(
            f"{where} has the label {int(array.min())}; labels count from 0; "
            "if they are amounts, choose task 'regression'"
        )
    return array.astype(np.int64)


def _refuse_unequal(x: Raw, y: Labels, where: str) -> None:
    if size(x) != len(y):
        raise DataError(f"{where}: {size(x)} samples but {len(y)} labels")
