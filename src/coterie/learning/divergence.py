"""The error of a model whose loss is no number any more."""

from __future__ import annotations

from torch import Tensor

from coterie.errors import DivergedError
from coterie.training import Training

_SHOWN = 5  # peers that are named


def diverged(peers: Tensor, round: int, training: Training, loss: str = "loss") -> DivergedError:
    """That the loss of these peers (ids) became NaN or infinite in this round; -1: before the first."""
    shown = ", ".join(map(str, peers[:_SHOWN].tolist())) + (", ..." if len(peers) > _SHOWN else "")
    when = "before the first round" if round < 0 else f"in round {round + 1}"
    return DivergedError(
        f"the {loss} of peer {shown} became NaN or infinite {when}; "
        f"try a smaller training.lr{'' if training.clip else ' or set training.clip'}"
    )
