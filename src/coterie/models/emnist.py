"""The two networks that fit KD-PDFL's description of its EMNIST model: both 970,847 parameters.

The paper gives "two convolutional, two max-pooling, two fully connected layers" and the total only.
Without batch normalisation, one round solution exists (A); with it, one of 3x3 kernels (B), which
needs 5.6 times fewer multiplications per image and is therefore the better choice on a CPU.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from coterie.inputs import Shape
from coterie.models.architecture import Architecture, image_size


def emnist_cnn() -> Architecture:
    """KD-PDFL's EMNIST network, plain form (A): 970,847 parameters for 1x28x28 and 47 classes."""

    def build(shape: Shape, n_classes: int) -> nn.Module:
        channels, height, width = image_size("emnist-cnn", shape, smallest=12)
        final_height, final_width = ((size // 2 - 4) // 2 for size in (height, width))
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 40, kernel_size=5, padding=2),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(40, 160, kernel_size=5),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden=nn.Linear(160 * final_height * final_width, 200),
                relu3=nn.ReLU(),
                head=nn.Linear(200, n_classes),
            )
        )

    return build


def emnist_cnn_bn() -> Architecture:
    """KD-PDFL's EMNIST network with batch norm (B): 970,847 parameters for 1x28x28 and 47 classes."""

    def build(shape: Shape, n_classes: int) -> nn.Module:
        channels, height, width = image_size("emnist-cnn-bn", shape, smallest=4)
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 24, kernel_size=3, padding=1),
                norm1=nn.BatchNorm2d(24),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(24, 48, kernel_size=3, padding=1),
                norm2=nn.BatchNorm2d(48),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden=nn.Linear(48 * (height // 4) * (width // 4), 400),
                relu3=nn.ReLU(),
                head=nn.Linear(400, n_classes),
            )
        )

    return build
