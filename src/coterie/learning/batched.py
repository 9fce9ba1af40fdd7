"""Forward and backward passes of many rows' models at once: three ways, one interface.

- StackedLayers: a Sequential of linear layers becomes batched matrix products, and weight gradients
  stay factored. The fast path for small dense models.
- Vmapped: any module, batched by torch.func.vmap. The general fallback.
- OneByOne: the user's module itself, one row at a time. Best for convolutions.

Rows whose batches are smaller are padded when many train at once. Where each sample goes through the network
alone, padding costs nothing but time, for the loss leaves it out. Batch statistics, or a running mean of
one's own, would take it in: `what_padding_enters` finds them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from coterie.data.federation import at
from coterie.errors import ConfigError, CoterieError
from coterie.inputs import Inputs, answer, arguments, count, each, named
from coterie.learning.own_randomness import OwnRandomness
from coterie.learning.pooling import with_square_pools
from coterie.learning.updates import Gradients
from coterie.models import (
    copy_of,
    frozen_names,
    is_out_of_memory,
    model_tree,
    output_of,
    still_layers,
    with_features,
)
from coterie.protocol.node import Batch, Loss, OnFeatures
from coterie.protocol.trees import Params

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_ROUNDING = 1e-4  # of the largest output: differences that may come from another order of sums


class BatchedModel(Protocol):
    """One architecture, applied to stacked parameters."""

    one_by_one: bool  # takes a single row at a time, and batches without padding

    def outputs(self, params: Params, x: Inputs, layer: str | None = None) -> Tensor:
        """(rows, n, classes) logits in evaluation mode, from x (rows, n, ...).

        layer: stop there, with (rows, n, features); `params` may then lack what comes after it.
        """

    def turned(self, batch_size: int) -> frozenset[str]:
        """Weights that are best stored with their last two axes swapped while such batches train them."""

    def gradients(
        self, params: Params, batch: Batch, loss: Loss, only: tuple[str, ...]
    ) -> tuple[Tensor, Gradients]:
        """(rows,) losses and the gradients of the named parameters; updates buffers in `params`."""


def trainable_names(module: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, value in module.named_parameters() if value.requires_grad)


def check_module(module: nn.Module) -> None:
    """Refuse what cannot be right in any executor."""
    if not trainable_names(module):
        raise ConfigError("the model has no parameters to train (none that requires a gradient)")
    for name, layer in module.named_modules():
        counts = isinstance(layer, BATCH_NORMS) and layer.track_running_stats and layer.momentum is None
        if counts and name not in still_layers(module):
            raise ConfigError(
                f"layer {name!r} has BatchNorm momentum=None (a cumulative average), which depends on a "
                "counter that peers cannot average; give it a number such as 0.1"
            )


def _to_training(module: nn.Module, still: Iterable[str]) -> None:
    """Into training mode, but for the layers whose statistics are frozen."""
    module.train()
    for name in still:
        module.get_submodule(name).eval()


class OneByOne:
    """Runs the user's module itself on one row; each worker thread has its own copy."""

    one_by_one = True

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._local = threading.local()
        self._still, self._frozen = still_layers(module), frozen_names(module)
        self._has_batch_norm = any(isinstance(layer, BATCH_NORMS) for layer in module.modules())
        self._plain = _made_of_plain_layers(module)
        # Does its forward draw random numbers? None: not known yet.
        self._random: bool | None = False if self._plain else None
        self._layout = torch.channels_last if _faster_with_channels_last(module) else torch.contiguous_format

    def outputs(self, params: Params, x: Inputs, layer: str | None = None) -> Tensor:
        module = self._bound(params)
        module.eval()
        with torch.no_grad():
            return _run(module, layer, lambda: self._called(module, x))[None]

    def turned(self, batch_size: int) -> frozenset[str]:
        return frozenset()

    def gradients(
        self, params: Params, batch: Batch, loss: Loss, only: tuple[str, ...]
    ) -> tuple[Tensor, Gradients]:
        module = self._bound(params)
        _to_training(module, self._still)
        if self._has_batch_norm and batch.y.shape[1] == 1:
            # One sample has no variance: normalise it with the running statistics.
            for layer in module.modules():
                if isinstance(layer, BATCH_NORMS):
                    layer.eval()
        named = dict(module.named_parameters())
        if isinstance(loss, OnFeatures):
            output, features = with_features(module, lambda: self._training_forward(module, batch))
            batch = replace(batch, features=features[None])
        else:
            output = self._training_forward(module, batch)
        losses = loss(_as_logits(output)[None], batch)
        found = torch.autograd.grad(losses.sum(), [named[name] for name in only], allow_unused=True)
        for buffer in self._local.buffers:  # only now: the backward pass may have needed their old values
            buffer.keep_assigned()
        for frozen in self._local.frozen:
            frozen.require_unchanged()
        return losses.detach(), {name: g[None] for name, g in zip(only, found, strict=True) if g is not None}

    def _training_forward(self, module: nn.Module, batch: Batch) -> Any:
        if self._random is False:
            return self._called(module, batch.x)
        seed = 0 if batch.noise is None else int(batch.noise[0])
        with OwnRandomness(seed, batch.y.device) as randomness:
            output = self._called(module, batch.x)
        self._random = randomness.drew
        return output

    def _called(self, module: nn.Module, x: Inputs) -> Any:
        given, by_name = arguments(each(self._of_row, x))
        return module(*given, **by_name)

    def _of_row(self, x: Tensor) -> Tensor:
        return x[0].to(memory_format=self._layout) if x.dim() == 5 else x[0]

    def _bound(self, params: Params) -> nn.Module:
        """This thread's module, whose parameters and buffers share the memory of row 0 of `params`."""
        module: nn.Module | None = getattr(self._local, "module", None)
        if module is None:
            module = self._local.module = with_square_pools(copy_of(self._module), plain=self._plain)
            self._local.buffers = [buffer for buffer in _buffers(module) if buffer.name not in self._frozen]
            self._local.frozen = [buffer for buffer in _buffers(module) if buffer.name in self._frozen]
            self._local.slots = {
                name: value
                for name, value in [*module.named_parameters(), *module.named_buffers()]
                if value.is_floating_point() and name not in self._frozen
            }
        for buffer in self._local.buffers:
            buffer.reinstall()
        for name, slot in self._local.slots.items():
            if name in params:
                slot.data = params[name][0]
        return module


