"""A user's samples as inputs of a network: arrays, several of them, and sequences of different lengths.

Sequences stay as they are until those of all peers are known. Then they are padded with zeros to the longest,
and a mask says what is padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from coterie.data.own.values import numbers
from coterie.errors import DataError
from coterie.inputs import MASK, Inputs


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths, one after the other."""

    flat: Tensor  # (total, ...)
    lengths: Tensor  # (n,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, chosen: Tensor) -> Ragged:
        """chosen: (n,) bool."""
        return Ragged(self.flat[chosen.repeat_interleave(self.lengths)], self.lengths[chosen])

    @classmethod
    def of(cls, sequences: Tensor | Ragged) -> Ragged:
        """Samples that happen to have one length are sequences, too, beside others that do not."""
        if isinstance(sequences, Ragged):
            return sequences
        n, length = sequences.shape[:2]
        return cls(sequences.flatten(0, 1), torch.full((n,), length))

    def padded(self, length: int) -> Tensor:
        """(n, length, ...)"""
        result = self.flat.new_zeros(len(self), length, *self.flat.shape[1:])
        result[self.mask(length)] = self.flat
        return result

    def mask(self, length: int) -> Tensor:
        """(n, length) bool: what is not padding."""
        return torch.arange(length) < self.lengths[:, None]


Part: TypeAlias = "Tensor | Ragged"
Raw: TypeAlias = "Part | dict[str, Part]"


def samples(values: Any, where: str, n: int) -> Raw:
    """One array, or several in a dict or a tuple, with `n` samples if they fit their labels.

    A tuple is several arrays if each of its items has an entry for every sample, else a list of samples.
    """
    if isinstance(values, Mapping):
        return _several({_checked_name(name, where): part for name, part in values.items()}, where)
    if isinstance(values, tuple) and values and all(_length(part) == n for part in values):
        return _several({str(place): part for place, part in enumerate(values)}, where)
    return _part(values, where)


def collected(items: Sequence[Any], where: str) -> Raw:
    """The samples of a Dataset, each of which is an array, or a dict or tuple of arrays."""
    first = items[0]
    if isinstance(first, Mapping):
        for item in items:
            if not isinstance(item, Mapping) or item.keys() != first.keys():
                raise DataError(f"{where}: all samples must have the same names; the first has {list(first)}")
        return samples({name: [item[name] for item in items] for name in first}, where, len(items))
    if isinstance(first, tuple) and any(getattr(part, "ndim", 0) for part in first):
        return _several({str(i): list(column) for i, column in enumerate(zip(*items, strict=True))}, where)
    return _part(list(items), where)


def size(x: Raw) -> int:
    """How many samples these are."""
    return len(next(iter(x.values()))) if isinstance(x, dict) else len(x)


def some(x: Raw, chosen: Tensor) -> Raw:
    """chosen: (n,) bool."""
    return {name: part[chosen] for name, part in x.items()} if isinstance(x, dict) else x[chosen]


def joined(parts: Mapping[str, Raw]) -> Inputs:
    """The samples of all, by whose they are, one after the other; sequences are padded to the longest."""
    who = list(parts)
    tables = [part if isinstance(part, dict) else {"0": part} for part in parts.values()]
    for name, part, table in zip(who, parts.values(), tables, strict=True):
        if table.keys() != tables[0].keys() or isinstance(part, dict) != isinstance(parts[who[0]], dict):
            raise DataError(
                f"{name} has the inputs {_listed(part)}, but {who[0]} has {_listed(parts[who[0]])}; all must "
                "have the same"
            )
    result: dict[str, Tensor] = {}
    sequences: dict[str, Ragged] = {}
    for key in tables[0]:
        column = dict(zip(who, (table[key] for table in tables), strict=True))
        where = f" of input {key!r}" if isinstance(parts[who[0]], dict) else ""
        if any(isinstance(part, Ragged) for part in column.values()):
            sequences[key] = _in_a_row(column, where)
        else:
            result[key] = _stacked(column, where)  # type: ignore[arg-type]
    if sequences:
        result = _with_mask({key: sequences.get(key, result.get(key)) for key in tables[0]})  # type: ignore[misc]
    return result if isinstance(parts[who[0]], dict) or sequences else result["0"]


