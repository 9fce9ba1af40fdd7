"""Which of a peer's samples are set aside for tests: each sample decides by itself.

A number from 0 to 1 follows from the inputs of a sample. The sample is set aside if its number is below the
fraction that is wanted. So neither the order of a file nor its length matter. When a file grows, a sample
that has been learned from never becomes a test sample, and copies of a sample stay on its side. Labels do
not count: to correct one moves nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.own.several import Part, Ragged, Raw, size
from coterie.errors import ConfigError


def set_aside(x: Raw, fraction: float, seed: int, purpose: str) -> Tensor:
    """(n,) bool: about `fraction` of the samples; of two or more, the one with the lowest number at least.

    That one may go back to the others when more samples come. Those never go the other way.
    """
    if not 0.0 < fraction < 1.0:
        raise ConfigError(f"the test fraction must lie between 0 and 1, not {fraction}")
    numbers = _numbers(x, f"{seed}/{purpose}".encode())
    if len(numbers) < 2:
        return torch.zeros(len(numbers), dtype=torch.bool)
    return torch.from_numpy(numbers < fraction if numbers.min() < fraction else numbers == numbers.min())


def digests(x: Raw) -> list[bytes]:
    """One for each sample; equal for those with equal inputs, in whatever file they stand.

    Zeros at the end do not count: sequences may be padded to the longest, which may be another tomorrow. Nor
    does the type of the numbers: a table of whole numbers becomes one of real numbers by a single 0.5.
    """
    parts = dict(sorted(x.items())) if isinstance(x, dict) else {"": x}
    hashes = [hashlib.blake2b(digest_size=16) for _ in range(size(x))]
    for name, part in parts.items():
        for hash, content in zip(hashes, _contents(part), strict=True):
            hash.update(f"{name}:{len(content)}:".encode() + content)
    return [hash.digest() for hash in hashes]


def _numbers(x: Raw, purpose: bytes) -> NDArray[np.float64]:
    """(n,) from 0 to below 1, as good as drawn at random."""
    drawn = b"".join(hashlib.blake2b(purpose + b"/" + one, digest_size=8).digest() for one in digests(x))
    numbers: NDArray[np.float64] = (np.frombuffer(drawn, "<u8") >> np.uint64(11)).astype(np.float64)
    return numbers * 2.0**-53


def _contents(part: Part) -> Iterator[bytes]:
    """The numbers of each sample, without zeros at the end."""
    if isinstance(part, Ragged):
        table = _plain(part.flat)
        rows = np.split(table.ravel(), np.cumsum(part.lengths.numpy() * table.shape[1])[:-1])
        yield from (np.trim_zeros(row, "b").tobytes() for row in rows)
        return
    table = _plain(part)
    filled = table != 0
    lengths = np.where(filled.any(1), table.shape[1] - filled[:, ::-1].argmax(1), 0)
    yield from (row[:length].tobytes() for row, length in zip(table, lengths, strict=True))


def _plain(values: Tensor) -> NDArray[np.float32]:
    """(n, numbers), without a sign of zero."""
    table = values.flatten(1) if values.ndim > 1 else values[:, None]
    plain: NDArray[np.float32] = table.to("cpu", torch.float32).contiguous().numpy() + np.float32(0)
    return plain