@dataclass(frozen=True)
class _Buffer:
    """A floating-point buffer of a module, whose slot has the memory of one row after another.

    A forward may assign another tensor to it (`self.mean = 0.9 * self.mean + ...`) instead of changing it in
    place; that one belongs to the row as well, and must not stay for the next.
    """

    name: str
    owner: dict[str, Tensor | None]  # the buffers of its layer
    slot: Tensor
    version: int  # how often it had been changed in place

    @property
    def _key(self) -> str:
        return self.name.rpartition(".")[2]

    def reinstall(self) -> None:
        self.owner[self._key] = self.slot

    def keep_assigned(self) -> None:
        now = self.owner[self._key]
        if now is self.slot:
            return
        if now is None or now.shape != self.slot.shape:
            raise ConfigError(
                f"training changes the shape of the model's buffer {self.name!r}, which has to stay "
                f"{tuple(self.slot.shape)}"
            )
        self.slot.data.copy_(now.detach())

    def require_unchanged(self) -> None:
        """For a buffer of a frozen layer, which all peers have in common."""
        if self.owner[self._key] is not self.slot or self.slot._version != self.version:
            raise ConfigError(
                f"training changes the model's buffer {self.name!r}, and its layer is frozen: all peers have "
                "it in common; let a parameter of the layer train, or leave the buffer alone in training"
            )


def _buffers(module: nn.Module) -> list[_Buffer]:
    return [
        _Buffer(name, module.get_submodule(name.rpartition(".")[0])._buffers, value, value._version)
        for name, value in module.named_buffers()
        if value.is_floating_point()
    ]


