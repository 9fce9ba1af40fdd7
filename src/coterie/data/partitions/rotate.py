"""Turning images, as the covariate shifts of PPDL and DAC do."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.errors import DataError


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn images (..., height, width) counter-clockwise about their centre.

    Nearest neighbour, zeros where nothing was: applied to normalised images, so a zero is the mean
    grey. Multiples of 90 degrees of square images are exact.
    """
    if images.dim() < 3:
        raise DataError(f"only images can be rotated; these samples have shape {tuple(images.shape[1:])}")
    height, width = images.shape[-2:]
    quarter, rest = divmod(degrees % 360.0, 90.0)
    if rest == 0.0 and (height == width or quarter % 2 == 0):
        return torch.rot90(images, int(quarter), dims=(-2, -1))
    angle = math.radians(degrees)
    rows = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float64)[None, :] - (width - 1) / 2
    # Where each target pixel comes from; rows grow downwards, hence the signs.
    from_row = (math.cos(angle) * rows + math.sin(angle) * columns + (height - 1) / 2).round().long()
    from_column = (-math.sin(angle) * rows + math.cos(angle) * columns + (width - 1) / 2).round().long()
    inside = (from_row >= 0) & (from_row < height) & (from_column >= 0) & (from_column < width)
    flat = from_row.clamp(0, height - 1) * width + from_column.clamp(0, width - 1)
    turned = images.flatten(-2)[..., flat.flatten()].view(images.shape)
    return turned * inside
