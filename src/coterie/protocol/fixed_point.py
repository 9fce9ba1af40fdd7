"""Real numbers as integers, so that sums are exact and can be hidden by masks of random integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import SecureSumError

Words = NDArray[np.uint32]

_LARGEST_SUM = 2**32 - 6  # fits the ring of 32-bit words and the field of 2^32 - 5 elements


@dataclass(frozen=True)
class FixedPoint:
    """x in [-clip, clip] becomes round((x + clip) / (2 clip) * levels); values beyond are clipped.

    The error of a sum is at most clip / levels (2e-6 by default) for each summand and coordinate.
    """

    clip: float = 8.0
    levels: int = 2**22

    @property
    def most_members(self) -> int:
        """How many numbers can be added without a wrap."""
        return _LARGEST_SUM // self.levels

    def encode(self, vector: Tensor) -> Words:
        """(n,) integers from 0 to `levels`."""
        values = vector.detach().cpu().double().numpy()
        if not np.isfinite(values).all():
            raise SecureSumError("a secure sum needs finite numbers, and a vector holds NaN or infinity")
        scaled = (np.clip(values, -self.clip, self.clip) + self.clip) / (2 * self.clip) * self.levels
        words: Words = np.rint(scaled).astype(np.uint32)
        return words

    def decode(self, total: Words, members: int) -> Tensor:
        """(n,) the real sum, in double precision, from the sum of `members` encodings."""
        return torch.from_numpy(
            total.astype(np.float64) / self.levels * (2 * self.clip) - members * self.clip
        )


def quantised_sum(vectors: Sequence[Tensor], encoding: FixedPoint | None = None) -> Tensor:
    """The sum that a secure sum of the same vectors gives, bit for bit, without hiding anything."""
    encoding = encoding or FixedPoint()
    check_members(len(vectors), encoding)
    total = np.zeros(len(vectors[0]), dtype=np.uint32)
    for vector in vectors:
        total += encoding.encode(vector)
    return encoding.decode(total, len(vectors))


def check_members(count: int, encoding: FixedPoint) -> None:
    """Refuse sums that would wrap around."""
    if not 1 <= count <= encoding.most_members:
        raise SecureSumError(
            f"with {encoding.levels} levels (2^{math.log2(encoding.levels):.0f}) a sum can have 1 to "
            f"{encoding.most_members} members, not {count}; use fewer levels"
        )
