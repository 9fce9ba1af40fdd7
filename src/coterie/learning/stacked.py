"""The fast path for small dense models: linear layers of many rows as batched matrix products."""

from __future__ import annotations

import copy
import platform
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.data.federation import single
from coterie.inputs import Inputs
from coterie.learning.batched import cannot_be_stacked
from coterie.learning.tasks.task import with_slopes
from coterie.learning.updates import Gradients, Moved, Outer, Pass
from coterie.models import FEATURES, frozen_names, still_layers
from coterie.protocol.node import Batch, Loss, OnFeatures
from coterie.protocol.trees import Params

_WIDE = 32  # outputs from which a linear layer is faster as x W^T than as (W x^T)^T
_LARGE_BATCH = 16  # samples from which x W^T may be up to 4 times faster if the columns of W are contiguous
_WRITTEN_OUT = (nn.Flatten, nn.Linear, nn.ReLU)  # layers whose backward pass is written out here
_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Identity)


@dataclass
class _Tape:
    """What the backward pass needs of each linear layer, in order."""

    passes: dict[str, Pass]
    outputs: dict[str, Tensor]  # with their history
    features: Tensor | None = None  # what the last linear layer is given, with its history


class StackedLayers:
    """A Sequential of Flatten, Linear, BatchNorm1d and elementwise layers, for many rows at once.

    Gradients flow to the OUTPUT of each linear layer only; with its inputs that is the weight
    gradient in factored form (see `Outer`).
    """

    one_by_one = False

    def __init__(self, module: nn.Sequential) -> None:
        # Not named_children(), which names a layer that occurs twice (a ReLU) only once.
        self._layers = [(name, _not_in_place(layer)) for name, layer in module._modules.items()]
        self._flattens = any(isinstance(layer, nn.Flatten) for _, layer in self._layers)
        self._frozen, self._still = _common(module), still_layers(module)
        self._last = next((n for n, layer in reversed(self._layers) if isinstance(layer, nn.Linear)), None)
        self._simple = not self._frozen and all(type(layer) in _WRITTEN_OUT for _, layer in self._layers)

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """True for a plain Sequential of layers that have a batched form."""
        if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
            return False
        layers = list(module)
        with_weights = [layer for layer in layers if type(layer) in (nn.Linear, nn.BatchNorm1d)]
        if len(set(map(id, with_weights))) < len(with_weights):  # a layer that occurs twice
            return False
        kinds = [type(layer) for layer in layers]
        if nn.BatchNorm1d in kinds and nn.Flatten in kinds[kinds.index(nn.BatchNorm1d) :]:
            return False  # it normalises channels, not features
        return all(map(_has_batched_form, layers))

    def outputs(self, params: Params, inputs: Inputs, layer: str | None = None) -> Tensor:
        params, (x, positions) = {**self._frozen, **params}, self._one_by_one(single(inputs))
        with torch.no_grad():
            for name, part in self._layers:
                if isinstance(part, nn.Linear):
                    if name == self._last and layer == FEATURES:
                        return _apart(x, positions).flatten(2)
                    x = _linear(params, name, x)
                elif isinstance(part, nn.BatchNorm1d):
                    x = _normalise(part, params, name, x, *_running(params, name))
                else:
                    x = x.flatten(2) if isinstance(part, nn.Flatten) else part(x)
                if name == layer:
                    return _apart(x, positions).flatten(2)
            return _apart(x, positions)

    def _one_by_one(self, x: Tensor) -> tuple[Tensor, int]:
        """Positions of sequences, through which nothing but a Flatten sees, as samples; and how many."""
        if x.dim() != 4 or self._flattens:
            return x, 0
        if any(isinstance(layer, nn.BatchNorm1d) for _, layer in self._layers):
            raise cannot_be_stacked("BatchNorm1d takes positions for channels")
        return x.flatten(1, 2), x.shape[2]

    def turned(self, batch_size: int) -> frozenset[str]:
        if batch_size < _LARGE_BATCH or _either_order_is_fast():
            return frozenset()
        linear = ((name, layer) for name, layer in self._layers if isinstance(layer, nn.Linear))
        return frozenset(f"{name}.weight" for name, layer in linear if layer.out_features >= _WIDE)

    def gradients(
        self, params: Params, batch: Batch, loss: Loss, only: tuple[str, ...]
    ) -> tuple[Tensor, Gradients]:
        on_features = isinstance(loss, OnFeatures)
        if self._simple and not on_features and not any(isinstance(v, Moved) for v in params.values()):
            return self._without_autograd(params, batch, loss, only)
        tape = _Tape({}, {})
        leaves = {**self._frozen, **params}
        outputs = self._forward(leaves, batch, tape, only)
        losses = loss(outputs, replace(batch, features=tape.features) if on_features else batch)
        direct = [name for name in only if leaves[name] is not params[name]]
        wanted = [*tape.outputs.values(), *(leaves[name] for name in direct)]
        found = torch.autograd.grad(losses.sum(), wanted)
        gradients: Gradients = dict(zip(direct, found[len(tape.outputs) :], strict=True))
        for (name, taken), delta in zip(tape.passes.items(), found, strict=False):
            if f"{name}.weight" in only:
                gradients[f"{name}.weight"] = Outer(delta, taken)
            if f"{name}.bias" in only:
                gradients[f"{name}.bias"] = _sum_of_samples(delta)
        return losses.detach(), gradients

    def _without_autograd(
        self, params: Params, batch: Batch, loss: Loss, only: tuple[str, ...]
    ) -> tuple[Tensor, Gradients]:
        """The same operations as autograd's, so the same bits, without the books that it keeps."""
        x, positions = self._one_by_one(single(batch.x))
        passes: list[tuple[str, Pass | Tensor]] = []  # from the first layer that trains on; a ReLU's output
        with torch.no_grad():
            for name, layer in self._layers:
                if isinstance(layer, nn.Linear):
                    inputs, x = x, _linear(params, name, x, bool(passes))
                    if passes or f"{name}.weight" in only or f"{name}.bias" in only:
                        weight, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
                        passes.append((name, Pass(inputs, x, weight, bias)))
                elif isinstance(layer, nn.ReLU):
                    x = x.relu()
                    if passes:
                        passes.append((name, x))
                else:
                    x = x.flatten(2)
        losses, delta = with_slopes(loss, _apart(x, positions), batch)
        return losses, _backwards(passes, delta.flatten(1, 2) if positions else delta, only)

    def _forward(self, leaves: Params, batch: Batch, tape: _Tape, only: tuple[str, ...]) -> Tensor:
        x, positions = self._one_by_one(single(batch.x))
        for name, layer in self._layers:
            if isinstance(layer, nn.Linear):
                if name == self._last:
                    tape.features = _apart(x, positions)
                inputs, x = x.detach(), _linear(leaves, name, x)
                if f"{name}.weight" in only or f"{name}.bias" in only:
                    if not x.requires_grad:
                        x.requires_grad_()
                    weight, bias = leaves[f"{name}.weight"], leaves.get(f"{name}.bias")
                    tape.passes[name], tape.outputs[name] = Pass(inputs, x.detach(), weight, bias), x
            elif isinstance(layer, nn.BatchNorm1d):
                if name in self._still:
                    statistics = _running(leaves, name)
                else:
                    statistics = _batch_statistics(layer, leaves, name, x, batch.present)
                for key in (f"{name}.weight", f"{name}.bias"):
                    if key in only:
                        leaves[key] = leaves[key].detach().requires_grad_()
                x = _normalise(layer, leaves, name, x, *statistics)
            else:
                x = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
        return _apart(x, positions)


