"""Named layers of a network: what they return, and on which part of it that depends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError
from coterie.inputs import Inputs, arguments, count, each
from coterie.models.parts import copy_of, frozen_names
from coterie.registry import nearest

FEATURES = "input of the last linear layer"
"""Asked for in place of a layer's name: what the last linear layer is given."""


@dataclass(frozen=True)
class Layer:
    """A layer of a network, found by its name."""

    name: str
    shape: tuple[int, ...]  # of what it returns for each sample
    needs: tuple[str, ...]  # names of what they depend on in a peer's model

    @property
    def features(self) -> int:
        """How many numbers it returns for each sample."""
        return math.prod(self.shape)

    def by_position(self, positions: int) -> tuple[int, ...]:
        """(positions, features of each) if it returns these for every position; else (features,)."""
        several = len(self.shape) > 1 and self.shape[0] == positions
        return (positions, self.features // positions) if several else (self.features,)


def find_layer(module: nn.Module, name: str, example: Inputs) -> Layer:
    """The layer of this name, for inputs such as these samples; an error says which layers there are."""
    names = [known for known, _ in module.named_modules() if known]
    if name != FEATURES and name not in names:
        help = nearest(name, names) if names else "it has none"
        listed = "" if help.startswith("choose from") else f" Its layers: {', '.join(names)}"
        raise ConfigError(f"the model has no layer {name!r}; {help}{listed}")
    module = copy_of(module).eval()
    needs = _dependencies(module, name, example)
    if not needs and name != FEATURES:
        raise ConfigError(
            f"layer {name!r} comes before all that trains, so that its outputs are the same in every model"
        )
    return Layer(name, tuple(_forward(module, name, example).shape[1:]), needs)


def output_of(module: nn.Module, layer: str, run: Callable[[], Any]) -> Tensor:
    """(n, features) what the layer returns when `run` first comes to it; what follows is not run."""
    return _reached(module, layer, run).flatten(1)


def _reached(module: nn.Module, layer: str, run: Callable[[], Any]) -> Tensor:
    """(n, ...) as the layer returns it."""

    def stop(_: nn.Module, __: Any, output: Any) -> None:
        raise _Reached(output)

    def stop_before(_: nn.Module, given: tuple[Any, ...], by_name: dict[str, Any]) -> None:
        raise _Reached(_input(given, by_name))

    if layer == FEATURES:
        handle = last_linear(module).register_forward_pre_hook(stop_before, with_kwargs=True)
    else:
        handle = module.get_submodule(layer).register_forward_hook(stop)
    try:
        run()
    except _Reached as reached:
        return _first_tensor(reached.output, layer)
    finally:
        handle.remove()
    raise ConfigError(f"layer {layer!r} is never called by the model's forward")


def with_features(module: nn.Module, run: Callable[[], Any]) -> tuple[Any, Tensor]:
    """What `run` returns, and what it gave to the last linear layer on the way, with its history."""
    seen: list[Any] = []

    def see(_: nn.Module, given: tuple[Any, ...], by_name: dict[str, Any]) -> None:
        seen.append(_input(given, by_name))

    handle = last_linear(module).register_forward_pre_hook(see, with_kwargs=True)
    try:
        output = run()
    finally:
        handle.remove()
    if not seen:
        raise ConfigError("the model's last linear layer is never called by its forward")
    return output, _first_tensor(seen[-1], FEATURES)


def last_linear(module: nn.Module) -> nn.Linear:
    """The layer whose parameters `head_names` lists."""
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ConfigError("the model has no linear layer, and so no features that one is given")
    return linear[-1]


def _input(given: tuple[Any, ...], by_name: dict[str, Any]) -> Any:
    return next(iter((*given, *by_name.values())))


class _Reached(Exception):
    """Ends a forward pass at the layer that was asked for."""

    def __init__(self, output: Any) -> None:
        self.output = output


def largest_output(module: nn.Module, example: Inputs) -> int:
    """Bytes per sample of the largest tensor that a layer returns: a word's number becomes a long vector."""
    sizes = [0]

    def see(_: nn.Module, __: Any, output: Any) -> None:
        tensors = output if isinstance(output, tuple) else (getattr(output, "logits", output),)
        sizes.extend(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))

    module = copy_of(module).eval()
    for layer in module.modules():
        layer.register_forward_hook(see)
    _called(module, example)
    return max(sizes) // count(example)


def _first_tensor(output: Any, layer: str) -> Tensor:
    if isinstance(output, tuple):  # as those of an LSTM are
        output = next((part for part in output if isinstance(part, Tensor)), output)
    if not isinstance(output, Tensor) or output.dim() < 2:
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ConfigError(f"layer {layer!r} must return a tensor (batch, ...), not {what}")
    return output


def _dependencies(module: nn.Module, layer: str, example: Inputs) -> tuple[str, ...]:
    """Names of the tensors that, replaced by NaN, show in the layer's output.

    Neither the order of registration nor that of the calls would do: a forward may use its layers in another
    order, or a layer's weight without calling it.
    """
    found, frozen = [], frozen_names(module)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if value.is_floating_point() and name not in frozen:
                kept = value.clone()
                value.fill_(torch.nan)
                if bool(_forward(module, layer, example).isnan().any()):
                    found.append(name)
                value.copy_(kept)
    return tuple(found)


def _forward(module: nn.Module, layer: str, example: Inputs) -> Tensor:
    return _reached(module, layer, lambda: _called(module, example))


def _called(module: nn.Module, example: Inputs) -> Any:
    """What the module returns, with real numbers of its own type."""
    like = next(value for value in module.parameters() if value.is_floating_point())

    def as_taken(part: Tensor) -> Tensor:
        return part.to(like) if part.is_floating_point() else part.to(like.device)

    given, by_name = arguments(each(as_taken, example))
    with torch.no_grad():
        return module(*given, **by_name)
