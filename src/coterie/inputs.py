"""What a network is given for a sample: one tensor, or several of different shapes by name.

Several are a dict of tensors with the same leading axes. Those named "0", "1", ... are given to the network
by position, as a tuple would be, all others by keyword. `attention_mask` says which places of sequences are
no padding. How a pool of samples is cut and gathered says `coterie.data.federation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from coterie.errors import ConfigError

Inputs: TypeAlias = "Tensor | dict[str, Tensor]"
Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = "Shape | tuple[Shape, ...] | dict[str, Shape]"

MASK = "attention_mask"


def each(fn: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same with every tensor."""
    return fn(x) if isinstance(x, Tensor) else {name: fn(part) for name, part in x.items()}


def named(x: Inputs) -> dict[str, Tensor]:
    """Every tensor by its name; a single one is the first by position."""
    return {"0": x} if isinstance(x, Tensor) else x


def count(x: Inputs) -> int:
    """How many samples these are."""
    return len(next(iter(named(x).values())))


def shapes_of(x: Inputs) -> Shapes:
    """Of one sample, as a user's network is told: a shape, a tuple of them or a dict of them.

    The mask of sequences that were given by position is not told.
    """
    shapes = {name: tuple(part.shape[1:]) for name, part in named(x).items()}
    by_position = tuple(shape for name, shape in shapes.items() if name.isdigit())
    if not by_position:
        return shapes
    return by_position[0] if len(by_position) == 1 else by_position


def arguments(x: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What to call a network with: arguments by position and by keyword."""
    if isinstance(x, Tensor):
        return (x,), {}
    by_position = tuple(part for name, part in x.items() if name.isdigit())
    return by_position, {name: part for name, part in x.items() if not name.isdigit()}


def answer(output: Any) -> Tensor:
    """The tensor in what a network returned: itself, `.logits`, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, (tuple, list)):
        found = next((part for part in output if isinstance(part, Tensor)), None)
    if not isinstance(found, Tensor):
        raise ConfigError(
            "the model must return a tensor of logits, a tuple that starts with them or an object with "
            f".logits, not {type(output).__name__}"
        )
    return found