def _backwards(passes: list[tuple[str, Pass | Tensor]], delta: Tensor, only: tuple[str, ...]) -> Gradients:
    """delta: of the losses with respect to what the last layer returned."""
    gradients: Gradients = {}
    while passes:
        name, taken = passes.pop()
        if isinstance(taken, Tensor):
            delta = torch.ops.aten.threshold_backward(delta, taken, 0)
            continue
        if f"{name}.weight" in only:
            gradients[f"{name}.weight"] = Outer(delta, taken)
        if f"{name}.bias" in only:
            gradients[f"{name}.bias"] = _sum_of_samples(delta)
        if passes:
            delta = torch.bmm(delta, taken.weight)
    return dict(reversed(gradients.items()))


def _sum_of_samples(delta: Tensor) -> Tensor:
    """(rows, out), added one sample after another: along a contiguous axis, padding would move the bits."""
    return delta.contiguous().sum(1)


def _apart(x: Tensor, positions: int) -> Tensor:
    """(rows, batch, positions, ...), as they were before `_one_by_one`."""
    return x.unflatten(1, (-1, positions)) if positions else x


def _has_batched_form(layer: nn.Module) -> bool:
    """Exact types: a subclass or a hook may compute something else."""
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False
    if isinstance(layer, nn.Flatten):
        return type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1
    if isinstance(layer, nn.BatchNorm1d):
        return type(layer) is nn.BatchNorm1d and layer.affine and layer.track_running_stats
    return type(layer) in (nn.Linear, *_ELEMENTWISE)


