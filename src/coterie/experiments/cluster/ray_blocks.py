"""Blocks in other processes: `RayBlocks` is to the engine what blocks in this one are.

The driver sends addresses and gets sizes, scores and records. What peers send goes from worker to worker
through Ray's object store: one object for each pair of blocks, with the rows that cross and no others. Models
come here only when a checkpoint is written, and at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from coterie.checkpoints import Elsewhere
from coterie.experiments.cluster.connecting import answers
from coterie.simulation.blocks import Announcement, Delivery, SavedRows


class RayBlocks:
    """The blocks of some workers, each of which hosts nodes that follow each other, by their networks."""

    by_reference = False

    def __init__(self, ray: Any, workers: Sequence[Any], shards: Sequence[Tensor]) -> None:
        """workers: actors of `Host`. shards: the nodes of each."""
        self._ray, self._workers = ray, workers
        calls = [worker.host.remote(ids) for worker, ids in zip(workers, shards, strict=True)]
        hosted = [
            (network, worker, number, ids)
            for worker, found in enumerate(answers(ray, calls))
            for number, (network, ids) in enumerate(found)
        ]
        hosted.sort(key=lambda one: one[:2])  # blocks of one network follow each other, and so do their ids
        self.networks = [network for network, *_ in hosted]
        self.ids = [ids for *_, ids in hosted]
        self._places = [(worker, number) for _, worker, number, _ in hosted]
        self.seconds = [0.0] * len(workers)  # that each worker computed, since somebody set it back

    @property
    def memory(self) -> list[int]:
        """Bytes that each worker uses."""
        return list(answers(self._ray, [worker.memory.remote() for worker in self._workers]))

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        return self._in_order([worker.ask.remote(method, *arguments) for worker in self._workers])

    def exchange(self, deliveries: Sequence[Delivery]) -> list[Announcement | None]:
        given = self._given(deliveries)
        calls = []
        for worker, actor in enumerate(self._workers):
            own = [block for block, (host, _) in enumerate(self._places) if host == worker]
            origins: list[list[list[int]]] = []
            references: list[Any] = []
            for block in own:
                of_block: list[list[int]] = []
                for mail in deliveries[block].mails:
                    of_block.append([])
                    for piece in mail.pieces:
                        host, number = self._places[piece.block]
                        if host == worker:
                            of_block[-1].append(~number)
                        else:
                            of_block[-1].append(len(references))
                            references.append(given[piece.block, block])
                origins.append(of_block)
            calls.append(actor.receive.remote([deliveries[block] for block in own], origins, *references))
        return self._in_order(calls)

    def _given(self, deliveries: Sequence[Delivery]) -> dict[tuple[int, int], Any]:
        """A reference to what goes from one block to another, for each pair of different workers."""
        wanted: dict[int, list[tuple[int, int, Tensor | None]]] = defaultdict(list)
        for target, delivery in enumerate(deliveries):
            for piece in (piece for mail in delivery.mails for piece in mail.pieces):
                host, _ = self._places[piece.block]
                if host != self._places[target][0]:
                    wanted[host].append((piece.block, target, piece.rows))
        calls = [
            self._workers[host].give.remote([(self._places[block][1], rows) for block, _, rows in asked])
            for host, asked in wanted.items()
        ]
        found = answers(self._ray, calls)
        return {
            (block, target): reference
            for asked, references in zip(wanted.values(), found, strict=True)
            for (block, target, _), reference in zip(asked, references, strict=True)
        }

    def kept(self) -> Sequence[Mapping[str, Tensor | Elsewhere]]:
        shapes = answers(self._ray, [worker.shapes.remote() for worker in self._workers])
        return [
            {
                name: Elsewhere(shape, dtype, partial(self._fetch, block, name))
                for name, (shape, dtype) in shapes[worker][number].items()
            }
            for block, (worker, number) in enumerate(self._places)
        ]

    def _fetch(self, block: int, name: str) -> Tensor:
        worker, number = self._places[block]
        tensor: Tensor = answers(self._ray, self._workers[worker].kept.remote(number, name))
        return tensor

    def restore(self, saved: Sequence[Sequence[SavedRows]]) -> None:
        by_worker: list[list[Sequence[SavedRows]]] = [[] for _ in self._workers]
        for (worker, _), parts in sorted(zip(self._places, saved, strict=True), key=lambda one: one[0]):
            by_worker[worker].append(parts)
        calls = [worker.restore.remote(parts) for worker, parts in zip(self._workers, by_worker, strict=True)]
        answers(self._ray, calls)

    def _in_order(self, calls: Sequence[Any]) -> list[Any]:
        """What all blocks answer, out of what all workers do."""
        found = answers(self._ray, list(calls))
        self.seconds = [before + now for before, (_, now) in zip(self.seconds, found, strict=True)]
        return [found[worker][0][number] for worker, number in self._places]
