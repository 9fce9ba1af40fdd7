"""One call of `node.train`: the experiment's settings and what the algorithm changes in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from coterie.errors import ConfigError
from coterie.learning.updates import SGD, Adam, Proximal, Update
from coterie.training import Training


def optimiser(training: Training) -> Update:
    """The rule that turns gradients into steps."""
    if training.optimizer == "adam":
        return Adam(weight_decay=training.weight_decay)
    return SGD(momentum=training.momentum, weight_decay=training.weight_decay)


@dataclass(frozen=True)
class LocalWork:
    """One call of `node.train`, resolved: the settings, and what the algorithm added."""

    training: Training
    update: Update
    lr: float
    stream: str = "batches"
    epochs: Tensor | None = None  # (rows,) uneven compute
    batches_per_step: int = 1  # mini-batches that the update rule needs for what counts as one step

    @classmethod
    def resolve(
        cls, training: Training, round: int, settings: dict[str, Any], ids: Tensor | None = None
    ) -> LocalWork:
        """Combine the experiment's settings with an algorithm's overrides. ids: of the rows."""
        if {"epochs", "steps"} & settings.keys():
            training = replace(training, epoch_groups=0)  # the algorithm's own number of epochs, for all
        settings = dict(settings)
        update: Callable[[Training], Update] = settings.pop("update", optimiser)
        stream = settings.pop("stream", "batches")
        uneven = settings["epochs"] if isinstance(settings.get("epochs"), Tensor) else None
        if uneven is not None:
            del settings["epochs"]
        elif training.epoch_groups and ids is not None:
            uneven = 1 + ids % training.epoch_groups
        mu, anchor = settings.pop("proximal", (0.0, None))
        per_step = settings.pop("batches_per_step", 1)
        around: Callable[[Update], Update] | None = settings.pop("around", None)
        merged = Training(**{**vars(training), **settings})
        if settings.get("momentum") and merged.optimizer == "adam":
            raise ConfigError(
                f"the algorithm has a momentum of its own, {settings['momentum']}, which training.optimizer "
                "'adam' has no use for; take 'sgd', or set the algorithm's momentum to 0"
            )
        rule = update(merged)
        if around is not None:
            rule = around(rule)
        if mu:
            rule = Proximal(mu, anchor, rule)
        return cls(merged, rule, merged.lr_at(round), stream, uneven, per_step)
