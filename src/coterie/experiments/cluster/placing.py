"""Who lives where: workers where there is room, and with each a stretch of peers.

Every stretch takes its worker about as long as the others take theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.experiments.setup.schema import Execution

SLOWER = 1.5  # times the mean of the others: then peers move
_AFTER = 3  # rounds that are looked at
_ROW = 1.0  # batches that a row costs whether it trains or not: mixing, measuring
_ALIKE = 0.25  # speeds that differ by less are taken for equal
_MOST = 4.0  # times faster or slower than the middle one: more is not believed


def needs(execution: Execution) -> dict[str, float]:
    """What a worker, or a cell, takes of a node."""
    gpus = {"GPU": execution.gpus} if execution.device.startswith("cuda") else {}
    return {"CPU": execution.cpus, **gpus}


def asking(execution: Execution) -> dict[str, Any]:
    """The same, as Ray is asked for it."""
    wanted = needs(execution)
    return {"num_cpus": wanted["CPU"], "num_gpus": wanted.get("GPU", 0), "scheduling_strategy": "SPREAD"}


def fitting(free: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    """How many that take so much fit into what is free."""
    return int(min(free.get(name, 0.0) / each + 1e-6 for name, each in wanted.items()))  # ten tenths are one


def capacity(ray: Any, execution: Execution) -> int:
    """How many the nodes that are there could host, if nobody else had any."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(fitting(node, needs(execution)) for node in alive)


def require_room(ray: Any, execution: Execution) -> None:
    """Refuse what would wait for ever."""
    if not capacity(ray, execution):
        keys = {"CPU": "execution.cpus", "GPU": "execution.gpus"}
        wanted = needs(execution)
        asks = " and ".join(keys[name] for name in wanted)
        raise ConfigError(f"no node of Ray has {in_words(wanted)}, which {asks} would take of one")


def in_words(wanted: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}{'' if amount == 1 else 's'}" for name, amount in wanted.items())


def costs(samples: Tensor, batch_size: int, hub: int | None) -> Tensor:
    """(nodes,) what a round of each node costs, in mini-batches. samples: of each peer, to train with."""
    batches = _ROW + (samples.double() / batch_size).ceil()
    return batches if hub is None else torch.cat((batches, torch.tensor([_ROW], dtype=torch.double)))


def cut(weights: Tensor, speeds: Sequence[float]) -> list[Tensor]:
    """Ids for each worker, which follow each other, so that weight / speed is about the same for all.

    Everyone gets at least one: there must be as many nodes as workers.
    """
    workers, nodes = len(speeds), len(weights)
    share = torch.tensor(speeds, dtype=torch.double).clamp(min=1e-12)
    wanted = (share.cumsum(0) / share.sum())[:-1] * weights.sum()
    middle = weights.cumsum(0) - weights / 2
    ends = torch.searchsorted(middle, wanted).tolist()
    borders = [0]
    for number, end in enumerate(ends):
        least, most = borders[-1] + 1, nodes - (workers - 1 - number)
        borders.append(min(max(end, least), most))
    return list(
        torch.arange(nodes).split([b - a for a, b in zip(borders, [*borders[1:], nodes], strict=True)])
    )


class Clock:
    """How long each worker took in the last rounds, for what it hosts."""

    def __init__(self, loads: Sequence[float]) -> None:
        self._loads = loads
        self._rounds: list[list[float]] = []

    def add(self, seconds: Sequence[float]) -> None:
        self._rounds = [*self._rounds, list(seconds)][-_AFTER:]

    @property
    def speeds(self) -> list[float]:
        """Weight that each worker gets done in a second; none before the first round."""
        if not self._rounds:
            return []
        seconds = torch.tensor(self._rounds, dtype=torch.double).mean(0).clamp(min=1e-9)
        return (torch.tensor(self._loads, dtype=torch.double) / seconds).tolist()

    @property
    def uneven(self) -> bool:
        """Whether one took half as long again as the others did in the mean, in each of the last rounds."""
        if len(self._rounds) < _AFTER or len(self._loads) < 2:
            return False
        return bool((_beyond(torch.tensor(self._rounds, dtype=torch.double))).all(0).any())


def _beyond(seconds: Tensor) -> Tensor:
    """(rounds, workers) who was slower than the others by half."""
    others = (seconds.sum(1, keepdim=True) - seconds) / (seconds.shape[1] - 1)
    return seconds > SLOWER * others


def steady(speeds: Sequence[float]) -> list[float]:
    """Speeds as far as a short look can tell them apart: within a quarter of the median they are the same."""
    known = torch.tensor(speeds, dtype=torch.double)
    middle = known.median().clamp(min=1e-12)
    known = torch.where((known / middle - 1).abs() < _ALIKE, middle, known)
    return known.clamp(middle / _MOST, middle * _MOST).tolist()
