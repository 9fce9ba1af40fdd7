"""Dense networks of pFedKD-WCL (MLR, MLP) and of KD-PDFL's IoT experiment.

All three are plain `nn.Sequential`s of Flatten, Linear, ReLU and BatchNorm1d, because the stacked
executor translates exactly these layers into batched matrix products over many peers at once.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from coterie.inputs import Shape
from coterie.models.architecture import Architecture, at_least_one, wrong_input


def mlr() -> Architecture:
    """Multinomial logistic regression: 7,850 parameters for 784 inputs and 10 classes."""

    def build(shape: Shape, n_classes: int) -> nn.Module:
        head = nn.Linear(math.prod(shape), n_classes)
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=head))

    return build


def mlp(hidden: int = 128) -> Architecture:
    """One hidden layer: 101,770 parameters for 784-128-10.

    pFedKD-WCL's code has `mlp(20)` on synthetic data, its paper 128 everywhere.
    """
    at_least_one("mlp", "hidden", hidden)

    def build(shape: Shape, n_classes: int) -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                flatten=nn.Flatten(),
                hidden=nn.Linear(math.prod(shape), hidden),
                relu=nn.ReLU(),
                head=nn.Linear(hidden, n_classes),
            )
        )

    return build


def iot_mlp(hidden: int = 128) -> Architecture:
    """KD-PDFL's IoT network, batch normalisation on the input: 39,769 parameters for 296-128-9."""
    at_least_one("iot-mlp", "hidden", hidden)

    def build(shape: Shape, n_classes: int) -> nn.Module:
        if len(shape) != 1:
            raise wrong_input("iot-mlp", "flat feature vectors, such as the 296 IoT features", shape)
        return nn.Sequential(
            OrderedDict(
                norm=nn.BatchNorm1d(shape[0]),
                hidden=nn.Linear(shape[0], hidden),
                relu=nn.ReLU(),
                head=nn.Linear(hidden, n_classes),
            )
        )

    return build
