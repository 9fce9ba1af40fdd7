"""Random layers such as Dropout, made repeatable.

PyTorch's layers draw from one generator of the whole process, so what a peer gets would depend on the
other worker threads. Inside `OwnRandomness` every random operation of this thread draws from a generator
that belongs to one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.errors import ConfigError


class OwnRandomness(TorchDispatchMode):
    """Redirects this thread's random operations to a generator with the given seed."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; otherwise the first operation would import the compiler: 70 MB."""
        return False

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__()
        self._generator = torch.Generator(device).manual_seed(seed)
        self.drew = False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in operation.tags or _drops_nothing(operation, args, kwargs):
            return operation(*args, **kwargs)
        self.drew = True
        if operation is torch.ops.aten.native_dropout.default:  # what Dropout becomes on a GPU
            return self._dropout(*args)
        if kwargs.get("generator") is None:
            operation, kwargs["generator"] = _with_generator(operation), self._generator
        return operation(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        keep = 0.0 if p == 1.0 else 1.0 - p
        mask = torch.empty_like(x).bernoulli_(keep, generator=self._generator).bool()
        return x * mask / max(keep, 1e-12), mask


def _drops_nothing(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether this is an operation with dropout inside, such as attention, of which none is asked for."""
    for place, argument in enumerate(operation._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            asked = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(asked == 0)
    return False


def _with_generator(operation: Any) -> Any:
    """The form of a random operation that takes a generator."""
    if any(argument.name == "generator" for argument in operation._schema.arguments):
        return operation
    packet = operation.overloadpacket
    for name in (f"{operation._overloadname}_generator", "generator"):
        if name in packet.overloads():
            return getattr(packet, name)
    raise ConfigError(
        f"the model draws random numbers by {operation}, which cannot be repeated; use nn.Dropout"
    )
