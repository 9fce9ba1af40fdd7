"""What an architecture is, and what those that are named say about inputs they cannot take.

A catalogue entry such as `mlp(64)` is an architecture: a function of the input shape and the number
of classes. So the name alone configures a network, and the data set decides its ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from coterie.errors import ConfigError
from coterie.inputs import Shape, Shapes

Architecture = Callable[[Any, int], nn.Module]
"""(input shape without the batch axis, number of classes) -> network that returns logits."""


def written(shape: Shapes) -> str:
    """A shape as people write it: 3x32x32; of several inputs, all of them."""
    if isinstance(shape, dict):
        return ", ".join(f"{name} {written(part)}" for name, part in shape.items())
    if any(isinstance(part, tuple) for part in shape):
        return ", ".join(written(part) for part in shape)  # type: ignore[arg-type]
    return "x".join(map(str, shape)) or "scalar"


def wrong_input(name: str, takes: str, shape: Shape) -> ConfigError:
    """The error for a network on data of another shape."""
    return ConfigError(
        f"model {name!r} takes {takes}, but the data has inputs of shape {written(shape)}; "
        f"mlr and mlp take any shape"
    )


def image_size(name: str, shape: Shape, *, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width, or an error if the inputs are not images or are too small."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        takes = f"images (channels, height, width) of at least {smallest}x{smallest} pixels"
        raise wrong_input(name, takes, shape)
    channels, height, width = shape
    return channels, height, width


def at_least_one(name: str, argument: str, value: int) -> int:
    """The value, or an error that names the argument."""
    if value < 1:
        raise ConfigError(f"model {name!r}: {argument} must be at least 1, not {value}")
    return value
