"""Trees: tensors in (nested) dictionaries, each with a leading axis of rows.

A model's parameters are a flat tree from parameter name to stacked tensor; what a node sends may
nest such trees, for example `{"model": params, "mass": Counters(mu=mass)}`. An algorithm's state may have
dataclasses in it as well: `named_tensors` and what follows serve checkpoints, and rows that sit out a round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from coterie.errors import ContractError

Params: TypeAlias = dict[str, Tensor]
Tree: TypeAlias = "Tensor | Mapping[str, Tree]"
S = TypeVar("S")


def map_tree(fn: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Apply `fn` to each tensor of `tree` and the tensors at the same place in the other trees."""
    if isinstance(tree, Tensor):
        return fn(tree, *others)
    return {
        key: map_tree(fn, value, *(_child(other, key) for other in others)) for key, value in tree.items()
    }


def map_params(fn: Callable[..., Tensor], params: Params, *others: Params) -> Params:
    """`map_tree` for the flat tree of a model's parameters."""
    return {name: fn(value, *(other[name] for other in others)) for name, value in params.items()}


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Each tensor with its place, written `outer/inner`."""
    if isinstance(tree, Tensor):
        yield prefix, tree
    else:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}/{key}" if prefix else key)


def row_bytes(tree: Tree) -> int:
    """Bytes that one row of the tree needs on the wire."""
    return sum(leaf[:1].numel() * leaf.element_size() for _, leaf in leaves(tree))


def take(tree: Tree, rows: Tensor) -> Tree:
    """The given rows of every tensor."""
    return map_tree(lambda leaf: some_rows(leaf, rows), tree)


def some_rows(leaf: Tensor, rows: Tensor) -> Tensor:
    """The given rows of a tensor, which need not be on the device of what counts rows."""
    return leaf.index_select(0, rows.to(leaf.device))


def fitting(model: Tree, mine: Params) -> Params:
    """The tensors of those layers of a model that one's own model has too, with the same names and shapes.

    A bias does not fit when the weight beside it has another shape: it belongs to another layer.
    """
    assert not isinstance(model, Tensor)
    both = {name: leaf for name, leaf in model.items() if name in mine and isinstance(leaf, Tensor)}
    unlike = {_layer(name) for name, leaf in both.items() if leaf.shape[1:] != mine[name].shape[1:]}
    return {name: leaf for name, leaf in both.items() if _layer(name) not in unlike} if unlike else both


def flatten_row(tree: Tree, row: int) -> tuple[Tensor, Tree]:
    """One row's numbers as a (n,) vector, and the row itself, which says how to undo it.

    Only for sums of real numbers: integers and booleans are refused.
    """
    like = map_tree(lambda leaf: leaf[row : row + 1], tree)
    require_floats(like)
    parts = [leaf.reshape(-1) for _, leaf in leaves(like)]
    return torch.cat(parts) if parts else torch.empty(0), like


def unflatten(vector: Tensor, like: Tree) -> Tree:
    """A (n,) vector as a tree of one row with the names, shapes and types of `like`."""
    sizes = [leaf.numel() for _, leaf in leaves(like)]
    if len(vector) != sum(sizes):
        raise ContractError(f"{len(vector)} numbers do not fit a payload of {sum(sizes)}")
    parts = iter(vector.split(sizes))
    return map_tree(lambda leaf: next(parts).reshape(leaf.shape).to(leaf), like)


def require_floats(tree: Tree) -> None:
    """Refuse a payload that a sealed exchange cannot carry."""
    for name, leaf in leaves(tree):
        if not leaf.is_floating_point():
            raise ContractError(
                f"payload {name!r} is {str(leaf.dtype).removeprefix('torch.')}, and only real numbers can be "
                "sealed: send it in an exchange of its own, or as float"
            )


class Counters(dict[str, Tensor]):
    """Numbers of a payload beside its model, such as how many samples it learned from.

    Their names are not those of parameters, so that a parameter `n` may stay at home while a count `n` goes.
    """


def without(payload: Tree, names: frozenset[str]) -> Tree:
    """A payload without the tensors of these parameters, in whichever of its branches they are.

    What a payload calls its branches, such as `model`, is no parameter. A name with a dot is.
    """
    if isinstance(payload, Tensor) or not names:
        return payload
    branches = {key for key, value in payload.items() if not isinstance(value, Tensor) and "." not in key}
    kept = {key: value for key, value in payload.items() if key in branches or key not in names}
    return {key: _stripped(value, names) for key, value in kept.items()}


def _stripped(tree: Tree, names: frozenset[str]) -> Tree:
    if isinstance(tree, Tensor | Counters):
        return tree
    return {key: _stripped(value, names) for key, value in tree.items() if key not in names}


def where_rows(mask: Tensor, yes: Params, no: Params) -> Params:
    """Row by row: from `yes` where `mask` holds, else from `no`."""
    return map_params(lambda a, b: torch.where(per_row(mask, a).to(a.device), a, b), yes, no)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Give a (rows,) tensor as many axes as `like`, so that it broadcasts over each row."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


def mean_per_row(values: Tensor, present: Tensor | None = None) -> Tensor:
    """(rows,) mean over what is present, 1 or 0 each; None: all of it. Positions count like samples."""
    if values.dim() > 2:
        values, present = values.flatten(1), None if present is None else present.flatten(1)
    if present is None:
        return values.mean(dim=1)
    return (values * present).sum(dim=1) / present.sum(dim=1)


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _child(tree: Tree, key: str) -> Tree:
    assert not isinstance(tree, Tensor)
    return tree[key]


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