def _made_of_plain_layers(module: nn.Module) -> bool:
    """Whether nothing but known layers runs; hooks and one's own classes may draw numbers, for example."""
    plain = (
        nn.Sequential,
        nn.Linear,
        nn.Conv2d,
        nn.MaxPool2d,
        nn.AvgPool2d,
        nn.Flatten,
        nn.ReLU,
        nn.GroupNorm,
    )
    return all(
        type(layer) in (*plain, *BATCH_NORMS) and not layer._forward_hooks and not layer._forward_pre_hooks
        for layer in module.modules()
    )


def _faster_with_channels_last(module: nn.Module) -> bool:
    """Convolutions on a CPU then run up to 3 times faster forward, and up to 1.8 times in training.

    Not with GroupNorm, which copies such inputs back; nor with a class of one's own, whose `view` would fail.
    """
    kinds = {type(layer) for layer in module.modules()}
    return _made_of_plain_layers(module) and nn.Conv2d in kinds and nn.GroupNorm not in kinds


class Vmapped:
    """Any module, batched over rows by torch.func.vmap; each worker thread has its own copy.

    `functional_call` puts the parameters into the module for the time of the call, so that two threads
    must not share one. Convolutions of many rows become grouped ones: good for the small batches of training,
    three times slower than one row after another for the large ones of evaluation.
    """

    one_by_one = False

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._local = threading.local()
        convolves = any(isinstance(layer, _CONVOLUTIONS) for layer in module.modules())
        self._evaluation = OneByOne(module) if convolves else None
        self._still = still_layers(module)
        self._may_be_padded = _made_of_plain_layers(module)  # or not known yet

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Not BatchNorm, whose statistics padding would enter, nor Dropout, whose masks are per row.

        What else padding would enter is found when training starts, with the data.
        """
        still = still_layers(module)
        kinds = [layer for name, layer in module.named_modules() if name not in still]
        return not any(isinstance(layer, (*BATCH_NORMS, _DropoutNd)) for layer in kinds)

    def outputs(self, params: Params, x: Inputs, layer: str | None = None) -> Tensor:
        if self._evaluation is not None:
            return torch.cat([self._of_row(params, x, row, layer) for row in range(count(x))])
        with torch.no_grad():
            return self._forward(params, x, lambda module, run: _run(module, layer, run), training=False)

    def turned(self, batch_size: int) -> frozenset[str]:
        return frozenset()

    def gradients(
        self, params: Params, batch: Batch, loss: Loss, only: tuple[str, ...]
    ) -> tuple[Tensor, Gradients]:
        if not self._may_be_padded:
            self._check_padding(batch.x)
        leaves = {name: p.detach().requires_grad_(name in only) for name, p in params.items()}
        if isinstance(loss, OnFeatures):
            outputs, features = self._forward(leaves, batch.x, _logits_and_features, training=True)
            batch = replace(batch, features=features)
        else:
            outputs = self._forward(leaves, batch.x, lambda _, run: _as_logits(run()), training=True)
        losses = loss(outputs, batch)
        found = torch.autograd.grad(losses.sum(), [leaves[name] for name in only], allow_unused=True)
        return losses.detach(), {name: g for name, g in zip(only, found, strict=True) if g is not None}

    def _of_row(self, params: Params, x: Inputs, row: int, layer: str | None) -> Tensor:
        assert self._evaluation is not None
        own = {name: value[row : row + 1] for name, value in params.items()}
        return self._evaluation.outputs(own, at(x, slice(row, row + 1)), layer)

    def _forward(
        self,
        params: Params,
        x: Inputs,
        read: Callable[[nn.Module, Callable[[], Any]], Any],
        *,
        training: bool,
    ) -> Any:
        """What `read` takes from a row's pass through its module, for all rows."""
        module: nn.Module | None = getattr(self._local, "module", None)
        if module is None:
            module = self._local.module = copy_of(self._module)
        if training:
            _to_training(module, self._still)
        else:
            module.eval()

        def call(row: Params, inputs: Inputs) -> Any:
            return read(module, lambda: torch.func.functional_call(module, row, *arguments(inputs)))

        with _batching():
            return torch.func.vmap(call)(params, x)

    def _check_padding(self, x: Inputs) -> None:
        with _batching():
            entered = what_padding_enters(self._module, model_tree(self._module), x)
        if entered is not None:
            raise cannot_be_stacked(entered)
        self._may_be_padded = True


