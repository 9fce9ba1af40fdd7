"""ResNet-18 with group normalisation, as in DFedPGP and the Dis-PFL family.

He et al. (2016) for small images: the stem is one 3x3 convolution of stride 1 without pooling.
Group instead of batch normalisation, because averaging the running statistics of peers with
different data does harm.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from coterie.errors import ConfigError
from coterie.inputs import Shape
from coterie.models.architecture import Architecture, image_size

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # (channels, stride of the first of two blocks)


def resnet18_gn(groups: int = 32) -> Architecture:
    """DFedPGP's ResNet-18 with group norm: 11,173,962 parameters for 10 classes, 11,220,132 for 100."""
    if groups < 1 or 64 % groups:
        raise ConfigError(f"model 'resnet18-gn': groups must divide 64 (such as 32), not {groups}")

    def build(shape: Shape, n_classes: int) -> nn.Module:
        channels, _, _ = image_size("resnet18-gn", shape, smallest=8)
        return ResNet18(channels, n_classes, groups)

    return build


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, width_in: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, width)
        self.shortcut = nn.Sequential()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, kernel_size=1, stride=stride, bias=False),
                nn.GroupNorm(groups, width),
            )

    def forward(self, x: Tensor) -> Tensor:
        residual = functional.relu(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return functional.relu(residual + self.shortcut(x))


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, average over what is left of the image, linear head."""

    def __init__(self, channels: int, n_classes: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, 64)
        blocks: list[nn.Module] = []
        width_in = 64
        for width, stride in _STAGES:
            blocks.append(ResidualBlock(width_in, width, stride, groups))
            blocks.append(ResidualBlock(width, width, 1, groups))
            width_in = width
        self.blocks = nn.Sequential(*blocks)
        # For 32x32 inputs this is the papers' 4x4 average pooling; other sizes work too.
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(512, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.conv(x)))
        x = self.pool(self.blocks(x)).flatten(1)
        logits: Tensor = self.head(x)
        return logits
