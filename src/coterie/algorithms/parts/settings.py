"""Settings that several methods share: local training as papers set it, and what every method refuses.

A paper sets local training for all the methods that it compares; each of them has it as a preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.errors import ConfigError
from coterie.protocol import Algorithm

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

KD_PDFL_IOT: Mapping[str, Any] = {"exchange_every": 20, "training.lr": 0.01, "training.batch_size": 32}
KD_PDFL_EMNIST: Mapping[str, Any] = {**KD_PDFL_IOT, "exchange_every": 5}
"""Jeong and Kountouris 2023, on its two data sets; learning rate and batch size are ours."""


def require_at_least(low: int, algorithm: Algorithm[Any], *names: str) -> None:
    """Refuse settings below `low`, and NaN; None is no setting."""
    for name in names:
        value = getattr(algorithm, name)
        if value is not None and not value >= low:
            raise ConfigError(f"{name} must be {low} or more, not {value}")


def require_above_zero(algorithm: Algorithm[Any], *names: str) -> None:
    """Refuse settings that are not positive."""
    for name in names:
        if not getattr(algorithm, name) > 0:
            raise ConfigError(f"{name} must be above 0, not {getattr(algorithm, name)}")


def require_fraction(algorithm: Algorithm[Any], *names: str) -> None:
    """Refuse shares that cannot be."""
    for name in names:
        if not 0 < getattr(algorithm, name) <= 1:
            raise ConfigError(f"{name} must be above 0 and at most 1, not {getattr(algorithm, name)}")