@contextmanager
def _batching() -> Iterator[None]:
    """Says why a forward fails here that ran unbatched when the model was built."""
    try:
        yield
    except Exception as error:
        if isinstance(error, CoterieError) or is_out_of_memory(error):
            raise
        raise cannot_be_stacked((str(error) or type(error).__name__).splitlines()[0]) from error


def cannot_be_stacked(reason: str) -> ConfigError:
    return ConfigError(f"executor 'stacked' cannot run this model ({reason}); use executor 'looped'")


def _run(module: nn.Module, layer: str | None, forward: Callable[[], Any]) -> Tensor:
    """The logits that `forward` returns, or what the layer returns on the way."""
    return _as_logits(forward()) if layer is None else output_of(module, layer, forward)


def _logits_and_features(module: nn.Module, forward: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    output, features = with_features(module, forward)
    return _as_logits(output), features


def _as_logits(output: Any) -> Tensor:
    outputs = answer(output)
    if outputs.dim() not in (2, 3):
        raise ConfigError(
            f"the model must return (batch, outputs), or (batch, positions, outputs), not shape "
            f"{tuple(outputs.shape)}"
        )
    return outputs


def what_padding_enters(module: nn.Module, model: Params, x: Inputs) -> str | None:
    """What of a module's training forward would depend on padding; None if nothing would.

    Found by trial, on three samples of x (rows, batch, ...) of which the last is changed. `model`: the
    parameters and buffers of one row. Random operations raise an error, as everywhere in vmap.
    """
    module = copy_of(module)
    _to_training(module, still_layers(module))
    buffers = [name for name, _ in module.named_buffers() if name in model]
    device = next(iter(named(x).values())).device
    model = {name: (value if name in buffers else _seen(value)).to(device) for name, value in model.items()}
    rows = {name: torch.cat((value, value)) for name, value in model.items()}
    replaced: set[str] = set()

    def call(row: Params, inputs: Inputs) -> Tensor:
        before = dict(row)
        output = torch.func.functional_call(module, row, *arguments(inputs))  # puts new buffers into `row`
        replaced.update(name for name in buffers if row[name] is not before[name])
        return answer(output)

    with torch.no_grad():
        outputs = torch.func.vmap(call)(rows, _with_another_last(x)).nan_to_num()
    for name in buffers:
        if name in replaced or not all(torch.equal(row, model[name][0]) for row in rows[name]):
            return f"padding would enter its buffer {name!r}, which training changes"
    one, other = outputs[:, :2]
    if float((one - other).abs().max()) > _ROUNDING * float(outputs.abs().max()):
        return "padding would enter what it computes for one sample from the whole batch"
    return None


def _seen(parameter: Tensor) -> Tensor:
    """A layer that starts with zeros would hide what comes before it."""
    if bool(parameter.any()):
        return parameter
    return torch.linspace(0.1, 1.0, parameter.numel()).to(parameter).view_as(parameter)


def _with_another_last(x: Inputs) -> Inputs:
    """(2, 3, ...) twice the same samples but for the last, which is one of zeros in the second row.

    Zeros are what a network can always compute with: also a word's number, or a mask.
    """
    samples = each(lambda part: part.flatten(0, 1), x)
    filled = torch.stack([_filled(part) for part in named(samples).values()]).sum(0)
    last = int(filled.argmax())  # not one of zeros itself

    def twice(part: Tensor) -> Tensor:
        three = part[[0, 1 % len(part), last]]
        both = torch.stack((three, three))
        both[1, 2] = 0
        return both

    return each(twice, samples)


def _filled(x: Tensor) -> Tensor:
    """(n,) how many numbers of each sample are not zero."""
    return (x != 0).reshape(len(x), -1).sum(1)
