"""Products in bfloat16, everything else in float32: torch's autocast around another way to run a model."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.inputs import Inputs
from coterie.learning.batched import BatchedModel
from coterie.learning.updates import Gradients
from coterie.protocol.node import Batch, Loss, OnFeatures
from coterie.protocol.trees import Params

Precision: TypeAlias = Literal["float32", "bfloat16"]


class Autocast:
    """Parameters, gradients, losses and what is sent stay float32."""

    def __init__(self, inner: BatchedModel) -> None:
        self._inner = inner
        self.one_by_one = inner.one_by_one

    def outputs(self, params: Params, x: Inputs, layer: str | None = None) -> Tensor:
        with _autocast(next(iter(params.values())).device):
            return self._inner.outputs(params, x, layer).float()

    def turned(self, batch_size: int) -> frozenset[str]:
        return self._inner.turned(batch_size)

    def gradients(
        self, params: Params, batch: Batch, loss: Loss, only: tuple[str, ...]
    ) -> tuple[Tensor, Gradients]:
        with _autocast(batch.y.device):
            return self._inner.gradients(params, batch, _in_float32(loss), only)


def _in_float32(loss: Loss) -> Loss:
    if isinstance(loss, OnFeatures):
        of = loss.of
        return OnFeatures(lambda outputs, features, batch: of(outputs.float(), features.float(), batch))
    return lambda outputs, batch: loss(outputs.float(), batch)


def _autocast(device: torch.device) -> torch.autocast:
    # Without its cache: parameters change in place between calls, and vmap's must not be remembered.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def require_precision(precision: Precision, device: torch.device) -> None:
    """Refuse what this device cannot compute."""
    known = torch.amp.is_autocast_available(device.type)
    if device.type == "cuda" and known:
        known = torch.cuda.is_bf16_supported()
    if precision == "bfloat16" and not known:
        raise ConfigError(
            f"execution.precision 'bfloat16' cannot be used on device {str(device)!r}; leave it at 'float32'"
        )
