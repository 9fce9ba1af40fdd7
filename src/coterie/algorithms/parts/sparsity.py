"""Sparse models: how many weights each layer keeps, which ones, how they are sent and averaged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from coterie.learning.updates import Gradients, Memory, Rate, Update
from coterie.protocol import Inbox, Params, Tree
from coterie.protocol.trees import per_row, some_rows
from coterie.randomness import Stream

_KEYS_AT_ONCE = 1 << 22


def prunable(params: Params) -> list[str]:
    """Weight matrices and kernels; biases and normalisation layers stay dense."""
    return [name for name, value in params.items() if value.dim() > 2]


def kept_by_layer(params: Params, density: float) -> dict[str, int]:
    """Erdos-Renyi-Kernel: layer l keeps a share proportional to sum(shape) / prod(shape), at most all.

    So small layers stay denser, and all of them together have the wanted density.
    """
    sizes = {name: params[name][0].numel() for name in prunable(params)}
    raw = {name: sum(params[name].shape[1:]) / size for name, size in sizes.items()}
    dense: set[str] = set()
    while True:
        sparse = [name for name in sizes if name not in dense]
        budget = sum(density * sizes[name] for name in sparse)
        budget -= sum((1 - density) * sizes[name] for name in dense)
        scale = budget / sum(raw[name] * sizes[name] for name in sparse) if sparse else 0.0
        too_dense = {name for name in sparse if scale * raw[name] >= 1}
        if not too_dense:
            break
        dense |= too_dense
    return {
        name: size if name in dense else max(1, round(scale * raw[name] * size))
        for name, size in sizes.items()
    }


def largest(scores: Tensor, count: int) -> Tensor:
    """(rows, n) bool: each row's `count` largest scores; of equal ones the first."""
    chosen = scores.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, chosen, True)


def random_scores(stream: Stream, n: int) -> Tensor:
    """(rows, n) random numbers of at least 0, a few rows at a time to save memory."""
    some = max(1, _KEYS_AT_ONCE // max(1, n))
    parts = [Stream(stream.key, stream.round, ids).uniform(n) for ids in stream.ids.split(some)]
    return torch.cat(parts)


def masked(params: Params, masks: Params) -> Params:
    """Zeros wherever a mask has none."""
    return {name: value * masks[name] if name in masks else value for name, value in params.items()}


def pack(params: Params, masks: Params) -> dict[str, Params]:
    """What goes over the wire: the values that are there, one bit per place, and the dense rest."""
    rows = {name: mask.flatten(1) for name, mask in masks.items()}
    values = {
        name: params[name].flatten(1)[mask].view(len(mask), -1) for name, mask in rows.items()
    }  # every row has equally many
    return {
        "values": values,
        "masks": {name: _to_bytes(mask) for name, mask in rows.items()},
        "dense": {name: value for name, value in params.items() if name not in masks},
    }


def unpack(packed: dict[str, Params], sizes: dict[str, int]) -> dict[str, Params]:
    """The masked weights, the masks as numbers, and the dense rest, each (messages, n)."""
    weights, masks = {}, {}
    for name, values in packed["values"].items():
        mask = _to_bits(packed["masks"][name], sizes[name])
        full = values.new_zeros(mask.shape)
        full[mask] = values.flatten()
        weights[name], masks[name] = full, mask.to(values.dtype)
    dense = {name: value.flatten(1) for name, value in packed["dense"].items()}
    return {"weights": weights, "masks": masks, "dense": dense}


def intersection_mean(params: Params, masks: Params, inbox: Inbox) -> Params:
    """m_i * sum_j m_j w_j / sum_j m_j; what stays dense, and what was not sent, as in a plain average."""
    sizes = {name: mask[0].numel() for name, mask in masks.items()}
    layout: list[tuple[str, str, int]] = []

    def flat(payload: Tree, rows: Tensor) -> Tensor:
        parts = unpack(cast(dict[str, Params], payload), sizes)
        layout[:] = [(kind, name, part.shape[1]) for kind in parts for name, part in parts[kind].items()]
        return torch.cat([part for kind in parts.values() for part in kind.values()], dim=1)

    mean = inbox.mean_of(flat)
    if mean is None:
        return params
    total = mean * per_row(inbox.count, mean).to(mean.device)
    columns = total.split([width for _, _, width in layout], dim=1)
    sums = {(kind, name): part for (kind, name, _), part in zip(layout, columns, strict=True)}
    mixed = dict(params)
    for name, own in params.items():
        if ("masks", name) in sums:
            mask = masks[name]
            having = sums["masks", name].view(own.shape) + mask
            mixed[name] = (sums["weights", name].view(own.shape) + own) / having.clamp(min=1) * mask
        elif ("dense", name) in sums:
            mixed[name] = (sums["dense", name].view(own.shape) + own) / per_row(inbox.count + 1, own).to(own)
    return mixed


def _to_bytes(bits: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(bits, (0, -bits.shape[1] % 8))
    powers = 2 ** torch.arange(8, device=bits.device)
    return (padded.view(len(bits), math.ceil(bits.shape[1] / 8), 8) * powers).sum(2).to(torch.uint8)


def _to_bits(packed: Tensor, n: int) -> Tensor:
    places = torch.arange(8, device=packed.device)
    return (packed.long()[:, :, None] >> places & 1).bool().flatten(1)[:, :n]


@dataclass(frozen=True)
class Masked:
    """Another rule after whose every step the masked weights are zero again."""

    masks: Params  # stacked over all rows of the node
    inner: Update

    def begin(self, params: Params, rows: Tensor) -> Memory:
        masks = {  # as numbers, and stored as the weights are, which makes the product several times faster
            name: torch.empty_like(value).copy_(some_rows(self.masks[name], rows))
            for name, value in params.items()
            if name in self.masks
        }
        return {**self.inner.begin(params, rows), "mask": masks}

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        self.inner.step(params, memory, gradient, lr, number)
        for name, mask in memory["mask"].items():
            params[name].mul_(mask)