def _not_in_place(layer: nn.Module) -> nn.Module:
    """ReLU(inplace=True) would overwrite the outputs that the backward pass needs."""
    if getattr(layer, "inplace", False):
        layer = copy.copy(layer)
        layer.inplace = False  # type: ignore[assignment]
    return layer


def _linear(params: Params, name: str, x: Tensor, differentiated: bool = False) -> Tensor:
    """(rows, batch, out), as the faster of x W^T and (W x^T)^T.

    Behind the latter, gradients with respect to x come in another memory order than x, which costs more.
    differentiated: such gradients will be asked for.
    """
    weight, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
    if isinstance(weight, Moved):
        step, taken = weight.step, weight.step.taken
        if weight.known(x):
            y = taken.outputs
            if bias is not None and taken.bias is not None:
                y = y + (bias - taken.bias)[:, None]
            return torch.baddbmm(y, taken.gram, step.delta)
        y = _linear({**params, f"{name}.weight": weight.weight}, name, x)
        return torch.baddbmm(y, torch.bmm(x, step.inputs.mT), step.delta)
    if weight.dim() == 2:  # frozen, and the same for all rows
        y = functional.linear(x, weight)
        return y if bias is None else y + bias[:, None]
    if weight.shape[1] >= _WIDE or differentiated or x.requires_grad:
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)
    return (torch.bmm(weight, x.mT) if bias is None else torch.baddbmm(bias[:, :, None], weight, x.mT)).mT


@lru_cache(maxsize=1)
def _either_order_is_fast() -> bool:
    """Whether products take as long with contiguous rows of W as with columns: on AMD's processors they do.

    Turning the weights and back costs as much as a step of a batch of 32.
    """
    known = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (known.read_text() if known.exists() else platform.processor())


def _common(module: nn.Module) -> Params:
    """What is frozen, as one row that serves all; but the weights of linear layers as they are."""
    frozen, named = frozen_names(module), [*module.named_parameters(), *module.named_buffers()]
    linear = {f"{name}.weight" for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    return {name: v.detach() if name in linear else v.detach()[None] for name, v in named if name in frozen}


def _running(params: Params, name: str) -> tuple[Tensor, Tensor]:
    return params[f"{name}.running_mean"], params[f"{name}.running_var"]


def _normalise(
    layer: nn.BatchNorm1d, params: Params, name: str, x: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    scale = params[f"{name}.weight"] * torch.rsqrt(var + layer.eps)
    return torch.addcmul((params[f"{name}.bias"] - mean * scale)[:, None], x, scale[:, None])


def _batch_statistics(
    layer: nn.BatchNorm1d, params: Params, name: str, x: Tensor, present: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(rows, features) mean and variance of each row's batch without padding; updates the running ones.

    A row whose batch has one sample is normalised with its running statistics instead.
    """
    if present is None:
        present = x.new_ones(x.shape[:2])
    count, weight = present.sum(1, keepdim=True), present[..., None]
    mean = (x * weight).sum(1) / count
    var = ((x - mean[:, None]).square() * weight).sum(1) / count
    running_mean, running_var = _running(params, name)
    several = count > 1
    with torch.no_grad():
        rate = (layer.momentum or 0.0) * several.to(x.dtype)
        running_mean.add_(rate * (mean - running_mean))
        running_var.add_(rate * (var * count / (count - 1).clamp(min=1) - running_var))
    return torch.where(several, mean, running_mean), torch.where(several, var, running_var)