def _with_mask(columns: dict[str, Part]) -> dict[str, Tensor]:
    """Padded sequences, and the mask unless the user has given one."""
    ragged = {key: part for key, part in columns.items() if isinstance(part, Ragged)}
    first, lengths = next((key, part.lengths) for key, part in ragged.items())
    length = int(lengths.max())
    for key, part in ragged.items():
        if not torch.equal(part.lengths, lengths):
            raise DataError(
                f"the sequences of {key!r} and {first!r} have different lengths within a sample, and one "
                "mask cannot serve both; pad them yourself and give a mask for each"
            )
    padded = {key: part.padded(length) if isinstance(part, Ragged) else part for key, part in columns.items()}
    return {**padded, MASK: ragged[first].mask(length).long()} if MASK not in columns else padded


def _several(parts: dict[str, Any], where: str) -> dict[str, Part]:
    if not parts:
        raise DataError(f"{where} has no inputs; give at least one array")
    read = {name: _part(part, f"{where}[{name!r}]") for name, part in parts.items()}
    first = next(iter(read))
    for name, part in read.items():
        if len(part) != len(read[first]):
            raise DataError(
                f"{where}: {name!r} has {len(part)} samples, but {first!r} has {len(read[first])}"
            )
    return read


def _checked_name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not (name.isidentifier() or name.isdigit()):
        raise DataError(
            f"{where}: {name!r} cannot be the name of an input; use the names of the arguments of the "
            "model's forward"
        )
    return name


def _part(values: Any, where: str) -> Part:
    if isinstance(values, Ragged):
        return values
    if isinstance(values, Tensor) and values.is_nested:
        values = list(values.unbind())
    if isinstance(values, (list, tuple)) and len({_length(item) for item in values}) > 1:
        return _ragged(values, where)
    if isinstance(values, list) and values and all(isinstance(item, Tensor) for item in values):
        values = torch.stack([numbers(item, where) for item in values])
    tensor = numbers(values, where)
    if not tensor.ndim:
        raise DataError(f"{where} must hold one entry per sample, not a single number")
    return tensor


def _length(item: Any) -> int | None:
    """None for what has none, such as a number or a word."""
    try:
        return None if isinstance(item, (str, bytes)) else len(item)
    except TypeError:
        return None


def _ragged(values: Sequence[Any], where: str) -> Ragged:
    read = [numbers(item, f"{where}: sample {place}") for place, item in enumerate(values)]
    for place, item in enumerate(read):
        if not item.ndim or not len(item):
            what = "an empty sequence" if item.ndim else "a single number beside sequences"
            raise DataError(f"{where}: sample {place} is {what}; drop it")
        if item.shape[1:] != read[0].shape[1:]:
            raise DataError(
                f"{where}: samples must have one shape but for their length; sample 0 is "
                f"{tuple(read[0].shape)}, sample {place} is {tuple(item.shape)}"
            )
    return Ragged(torch.cat(read), torch.tensor([len(item) for item in read]))


def _in_a_row(column: Mapping[str, Part], where: str) -> Ragged:
    for name, part in column.items():
        if isinstance(part, Tensor) and part.ndim < 2:
            raise DataError(f"{name}: samples{where} are single numbers, where others are sequences")
    parts = {name: Ragged.of(part) for name, part in column.items()}
    _refuse_other_shapes({name: tuple(part.flat.shape[1:]) for name, part in parts.items()}, where)
    flat = torch.cat([part.flat for part in parts.values()])
    return Ragged(flat, torch.cat([part.lengths for part in parts.values()]))


def _stacked(column: Mapping[str, Tensor], where: str) -> Tensor:
    _refuse_other_shapes({name: tuple(part.shape[1:]) for name, part in column.items()}, where)
    return torch.cat(list(column.values()))


def _refuse_other_shapes(shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise DataError(
                f"all samples{where} must have one shape; those of {first} have {shapes[first]}, those of "
                f"{name} {shape}. Sequences of different lengths are padded if they come as lists of arrays"
            )


def _listed(part: Raw) -> str:
    return ", ".join(part) if isinstance(part, dict) else "a single array"
