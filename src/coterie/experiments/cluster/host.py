"""A worker: a process that hosts some peers, and is asked by the driver. It has its own data and executor."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.checkpoints import Elsewhere
from coterie.errors import ConfigError, DataError
from coterie.experiments.cluster.connecting import the_ray
from coterie.experiments.setup.dealing import data_digest
from coterie.experiments.setup.hosting import hosting
from coterie.experiments.setup.prepare import Objects, prepare
from coterie.experiments.setup.schema import Experiment
from coterie.learning import ExecutorName, Workers, keep_freed_memory
from coterie.memory import used_memory
from coterie.protocol.trees import Tree
from coterie.simulation.blocks import Announcement, Common, Delivery, LocalBlocks, SavedRows

_TRIED = 8  # rows of the calibration
Packed = Any
"""A tree as NumPy arrays, which Ray carries without copies."""


class Host:
    """The peers of one worker: blocks that are made here, from the experiment and their ids.

    A block is known by its number here.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def where(self) -> tuple[str, int]:
        """On which machine and in which process; and that it is there."""
        return socket.gethostname(), os.getpid()

    def prepare(
        self, experiment: Mapping[str, Any], executor: ExecutorName, threads: int, objects: Objects
    ) -> tuple[float, str | None]:
        """Load and build; how long a few rows take here, and a digest of the user's own data, if they are."""
        try:
            prepared = prepare(Experiment.model_validate(experiment).executed(engine="local"), objects)
        except DataError as error:
            raise DataError(
                f"on {socket.gethostname()}: {error}; every node of a cluster reads the data itself, so they "
                "must be in the same folder there"
            ) from None
        except ConfigError as error:
            raise ConfigError(f"on {socket.gethostname()}: {error}") from None
        self._hosting = hosting(prepared, executor, Workers(threads))
        self._blocks = LocalBlocks([], [])
        self._device = prepared.federation.device
        return self._calibrated(), data_digest(prepared.experiment, prepared.federation)

    def _calibrated(self) -> float:
        """Seconds of the first round of a few rows, up to its first exchange."""
        nodes = self._hosting.topology.nodes
        hosted = self._hosting.host([torch.arange(min(_TRIED, nodes))])
        common, seconds = Common.of(hosted.ask("about")), 0.0
        for _ in range(2):  # the first time is a warm-up
            hosted.ask("settle", common)
            started = time.perf_counter()
            hosted.ask("begin", 0, False)
            seconds = time.perf_counter() - started
        return seconds

    def host(self, ids: Tensor) -> list[tuple[int, Tensor]]:
        """Make the blocks of these nodes; the network and the ids of each."""
        self._blocks = self._hosting.host([ids])
        return list(zip(self._blocks.networks, self._blocks.ids, strict=True))

    def ask(self, method: str, *arguments: Any) -> tuple[list[Any], float]:
        """What a method of every block returns, and how many seconds that took."""
        started = time.perf_counter()
        answers = self._blocks.ask(method, *arguments)
        return answers, time.perf_counter() - started

    def memory(self) -> int:
        """Bytes that this process uses."""
        return used_memory()

    def give(self, wanted: Sequence[tuple[int, Tensor | None]]) -> list[Any]:
        """References to rows of what blocks send, one object each; rows None: all."""
        put = the_ray().put
        return [put(packed(self._blocks.blocks[block].piece(rows))) for block, rows in wanted]

    def receive(
        self, deliveries: Sequence[Delivery], origins: Sequence[Sequence[Sequence[int]]], *given: Packed
    ) -> tuple[list[Announcement | None], float]:
        """End an exchange. origins: of each piece, its place in `given`, or ~ of its block here."""
        started = time.perf_counter()
        taken: dict[int, Tree] = {}

        def piece(origin: int, rows: Tensor | None) -> Tree:
            if origin < 0:
                return self._blocks.blocks[~origin].piece(rows)
            if origin not in taken:
                taken[origin] = unpacked(given[origin], self._device)
            return taken[origin]

        tables = [
            [
                [piece(origin, part.rows) for origin, part in zip(places, mail.pieces, strict=True)]
                for places, mail in zip(of_block, delivery.mails, strict=True)
            ]
            for of_block, delivery in zip(origins, deliveries, strict=True)
        ]
        parts = zip(self._blocks.blocks, deliveries, tables, strict=True)
        told = [block.receive(delivery, pieces) for block, delivery, pieces in parts]
        return told, time.perf_counter() - started

    def shapes(self) -> list[dict[str, tuple[tuple[int, ...], torch.dtype]]]:
        """Of all that each block keeps."""
        return [
            {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in kept.items()}
            for kept in self._blocks.kept()
        ]

    def kept(self, block: int, name: str) -> Tensor:
        tensor = self._blocks.kept()[block][name]
        assert not isinstance(tensor, Elsewhere)
        return tensor.cpu()

    def restore(self, saved: Sequence[Sequence[SavedRows]]) -> None:
        self._blocks.restore(saved)


def packed(tree: Tree) -> Packed:
    if not isinstance(tree, Tensor):
        return {name: packed(value) for name, value in tree.items()}
    here = tree.detach().cpu()
    return here if here.dtype == torch.bfloat16 else here.numpy()  # which NumPy does not know


def unpacked(given: Packed, device: torch.device) -> Tree:
    if isinstance(given, dict):
        return {name: unpacked(value, device) for name, value in given.items()}
    return (given if isinstance(given, Tensor) else torch.from_numpy(given)).to(device)
