"""Who learned how much from whom, as shares. Of NumPy arrays and of tensors alike; needs no PyTorch."""

from __future__ import annotations

from typing import Any


def shares_of(counts: Any) -> Any:
    """(receivers, senders) with rows that add up to 1, from models received or weights; 0 where none came."""
    return counts / counts.sum(1)[:, None].clip(1e-12)


def inside_share(shares: Any, clusters: Any) -> float | None:
    """What share came from the peer's own cluster, over all who learned from anyone; None if nobody did."""
    inside = (shares * (clusters[:, None] == clusters)).sum(1)
    learners = shares.sum(1) > 0
    return float(inside[learners].mean()) if bool(learners.any()) else None
