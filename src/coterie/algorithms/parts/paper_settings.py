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

PPDL_TRAINING: Mapping[str, Any] = {
    "training.epochs": 3,
    "training.batch_size": 8,
    "training.optimizer": "adam",
    "training.lr": 1e-4,
    "training.clip": 0.0,
}
"""Listo Zec et al. 2025, with the learning rate of their scripts for Fashion-MNIST: the paper tunes it."""

PFEDKD_WCL_TRAINING: Mapping[str, Any] = {
    "training.steps": 20,
    "training.batch_size": 20,
    "training.lr": 0.01,
    "training.lr_decay": 1.0,
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "training.clip": 0.0,
}
"""Hu et al. 2025; their 20 local epochs are 20 mini-batch steps in the code of most of the methods."""
