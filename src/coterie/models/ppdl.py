"""Networks of PPDL (one per data set, as in its authors' code) and of DAC, which it builds on.

Differs from the authors' code: raw logits instead of log-probabilities, as everywhere in Coterie.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from coterie.inputs import Shape
from coterie.models.architecture import Architecture, image_size, wrong_input


def ppdl_cnn() -> Architecture:
    """PPDL's networks: 73,418 parameters on CIFAR-10 (3x32x32), 56,714 on Fashion-MNIST (1x28x28)."""

    def build(shape: Shape, n_classes: int) -> nn.Module:
        if tuple(shape) == (3, 32, 32):
            return _cifar_cnn(n_classes)
        if tuple(shape) == (1, 28, 28):
            return _fashion_cnn(n_classes)
        raise wrong_input("ppdl-cnn", "3x32x32 (CIFAR) or 1x28x28 (Fashion-MNIST) images", shape)

    return build


def _cifar_cnn(n_classes: int) -> nn.Module:
    """`CNN2` of the PPDL repository. Sides without padding: 32 -> 30/15 -> 13/6 -> 4/2."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 32, kernel_size=3),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, kernel_size=3),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(64, 64, kernel_size=3),
            relu3=nn.ReLU(),
            pool3=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            hidden=nn.Linear(64 * 2 * 2, 64),
            relu4=nn.ReLU(),
            head=nn.Linear(64, n_classes),
        )
    )


def _fashion_cnn(n_classes: int) -> nn.Module:
    """Sides without padding: 28 -> 26/13 -> 11/5."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, kernel_size=3),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, kernel_size=3),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            hidden=nn.Linear(32 * 5 * 5, 64),
            relu3=nn.ReLU(),
            head=nn.Linear(64, n_classes),
        )
    )


def lenet() -> Architecture:
    """LeNet of the DAC repository: 62,006 parameters for 3x32x32 and 10 classes."""

    def build(shape: Shape, n_classes: int) -> nn.Module:
        channels, height, width = image_size("lenet", shape, smallest=16)
        final_height, final_width = (((size - 4) // 2 - 4) // 2 for size in (height, width))
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 6, kernel_size=5),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(6, 16, kernel_size=5),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden1=nn.Linear(16 * final_height * final_width, 120),
                relu3=nn.ReLU(),
                hidden2=nn.Linear(120, 84),
                relu4=nn.ReLU(),
                head=nn.Linear(84, n_classes),
            )
        )

    return build
