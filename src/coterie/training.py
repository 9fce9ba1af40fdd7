"""How each node trains locally: the `[training]` section of an experiment. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Any, Literal

from coterie.errors import ConfigError
from coterie.registry import nearest, parse_call

_SCHEDULES: dict[str, tuple[str, ...]] = {
    "constant": (),
    "cosine": (),
    "linear": (),
    "step": ("every", "factor"),
}
PLAIN_STEP: dict[str, Any] = {
    "optimizer": "sgd",
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "lr_decay": 1.0,
    "schedule": "constant",
    "warmup": 0.0,
    "augment": "",
    "accumulate": 1,
}
"""Settings of `node.train` for steps that a method's equations spell out: w <- w - lr gradient, no more."""


def _key(default: Any, description: str) -> Any:
    """A key of the section, with what it means for whoever asks the schema."""
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class Training:
    """Local training. `steps`, when set, counts mini-batches and replaces `epochs`; `epoch_groups` makes
    compute uneven wherever a round trains for `epochs`.

    `work` says who counts: "own", each method as its paper does (exchange intervals, head epochs); "equal",
    every method takes per peer and round the mini-batches that Local takes with these settings.

    `optimizer_state` says what becomes of the optimiser's memory (momentum, Adam's moments and count of
    steps): "reset", it starts afresh in every round; "kept", each peer keeps its own, and never sends it.
    """

    epochs: int = _key(1, "passes over a peer's training data in a round")
    epoch_groups: int = _key(0, "peer i does 1 + i mod so many epochs; 0: `epochs` for all")
    steps: int | None = _key(None, "mini-batches in a round, in the place of `epochs`")
    batch_size: int = _key(32, "samples of a mini-batch")
    accumulate: int = _key(1, "mini-batches whose mean gradient makes one step of the optimiser")
    lr: float = _key(0.05, "learning rate")
    lr_decay: float = _key(1.0, "the learning rate of round t is lr * lr_decay^t, times what `schedule` says")
    schedule: str = _key(
        "constant",
        "how the learning rate goes on after the warm-up, step by step: constant; cosine or linear, to 0 at "
        "the end of the last round; step(every,factor), times factor after every so many rounds",
    )
    warmup: float = _key(
        0.0, "rounds, or a fraction of one, in which the learning rate grows from 0 to its value"
    )
    momentum: float = _key(0.0, "of optimizer sgd")
    nesterov: bool = _key(False, "Nesterov's momentum in the place of the heavy ball; optimizer sgd only")
    weight_decay: float = _key(0.0, "added to the gradient by sgd and adam, beside the step by adamw")
    clip: float = _key(10.0, "largest L2 norm of a node's gradient; 0: no clipping")
    optimizer: Literal["sgd", "adam", "adamw"] = _key("sgd", "the rule that turns gradients into steps")
    optimizer_state: Literal["reset", "kept"] = _key(
        "reset",
        "the optimiser's memory (momentum, moments) starts afresh in every round, or is kept by each peer",
    )
    work: Literal["own", "equal"] = _key(
        "own",
        "own: each method trains as long as its settings say; equal: in each round it takes, per peer, the "
        "mini-batches that Local takes, whatever its own settings say",
    )

    class_weights: Literal["even", "balanced"] | tuple[float, ...] = _key(
        "even",
        "of the classes in the loss: balanced weighs each by how rare it is among a peer's own samples; or a "
        "list with one number per class",
    )
    label_smoothing: float = _key(0.0, "share of each target that the loss spreads over all classes")
    augment: str = _key(
        "",
        "random changes of training images: crop(padding), flip, cutout(size), joined by +; or of any "
        "samples, file.py:function of (x, stream)",
    )

    def __post_init__(self) -> None:
        for name, valid, wanted in (
            ("epochs", self.epochs >= 0, "0 or more"),
            ("epoch_groups", self.epoch_groups >= 0, "0 (the same epochs for all) or more"),
            ("steps", self.steps is None or self.steps >= 0, "0 or more"),
            ("batch_size", self.batch_size >= 1, "1 or more"),
            ("accumulate", self.accumulate >= 1, "1 or more"),
            ("lr", self.lr >= 0, "0 or more"),
            ("lr_decay", 0 < self.lr_decay <= 1, "above 0 and at most 1"),
            ("warmup", self.warmup >= 0, "0 (none) or more rounds"),
            ("momentum", 0 <= self.momentum < 1, "from 0 to below 1"),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("label_smoothing", 0 <= self.label_smoothing <= 1, "from 0 to 1"),
            ("clip", self.clip >= 0, "0 (no clipping) or more"),
        ):
            if not valid or getattr(self, name) == inf:
                raise ConfigError(f"training.{name} must be {wanted}, not {getattr(self, name)}")
        parsed_schedule(self.schedule)
        weights = self.class_weights
        if not isinstance(weights, str) and not (all(0 <= w < inf for w in weights) and any(weights)):
            raise ConfigError(f"training.class_weights must be 0 or more, and not all 0, not {list(weights)}")
        if self.epoch_groups and self.steps is not None:
            raise ConfigError("training.epoch_groups counts epochs: it does not go with training.steps")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise ConfigError(
                "training.nesterov needs training.optimizer 'sgd' with a training.momentum above 0"
            )


def parts_of(augment: str) -> list[str]:
    """`crop(4)+flip` is two augmentations."""
    return [part.strip() for part in augment.split("+")] if augment else []


@lru_cache(maxsize=64)
def parsed_schedule(text: str) -> tuple[str, tuple[float, ...]]:
    """The name of a schedule of the learning rate, and its numbers."""
    name, positional, keywords = parse_call(text, "training.schedule")
    wanted = _SCHEDULES.get(name)
    if wanted is None:
        raise ConfigError(f"unknown training.schedule {text!r}; {nearest(name, _SCHEDULES)}")
    given = dict(zip(wanted, positional, strict=False)) | keywords
    try:
        numbers = tuple(float(given[argument]) for argument in wanted)
    except (KeyError, ValueError):
        numbers = ()
    if (
        len(given) != len(wanted)
        or len(positional) + len(keywords) != len(wanted)
        or len(numbers) < len(wanted)
    ):
        written = f"{name}({','.join(wanted)})" if wanted else name
        raise ConfigError(f"training.schedule {text!r} is not of the form {written}")
    if name == "step" and not (numbers[0] > 0 and 0 < numbers[1] < inf):
        raise ConfigError(f"training.schedule {text!r}: both numbers must be above 0")
    return name, numbers
