"""What a message of an honest node can look like, judged by what the receiver itself has.

A driver that takes messages from others' hands asks the check of an exchange about every message, before
it keeps any of it. A check judges one message for one row: it says what is wrong, or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from coterie.protocol.trees import Tree, leaves

MOST_TIMES = 100.0
"""How many times longer than one's own another's model may be. Those of one experiment differ by far less."""


MOST_TIMES_IN_SUM = 10.0
"""The same for the mean of an opened sum. It hides single models, so one that is large shows less."""


class Check(Protocol):
    """Judges the messages of one exchange, each once and in the order in which they come."""

    def __call__(self, payload: Tree) -> str:
        """What is wrong with one message, whose tensors have one row; empty if nothing is."""


def norm(tree: Tree) -> float:
    """The Euclidean norm of all real numbers of a tree with one row, in double precision."""
    parts = [leaf for _, leaf in leaves(tree) if leaf.is_floating_point()]
    return float(torch.stack([part.double().norm() for part in parts]).norm()) if parts else 0.0


def branch(tree: Tree, path: str) -> Tree:
    """The part of a tree at `outer/inner`; the whole tree for an empty path."""
    for key in filter(None, path.split("/")):
        assert not isinstance(tree, Tensor)
        tree = tree[key]
    return tree


def _named_as(mine: Tree, other: Tree) -> Tree:
    if isinstance(mine, Tensor) or isinstance(other, Tensor):
        return other
    return {name: value for name, value in other.items() if name in mine}


@dataclass(frozen=True)
class Sized:
    """The model in a message is at most `MOST_TIMES` as long as one's own, which is not zero.

    model: where it is in the payload. weight: where the number is by which it was multiplied, if it was. What
    stands beside the tensors of one's own model is not measured. times: in the place of `MOST_TIMES`.
    """

    mine: Tree
    model: str = ""
    weight: str = ""
    times: float = MOST_TIMES

    @cached_property
    def _own(self) -> float:
        return norm(self.mine)

    def __call__(self, payload: Tree) -> str:
        length = norm(_named_as(self.mine, branch(payload, self.model)))
        weight = 1.0
        if self.weight:
            (number,) = branch(payload, self.weight).flatten().tolist()  # type: ignore[union-attr]
            weight = float(number)
            if weight < 0:
                return f"its weight is {weight:g}"
            if weight == 0:
                return "its weight is 0 and its model is not" if length else ""
        most = self.times * self._own
        if self._own and not length / weight <= most:
            return f"its norm is {length / weight:.3g}, and that of this peer's own model is {self._own:.3g}"
        return ""
