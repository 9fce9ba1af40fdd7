"""The data of all peers: one pool of samples, and for each peer the list of its samples.

Peers never hold copies: batches are drawn by `index_select` from the pool, and samples that several
peers may see (test images) are stored once. A sample may have several inputs (see `coterie.inputs`). Whoever
moves samples asks the few functions at the end, and need not know how many tensors there are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.data.targets import Groups, Targets
from coterie.errors import ConfigError, ContractError
from coterie.inputs import Inputs, Shapes, each, named, shapes_of


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

    x: Inputs  # (pool, *shape), of one tensor or of several
    y: Tensor  # (pool,) int64, or as `coterie.data.targets` says
    train: Split
    validation: Split
    test: Split
    common_test: Tensor | None  # indices of one class-balanced test set; None where peers' tasks differ
    n_classes: int
    class_names: tuple[str, ...]
    clusters: Tensor | None = None  # (peers,)
    dropped: int = 0  # training samples that the partition could give to nobody
    targets: Targets = "classes"  # what y holds; n_classes then counts labels, numbers or tokens
    names: tuple[str, ...] = ()  # of the peers; empty: they have numbers only

    @property
    def peers(self) -> int:
        return self.train.peers

    def name_of(self, peer: int) -> str:
        """What people call it: its name, or else its number."""
        return self.names[peer] if self.names else str(peer)

    @property
    def shape(self) -> Shapes:
        """Shape of one sample; of each of its inputs, where it has several."""
        return shapes_of(self.x)

    @property
    def device(self) -> torch.device:
        return self.y.device

    def to(self, device: torch.device) -> Federation:
        """With all samples on this device."""
        return replace(self, x=each(lambda part: part.to(device), self.x), y=self.y.to(device))

    def label_histogram(self, split: str = "train") -> Tensor:
        """(peers, groups) how many samples of each class, or bin of numbers, each peer has."""
        if split not in ("train", "validation", "test"):
            raise ConfigError(f"unknown split {split!r}; choose from: train, validation, test")
        part: Split = getattr(self, split)
        cells = part.owner * self.groups.count + self.groups.of(self.y[part.index]).cpu()
        counts = torch.bincount(cells, minlength=self.peers * self.groups.count)
        return counts.view(self.peers, self.groups.count)

    @functools.cached_property
    def groups(self) -> Groups:
        """By what samples are counted: classes, or bins of numbers."""
        return Groups(self.targets, self.n_classes, self.y[self.train.index])

    @property
    def group_names(self) -> tuple[str, ...]:
        return self.groups.names(self.class_names)

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
        return replace(self, train=train, validation=validation, test=test, names=())

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
            x=at(self.x, used),
            y=self.y[used],
            train=train,
            validation=validation,
            test=test,
            common_test=None if self.common_test is None else position[self.common_test],
            clusters=None if self.clusters is None else self.clusters[ids],
            names=tuple(self.names[peer] for peer in ids.tolist()) if self.names else (),
        )


def at(x: Inputs, place: Any) -> Inputs:
    """Every input at this place: a slice, a list of samples, a mask."""
    return x[place] if isinstance(x, Tensor) else {name: part[place] for name, part in x.items()}


def gathered(x: Inputs, index: Tensor) -> Inputs:
    """(*index.shape, ...) the samples at these places."""
    if isinstance(x, Tensor):
        return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])
    return {name: part[index] for name, part in x.items()}


def unbound(x: Inputs) -> tuple[Inputs, ...]:
    """What there is at each place of the first axis."""
    if isinstance(x, Tensor):
        return x.unbind()
    places = zip(*(part.unbind() for part in x.values()), strict=True)
    return tuple(dict(zip(x, parts, strict=True)) for parts in places)


def single(x: Inputs) -> Tensor:
    """The tensor of inputs that are but one, such as a Sequential takes."""
    if isinstance(x, Tensor):
        return x
    (tensor,) = x.values()
    return tensor


def bytes_of_one(x: Inputs) -> int:
    """Bytes of one sample."""
    return sum(part[:1].nbytes for part in ([x] if isinstance(x, Tensor) else x.values()))


def example(x: Inputs) -> Inputs:
    """A few samples on the CPU to try a network with, whose whole numbers are as in the data.

    Ones for a tensor of real numbers; else those samples that hold the smallest and the largest numbers.
    """
    if isinstance(x, Tensor) and x.is_floating_point():
        return torch.ones(2, *x.shape[1:])
    places = [0, -1]
    for part in named(x).values():
        if part.numel() and not part.is_floating_point():
            rows = part.reshape(len(part), -1)
            places += [int(rows.amin(1).long().argmin()), int(rows.amax(1).long().argmax())]
    return each(Tensor.cpu, at(x, places))
