"""Rows whose batches are smaller are padded when many train at once: is padding left out by itself?

Where each sample goes through the network alone, padding costs nothing but time, for the loss leaves it out.
Batch statistics, or a running mean of one's own, would take it in.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from coterie.protocol.trees import Params

_ROUNDING = 1e-4  # of the largest output: differences that may come from another order of sums


def what_padding_enters(module: nn.Module, model: Params, x: Tensor) -> str | None:
    """What of a module's training forward would depend on padding; None if nothing would.

    Found by trial, on three samples of x (rows, batch, ...) of which the last is changed. `model`: the
    parameters and buffers of one row. Random operations raise an error, as everywhere in vmap.
    """
    module = copy.deepcopy(module).train()
    buffers = [name for name, _ in module.named_buffers() if name in model]
    model = {name: (value if name in buffers else _seen(value)).to(x.device) for name, value in model.items()}
    rows = {name: torch.cat((value, value)) for name, value in model.items()}
    replaced: set[str] = set()

    def call(row: Params, inputs: Tensor) -> Tensor:
        before = dict(row)
        output: Tensor = torch.func.functional_call(module, row, (inputs,))  # puts new buffers into `row`
        replaced.update(name for name in buffers if row[name] is not before[name])
        return output

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


def _with_another_last(x: Tensor) -> Tensor:
    """(2, 3, ...) twice the same samples but for the last, which is one of zeros in the second row.

    Zeros are what every network was tried with when it was built.
    """
    samples = x.flatten(0, 1)
    last = int(samples.flatten(1).abs().sum(1).argmax())  # not one of zeros itself
    three = samples[[0, 1 % len(samples), last]]
    both = torch.stack((three, three))
    both[1, 2] = 0
    return both
