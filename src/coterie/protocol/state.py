"""An algorithm's state as named tensors: for checkpoints, and for rows that sit out a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.errors import ContractError
from coterie.protocol.trees import per_row

S = TypeVar("S")


def named_tensors(state: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a state with its place, written `field/inner`."""
    if isinstance(state, Tensor):
        yield prefix, state
        return
    for key, value in _children(state, prefix):
        yield from named_tensors(value, f"{prefix}/{key}" if prefix else key)


def rebuilt(state: S, replace: Callable[[str, Tensor], Tensor], prefix: str = "") -> S:
    """The same state with every tensor replaced."""
    if isinstance(state, Tensor):
        return replace(prefix, state)  # type: ignore[return-value]
    new = {
        key: rebuilt(value, replace, f"{prefix}/{key}" if prefix else key)
        for key, value in _children(state, prefix)
    }
    if isinstance(state, dict):
        return new  # type: ignore[return-value]
    return dataclasses.replace(state, **new)  # type: ignore[type-var]


def keep_offline(old: S, new: S, online: Tensor) -> S:
    """The new state for rows that took part, the old one for the others."""
    if bool(online.all()):
        return new
    before = dict(named_tensors(old))

    def choose(name: str, tensor: Tensor) -> Tensor:
        if tensor.shape != before[name].shape:
            raise ContractError(f"state {name!r} changed its shape; tensors of a state must keep theirs")
        return torch.where(per_row(online, tensor).to(tensor.device), tensor, before[name])

    return rebuilt(new, choose)


def _children(state: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        yield from state.items()
    elif dataclasses.is_dataclass(state) and not isinstance(state, type):
        for field in dataclasses.fields(state):
            yield field.name, getattr(state, field.name)
    else:
        raise ContractError(
            f"state {where!r} is a {type(state).__name__}; a state is made of dataclasses, dicts and tensors"
        )
