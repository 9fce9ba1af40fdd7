"""The gradient of a loss over all of a node's training samples."""

from __future__ import annotations

from torch import Tensor

from coterie.protocol import Loss, Node, Params
from coterie.protocol.trees import map_params

_ALL_SAMPLES = 1 << 40  # a batch larger than any node's data


def full_gradient(node: Node, params: Params, loss: Loss, active: Tensor) -> Params:
    """Each active row's gradient of `loss` at `params` over its whole training data; else zeros.

    It is what one step with rate 1 takes away. Running statistics of BatchNorm (`node.buffers`) have no
    gradient: they come out as what one pass over the data takes away, which is to be subtracted whole, not
    times a learning rate.
    """
    stepped = node.train(
        params,
        loss=loss,
        active=active,
        purpose="gradient",
        steps=1,
        batch_size=_ALL_SAMPLES,
        lr=1.0,
        lr_decay=1.0,
        momentum=0.0,
        weight_decay=0.0,
        clip=0.0,
        optimizer="sgd",
    )
    return map_params(lambda before, after: before - after, params, stepped)
