"""Learning rates over rounds and within them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.learning.updates import Rate
from coterie.training import Training, parsed_schedule


def learning_rates(training: Training, round: int, rounds: int, updates: Tensor) -> list[Rate]:
    """The rate of each update of a round: a number, or (active rows,) where they differ.

    updates: (rows,) how many each row takes, sorted from most to least; those that are done drop out. The
    k-th of n updates stands at round + k / n, so what a row gets depends on itself alone.
    """
    first, longest = max(round, 0), int(updates[0])
    base = training.lr * training.lr_decay**first
    taking = updates.unique().double()  # mostly few, however many rows
    number = torch.arange(longest, dtype=torch.double)[:, None]
    rates = base * factors(training, first + number / taking, 1 / taking, rounds)  # (longest, distinct)
    if len(taking) == 1:
        return rates[:, 0].tolist()
    mine = torch.searchsorted(taking, updates.double())
    active = (updates > number).sum(1).tolist()
    return [_one_if_equal(rates[step, mine[:rows]]) for step, rows in enumerate(active)]


def factors(training: Training, time: Tensor, update: Tensor, rounds: int) -> Tensor:
    """By what the learning rate is multiplied.

    time: when an update begins, in rounds. update: how long it takes. The schedule begins when the warm-up is
    over, and ends with the last round.
    """
    since = (time - training.warmup).clamp(min=0)
    name, arguments = parsed_schedule(training.schedule)
    share = since / max(rounds - training.warmup, 1e-12)  # of the rounds that are left to it
    if name == "cosine":
        planned = (1 + (math.pi * share).cos()) / 2
    elif name == "linear":
        planned = 1 - share
    elif name == "step":
        every, factor = arguments
        planned = factor ** (since / every + 1e-9).floor()  # 0.1 + 0.2 is not to miss a step at 0.3
    else:
        planned = torch.ones_like(time)
    if not training.warmup:
        return planned
    return planned * ((time + update) / training.warmup).clamp(max=1)


def _one_if_equal(rates: Tensor) -> Rate:
    return float(rates[0]) if bool((rates == rates[0]).all()) else rates
