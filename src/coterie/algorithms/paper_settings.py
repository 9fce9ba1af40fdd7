"""Local training as a paper sets it for all the methods that it compares; each of them has it as a preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BLEND_DFL_TRAINING: Mapping[str, Any] = {
    "training.epochs": 5,
    "training.batch_size": 64,
    "training.lr": 0.01,
    "training.lr_decay": 0.998,
    "training.momentum": 0.0,
    "training.weight_decay": 5e-4,
    "training.clip": 10.0,
}
"""Soltani et al., BlendDFL; the presets of some baselines leave out weight decay or clipping."""

DFEDPGP_TRAINING: Mapping[str, Any] = {
    "training.epochs": 5,
    "training.batch_size": 128,
    "training.lr": 0.1,
    "training.lr_decay": 0.99,
    "training.momentum": 0.9,
    "training.weight_decay": 5e-4,
    "training.clip": 10.0,
}
"""Liu et al., CVPR 2024, with the weight decay and the clipping of the code of this family."""
