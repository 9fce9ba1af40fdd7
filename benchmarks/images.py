"""Images with the shapes and numbers of MNIST, made up: benchmarks need no files."""

from __future__ import annotations

from functools import lru_cache

import torch

from coterie.data import Source, from_arrays

_TRAIN, _TEST, _CLASSES = 60_000, 10_000, 10


@lru_cache(maxsize=1)
def images() -> Source:
    """A blurred prototype per class plus noise, in [0, 1]: learnable, and not all zeros."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(_CLASSES, 1, 7, 7, generator=generator)
    prototypes = torch.nn.functional.interpolate(coarse, size=(28, 28), mode="bilinear")
    y = torch.randint(_CLASSES, (_TRAIN + _TEST,), generator=generator)
    noise = torch.rand(_TRAIN + _TEST, 1, 28, 28, generator=generator)
    x = noise.add_(prototypes[y]).mul_(0.5)
    return from_arrays(x[:_TRAIN], y[:_TRAIN], x[_TRAIN:], y[_TRAIN:], n_classes=_CLASSES)
