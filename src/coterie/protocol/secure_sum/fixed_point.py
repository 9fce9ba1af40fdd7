"""Real numbers as integers, so that sums are exact and can be hidden by masks of random integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import SecureSumError

Words = NDArray[np.uint32]

_LARGEST_SUM = 2**32 - 6  # fits the ring of 32-bit words and the field of 2^32 - 5 elements
_FURTHEST = 64  # exponents of ranges go from -64 to 64
_CHUNK = 1 << 15  # numbers whose intermediate results stay in the cache


@dataclass(frozen=True)
class FixedPoint:
    """x in [-clip, clip] becomes round((x + clip) / (2 clip) * levels); values beyond are clipped.

    The error of a sum is at most clip / levels (2e-6 by default) for each summand and coordinate.
    """

    clip: float = 8.0
    levels: int = 2**22

    @classmethod
    def within(cls, exponent: int) -> FixedPoint:
        """For values of at most 2^exponent; the error of each summand is at most 2^exponent / 2^22."""
        return cls(clip=2.0**exponent)

    @property
    def most_members(self) -> int:
        """How many numbers can be added without a wrap."""
        return _LARGEST_SUM // self.levels

    def encode(self, vector: Tensor) -> Words:
        """(n,) integers from 0 to `levels`."""
        _require_finite(vector)
        words = np.empty(len(vector), dtype=np.uint32)
        for begin in range(0, len(vector), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            words[part] = self.quantise(vector[part].detach()).cpu().numpy()
        return words

    def decode(self, total: Words, members: int) -> Tensor:
        """(n,) the real sum, in double precision, from the sum of `members` encodings.

        Each of them is at most `levels`, so a larger sum has a summand that is none.
        """
        if len(total) and int(total.max()) > members * self.levels:
            raise SecureSumError(
                f"the sum is larger than that of {members} members within 2^{math.log2(self.clip):.0f}: one "
                "of them lies"
            )
        result = torch.empty(len(total), dtype=torch.float64)
        for begin in range(0, len(total), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            words = torch.from_numpy(total[part].astype(np.float64))
            result[part] = self.restore(words, torch.tensor(members))
        return result

    def quantise(self, values: Tensor) -> Tensor:
        """The integers of `encode`, of any shape, as doubles: their sums are exact too."""
        shifted = values.double().clamp(-self.clip, self.clip).add_(self.clip)
        return shifted.div_(2 * self.clip).mul_(self.levels).round_()

    def restore(self, total: Tensor, members: Tensor) -> Tensor:
        """The real sums from sums of so many `quantise`d values each."""
        return (total / self.levels).mul_(2 * self.clip).sub_(members * self.clip)


def magnitude_exponent(vector: Tensor) -> int:
    """The smallest e from -64 to 64 with all values within 2^e."""
    largest = torch.stack(vector.aminmax()).abs().amax() if len(vector) else torch.zeros(())
    return int(magnitude_exponents(largest))


def magnitude_exponents(largest: Tensor) -> Tensor:
    """As `magnitude_exponent`, for many vectors of which the largest absolute values are given."""
    _require_finite(largest)
    mantissa, exponent = torch.frexp(largest.double())  # 0.5 <= mantissa < 1
    exact = (exponent - (mantissa == 0.5).int()).long()  # a power of two is within itself
    return exact.where(largest > 0, -_FURTHEST).clamp(-_FURTHEST, _FURTHEST)


def _require_finite(values: Tensor) -> None:
    # NaN and infinity survive minimum and maximum, which are found in one pass without memory.
    if values.numel() and not all(bool(extreme.isfinite()) for extreme in values.aminmax()):
        raise SecureSumError("a secure sum needs finite numbers, and a vector holds NaN or infinity")


def check_members(count: int, encoding: FixedPoint) -> None:
    """Refuse sums that would wrap around."""
    if not 1 <= count <= encoding.most_members:
        raise SecureSumError(
            f"with {encoding.levels} levels (2^{math.log2(encoding.levels):.0f}) a sum can have 1 to "
            f"{encoding.most_members} members, not {count}; use smaller groups"
        )
