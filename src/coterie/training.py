"""How each node trains locally: the `[training]` section of an experiment. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from coterie.errors import ConfigError


@dataclass(frozen=True)
class Training:
    """Local training. `steps`, when set, counts mini-batches and replaces `epochs`; `epoch_groups` makes
    compute uneven wherever a round trains for `epochs`.

    The optimiser's memory (momentum, Adam's moments) starts afresh in every round.
    """

    epochs: int = 1
    epoch_groups: int = 0  # peer i does 1 + i mod so many epochs; 0: `epochs` for all
    steps: int | None = None
    batch_size: int = 32
    lr: float = 0.05
    lr_decay: float = 1.0  # lr of round t is lr * lr_decay^t
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 10.0  # largest L2 norm of a node's gradient; 0: no clipping
    optimizer: Literal["sgd", "adam"] = "sgd"

    def __post_init__(self) -> None:
        for name, valid, wanted in (
            ("epochs", self.epochs >= 0, "0 or more"),
            ("epoch_groups", self.epoch_groups >= 0, "0 (the same epochs for all) or more"),
            ("steps", self.steps is None or self.steps >= 0, "0 or more"),
            ("batch_size", self.batch_size >= 1, "1 or more"),
            ("lr", self.lr >= 0, "0 or more"),
            ("lr_decay", 0 < self.lr_decay <= 1, "above 0 and at most 1"),
            ("momentum", 0 <= self.momentum < 1, "from 0 to below 1"),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("clip", self.clip >= 0, "0 (no clipping) or more"),
        ):
            if not valid or getattr(self, name) == inf:
                raise ConfigError(f"training.{name} must be {wanted}, not {getattr(self, name)}")
        if self.epoch_groups and self.steps is not None:
            raise ConfigError("training.epoch_groups counts epochs: it does not go with training.steps")
