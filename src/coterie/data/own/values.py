"""What users pass as samples, labels and columns, made into arrays; what cannot be is refused by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import DataError

_LARGEST = np.iinfo(np.int64).max
_FEW_CLASSES = 20  # so many may have a single sample each


def numbers(values: Any, where: str) -> Tensor:
    """Numbers of any shape: real ones as float32, whole ones as int64, bytes and truth values as they are."""
    _refuse_sparse(values, where)
    if isinstance(values, Tensor) and not values.is_complex():
        return _kept(values.detach().cpu())
    array = plain_array(values, where)
    if array.dtype.kind not in "biuf":
        hint = "; give sequences of different lengths as a list of arrays" if array.dtype.kind == "O" else ""
        raise DataError(f"{where} must hold numbers, not values of type {array.dtype}{hint}")
    if array.dtype.kind == "u" and array.size and array.max() > _LARGEST:
        raise DataError(
            f"{where} has whole numbers up to {array.max()}, beyond {_LARGEST}; pass real numbers"
        )
    kept = {"b": np.bool_, "f": np.float32}.get(array.dtype.kind, np.int64)
    if array.dtype == np.uint8:
        kept = np.uint8
    with np.errstate(over="ignore"):  # too large for float32 is infinite, which is refused with all others
        # Torch wants arrays that can be written to, as those of pandas cannot, and without negative strides.
        return torch.from_numpy(np.require(array, kept, ["C", "W"]))


def _kept(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.to(torch.float32)
    return tensor if tensor.dtype in (torch.bool, torch.uint8) else tensor.to(torch.int64)


def one_per_sample(values: Any, where: str) -> NDArray[Any]:
    """(n,) labels or the values of a column, which can be sorted: none is missing."""
    array = plain_array(values, where)
    if array.ndim != 1:
        raise DataError(f"{where} must hold one value per sample, not an array of shape {array.shape}")
    if not len(array):
        raise DataError(f"{where} is empty; at least one sample is needed")
    missing = _missing(array)
    if missing.any():
        first = int(missing.argmax())
        raise DataError(
            f"{where}: {int(missing.sum())} of {len(array)} values are missing, the first is number {first} "
            f"(counted from 0); fill them in or drop those samples"
        )
    if array.dtype.kind == "O":
        codes_of(array, where)
    return array


def codes_of(array: NDArray[Any], where: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The distinct values, sorted, and for each entry the number of its value."""
    try:
        values, codes = np.unique(array, return_inverse=True)
    except TypeError as error:  # only arrays of objects can hold what cannot be compared
        raise DataError(
            f"{where}: all values must be of one type, all numbers or all text ({error})"
        ) from error
    return values, codes.astype(np.int64)


def refuse_doubtful_classes(y: Tensor, where: str) -> None:
    """Fail on whole numbers that are hardly classes counted from 0; not for users who give n_classes."""
    first, last, n = int(y.min()), int(y.max()), len(y)
    if last >= _FEW_CLASSES and 2 * (last + 1) > n:
        raise DataError(
            f"{where}: whole numbers from {first} to {last} would make {last + 1} classes for {n} samples; "
            "if they are amounts, choose task 'regression'; if they are "
            f"classes, number them 0, 1, 2, ..., or give n_classes={last + 1}"
        )
    if first == 1:
        raise DataError(
            f"{where}: labels run from 1 to {last}, and class 0 would be empty; pass labels - 1, or "
            f"n_classes={last + 1} if there is a class 0 without samples"
        )


def plain_array(values: Any, where: str) -> NDArray[Any]:
    """Anything that NumPy takes for an array."""
    _refuse_sparse(values, where)
    try:
        return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} must be an array, or lists of equal lengths: {error}") from error


def _refuse_sparse(values: Any, where: str) -> None:
    sparse_tensor = isinstance(values, Tensor) and values.layout != torch.strided
    if sparse_tensor or hasattr(values, "toarray"):  # so do SciPy's, which NumPy takes for a single object
        method = "to_dense" if sparse_tensor else "toarray"
        raise DataError(f"{where} is sparse, of type {type(values).__name__}; pass its .{method}()")


def _missing(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries are None, NaN, NaT or pandas' NA."""
    if array.dtype.kind == "O":
        return np.array([_is_missing(value) for value in array], dtype=bool)
    return np.asarray(array != array, dtype=bool)


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # NA does not even say whether it differs from itself
        return True
