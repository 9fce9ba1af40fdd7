"""The data of all peers: one pool of samples, and for each peer the list of its samples.

Peers never hold copies: batches are drawn by `index_select` from the pool, and samples that several
peers may see (test images) are stored once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.errors import ConfigError, ContractError


@dataclass(frozen=True)
class Split:
    """Which samples of the pool each peer has, as one ragged list."""

    index: Tensor  # (total,) int64 into the pool
    offsets: Tensor  # (peers + 1,) int64: peer i has index[offsets[i]:offsets[i + 1]]

    @classmethod
    def from_sizes(cls, index: Tensor, sizes: Tensor) -> Split:
        """`index` lists the samples of peer 0, then of peer 1, and so on."""
        return cls(index.long(), torch.cat((torch.zeros(1, dtype=torch.long), sizes.long().cumsum(0))))

    @classmethod
    def empty(cls, peers: int) -> Split:
        """Nobody has anything, for example no validation samples."""
        return cls(torch.zeros(0, dtype=torch.long), torch.zeros(peers + 1, dtype=torch.long))

    @property
    def peers(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """(peers,) number of samples of each peer."""
        return self.offsets.diff()

    @property
    def owner(self) -> Tensor:
        """(total,) the peer that each entry of `index` belongs to."""
        return torch.repeat_interleave(torch.arange(self.peers), self.sizes)

    def of(self, peer: int) -> Tensor:
        """The samples of one peer."""
        return self.index[int(self.offsets[peer]) : int(self.offsets[peer + 1])]

    def spread(self, number: int, peers: int) -> Split:
        """All samples as those of one of `peers`."""
        sizes = torch.zeros(peers, dtype=torch.long)
        sizes[number] = len(self.index)
        return Split.from_sizes(self.index, sizes)

    def with_empty_row(self) -> Split:
        """One more peer, without samples."""
        return Split(self.index, torch.cat((self.offsets, self.offsets[-1:])))

    def take(self, ids: Tensor) -> Split:
        """Only those peers, in that order."""
        sizes = self.sizes[ids]
        shift = self.offsets[ids] - (sizes.cumsum(0) - sizes)
        positions = torch.arange(int(sizes.sum())) + torch.repeat_interleave(shift, sizes)
        return Split.from_sizes(self.index[positions], sizes)


@dataclass(frozen=True)
class Federation:
    """What all peers know. `clusters` is the truth that only the Oracle baseline may look at."""

    x: Tensor  # (pool, *shape) float32
    y: Tensor  # (pool,) int64
    train: Split
    validation: Split
    test: Split
    common_test: Tensor | None  # indices of one class-balanced test set; None where peers' tasks differ
    n_classes: int
    class_names: tuple[str, ...]
    clusters: Tensor | None = None  # (peers,)
    dropped: int = 0  # training samples that the partition could give to nobody

    @property
    def peers(self) -> int:
        return self.train.peers

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    def label_histogram(self, split: str = "train") -> Tensor:
        """(peers, classes) how many samples of each class each peer has."""
        if split not in ("train", "validation", "test"):
            raise ConfigError(f"unknown split {split!r}; choose from: train, validation, test")
        part: Split = getattr(self, split)
        cells = part.owner * self.n_classes + self.y[part.index]
        counts = torch.bincount(cells, minlength=self.peers * self.n_classes)
        return counts.view(self.peers, self.n_classes)

    def of_nodes(self, ids: Tensor, hub: int | None) -> Federation:
        """The data of a block of nodes; the hub, which must be the last of its block, has none."""
        has_hub = hub is not None and hub in ids
        peers = ids[ids != hub] if has_hub else ids
        chosen = self if torch.equal(peers, torch.arange(self.peers)) else self.take(peers)
        if not has_hub:
            return chosen
        if int(ids[-1]) != hub:
            raise ContractError("the hub must be the last row of its block")
        parts = (chosen.train, chosen.validation, chosen.test)
        train, validation, test = (part.with_empty_row() for part in parts)
        return replace(chosen, train=train, validation=validation, test=test)

    def spread(self, number: int, peers: int) -> Federation:
        """The one peer of this federation as number `number` of `peers`, of which the others have no data."""
        parts = (self.train, self.validation, self.test)
        train, validation, test = (part.spread(number, peers) for part in parts)
        return replace(self, train=train, validation=validation, test=test)

    def take(self, ids: Tensor) -> Federation:
        """Only those peers, with a pool of only their samples: what a shard must be sent."""
        parts = [part.take(ids) for part in (self.train, self.validation, self.test)]
        lists = [part.index for part in parts]
        if self.common_test is not None:
            lists.append(self.common_test)
        used = torch.unique(torch.cat(lists))
        position = torch.zeros(len(self.y), dtype=torch.long)
        position[used] = torch.arange(len(used))
        train, validation, test = (replace(part, index=position[part.index]) for part in parts)
        return replace(
            self,
            x=self.x[used],
            y=self.y[used],
            train=train,
            validation=validation,
            test=test,
            common_test=None if self.common_test is None else position[self.common_test],
            clusters=None if self.clusters is None else self.clusters[ids],
        )
