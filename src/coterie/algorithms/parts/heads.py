"""Models of which a part stays at home: heads of one's own, statistics that are not sent."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from coterie.errors import ConfigError
from coterie.protocol import Node, Params, Tree
from coterie.protocol.trees import some_rows


def pick(params: Params, names: tuple[str, ...]) -> Params:
    """The named part of a model, such as `node.body`."""
    return {name: params[name] for name in names}


def completed(received: Tree, mine: Params, rows: Tensor, node: Node, layer: str | None = None) -> Params:
    """Received models that can be run: what was not sent, as BatchNorm statistics, is the receiver's own.

    rows: which row received each. layer: complete up to this layer only.
    """
    sent = cast(Params, received)
    return {
        name: sent[name] if name in sent else some_rows(mine[name], rows)
        for name in node.names(layer, of=sent)
    }


def train_head_then_body(
    params: Params, node: Node, head: dict[str, Any], body: dict[str, Any], **both: Any
) -> Params:
    """First the head with the body frozen, BatchNorm statistics included; then the body with the head frozen.

    head, body: settings of `node.train` for each of the two phases.
    """
    heads = pick(node.train(params, only=node.head, stream="head", **head, **both), node.head)
    return node.train({**params, **heads}, only=node.body, **body, **both)


def head_settings(epochs: int, lr: float | None) -> dict[str, Any]:
    """The head's own number of epochs, also where the experiment counts steps, and its own learning rate."""
    settings: dict[str, Any] = {"epochs": epochs, "steps": None}
    return settings if lr is None else {**settings, "lr": lr}


def check_head(epochs: int, lr: float | None) -> None:
    """Refuse settings of the two phases that cannot be."""
    if epochs < 0:
        raise ConfigError(f"head_epochs must be 0 or more, not {epochs}")
    if lr is not None and lr < 0:
        raise ConfigError(f"head_lr must be 0 or more, not {lr}")
