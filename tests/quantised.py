"""What a secure sum has to give, worked out in the open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from coterie.protocol.secure_sum import FixedPoint


def quantised_sum(vectors: Sequence[Tensor], encoding: FixedPoint | None = None) -> Tensor:
    """The sum of the vectors' integers, as real numbers: nothing is masked, and no word may wrap around."""
    encoding = encoding or FixedPoint()
    total = sum(encoding.encode(vector).astype(np.int64) for vector in vectors)
    assert int(np.max(total, initial=0)) < 2**32
    return encoding.decode(np.asarray(total, dtype=np.uint32), len(vectors))
