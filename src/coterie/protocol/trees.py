"""Trees: tensors in (nested) dictionaries, each with a leading axis of rows.

A model's parameters are a flat tree from parameter name to stacked tensor; what a node sends may
nest such trees, for example `{"model": params, "mass": mass}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
Tree: TypeAlias = "Tensor | Mapping[str, Tree]"


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
    return map_tree(lambda leaf: leaf.index_select(0, rows), tree)


def where_rows(mask: Tensor, yes: Params, no: Params) -> Params:
    """Row by row: from `yes` where `mask` holds, else from `no`."""
    return map_params(lambda a, b: torch.where(per_row(mask, a), a, b), yes, no)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Give a (rows,) tensor as many axes as `like`, so that it broadcasts over each row."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


def _child(tree: Tree, key: str) -> Tree:
    assert not isinstance(tree, Tensor)
    return tree[key]
