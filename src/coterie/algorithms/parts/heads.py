"""Models of which a part stays at home: a head of one's own beside a body that is shared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.protocol import Node, Params


def pick(params: Params, names: tuple[str, ...]) -> Params:
    """The named part of a model, such as `node.body`."""
    return {name: params[name] for name in names}


def train_head_then_body(
    params: Params, node: Node, head: dict[str, Any], body: dict[str, Any], *, share: float = 1.0, **both: Any
) -> Params:
    """First the head with the body frozen, BatchNorm statistics included; then the body with the head frozen.

    head, body: settings of `node.train` for each of the two phases. share: of the round's work, for both.
    """
    has_body = any(name not in node.buffers for name in node.body)  # what is not there takes no steps
    first = share * proportion(head["epochs"], node.epochs) if has_body else share
    heads = pick(node.train(params, only=node.head, stream="head", share=first, **head, **both), node.head)
    return node.train({**params, **heads}, only=node.body, share=share, **body, **both)


def proportion(first: float | Tensor, second: float | Tensor) -> Tensor:
    """The share of the first of two phases, from the epochs of both; 0 where neither has any."""
    total = torch.as_tensor(first + second, dtype=torch.float64)
    return first / total.where(total > 0, 1.0)


def head_settings(epochs: int, lr: float | None) -> dict[str, Any]:
    """The head's own number of epochs, also where the experiment counts steps, and its own learning rate."""
    settings: dict[str, Any] = {"epochs": epochs, "steps": None}
    return settings if lr is None else {**settings, "lr": lr}
