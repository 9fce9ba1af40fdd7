"""The data of all peers: one pool of samples, and for each peer the list of its samples.

Peers never hold copies: batches are drawn by `index_select` from the pool, and samples that several
peers may see (test images) are stored once. A sample may have several inputs (see `coterie.inputs`). Whoever
moves samples asks the few functions at the end, and need not know how many tensors there are.

Generated samples of many peers are not stored at all. A `Maker` makes those of some peers when they are
needed, and `Federation.held` gives either kind in the same form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

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
    def total(self) -> int:
        """How many samples all peers have."""
        return int(self.offsets[-1])

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
        return Split.from_sizes(self.index[self.positions(ids)], self.sizes_of(ids))

    def sizes_of(self, ids: Tensor) -> Tensor:
        """(ids,) number of samples of those peers; it looks at no others."""
        return self.offsets[ids + 1] - self.offsets[ids]

    def positions(self, ids: Tensor) -> Tensor:
        """Where in the list the samples of those peers are, one peer after the other."""
        sizes = self.sizes_of(ids)
        shift = self.offsets[ids] - (sizes.cumsum(0) - sizes)
        return torch.arange(int(sizes.sum())) + torch.repeat_interleave(shift, sizes)


@dataclass(frozen=True)
class Stretch(Split):
    """Consecutive samples of each peer, of which none is listed: for data that are made when needed."""

    first: Tensor  # (peers,) which of a peer's own samples is the first one here
    x: Tensor | None = None  # inputs of the first peers, where they are held
    y: Tensor | None = None  # (total,) targets of all peers, likewise

    @classmethod
    def after(cls, first: Tensor, sizes: Tensor) -> Stretch:
        """sizes[i] samples of peer i, from its sample first[i] on."""
        split = Split.from_sizes(torch.zeros(0, dtype=torch.long), sizes)
        return cls(split.index, split.offsets, first)

    @classmethod
    def joined(cls, parts: Sequence[Stretch]) -> Stretch | None:
        """All samples of several that follow each other; None if there is a gap between them."""
        end = parts[0].first
        for part in parts:
            if not torch.equal(part.first, end):
                return None
            end = end + part.sizes
        return cls.after(parts[0].first, end - parts[0].first)

    def holds(self, rows: Tensor) -> bool:
        """Whether the inputs of all of these peers are held."""
        return self.x is not None and int(self.offsets[rows + 1].max()) <= len(self.x)

    def of(self, peer: int) -> Tensor:
        return torch.arange(int(self.sizes[peer])) + self.first[peer]

    def spread(self, number: int, peers: int) -> Split:
        first, sizes = torch.zeros(2, peers, dtype=torch.long)
        first[number], sizes[number] = self.first[0], self.total
        return Stretch.after(first, sizes)

    def with_empty_row(self) -> Split:
        nothing = torch.zeros(1, dtype=torch.long)
        return Stretch.after(torch.cat((self.first, nothing)), torch.cat((self.sizes, nothing)))

    def take(self, ids: Tensor) -> Split:
        return Stretch.after(self.first[ids], self.sizes[ids])


class Maker(Protocol):
    """Makes samples: a pure function of its own fields and of what is asked for, whoever asks with whom."""

    def make(self, peers: Tensor, first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """x and y of count[i] samples of peers[i], from its sample first[i] on, one peer after the other."""
        ...

    def inputs(self, peers: Tensor, first: Tensor, count: Tensor) -> Tensor:
        """The same x without their y."""
        ...


@dataclass(frozen=True)
class Made:
    """Who makes the samples of a federation, and by which numbers it knows the peers."""

    maker: Maker
    peers: Tensor  # (peers,)

    def take(self, ids: Tensor) -> Made:
        return replace(self, peers=self.peers[ids])

    def with_empty_row(self) -> Made:
        return replace(self, peers=torch.cat((self.peers, torch.zeros(1, dtype=torch.long))))


@dataclass(frozen=True)
class Held:
    """Samples of some peers at hand: a part of the pool, or made for the moment."""

    x: Inputs  # (pool, *shape)
    y: Tensor  # (pool,) or as `coterie.data.targets` says; classes may be bytes
    index: Tensor | None  # of a split; None: the pool is in the order of the peers
    first: Tensor  # (rows,) where each one's samples begin, in `index` or else in the pool

    def targets(self, places: Tensor) -> Tensor:
        """Of the samples at these places in the pool."""
        found = self.y[places]
        return found.long() if found.dtype == torch.uint8 else found

    def places(self, positions: Tensor) -> Tensor:
        """(..., rows, n) positions in each row's own list as places in the pool."""
        return self._pooled(self.first[:, None] + positions)

    def places_of(self, present: Tensor) -> Tensor:
        """Places in the pool of those samples that are present, (rows, n) bool, row by row."""
        return self._pooled((self.first[:, None] + torch.arange(present.shape[1]))[present])

    def _pooled(self, listed: Tensor) -> Tensor:
        return (listed if self.index is None else self.index[listed]).to(self.y.device)


_MADE_TOGETHER = 1 << 15  # samples of many peers that are made at once: 8 MB of them


@dataclass(frozen=True)
class Federation:
    """What all peers know. `clusters` is the truth that only the Oracle baseline may look at."""

    x: Inputs  # (pool, *shape), of one tensor or of several; one tensor where samples are made
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
    made: Made | None = None  # samples are made when needed: the pool is empty, and the splits are stretches

    @property
    def peers(self) -> int:
        return self.train.peers

    def held(self, split: Split, rows: Tensor) -> Held:
        """The samples of some rows, which a split of this federation lists."""
        if self.made is None:
            return Held(self.x, self.y, split.index, split.offsets[rows])
        assert isinstance(split, Stretch)
        if split.x is not None and split.y is not None and split.holds(rows):
            return Held(split.x, split.y, None, split.offsets[rows])
        maker, peers, count = self.made.maker, self.made.peers[rows], split.sizes_of(rows)
        if split.y is None:
            x, y = maker.make(peers, split.first[rows], count)
        else:
            x, y = maker.inputs(peers, split.first[rows], count), split.y[split.positions(rows)]
        return Held(x.to(self.device), y.to(self.device), None, count.cumsum(0) - count)

    def holding(self, room: int) -> Federation:
        """The same data: if they are made, with all targets and so many bytes of inputs in memory.

        Those of the test data first, which are needed at both points of a round.
        """
        if self.made is None:
            return self
        parts: dict[str, Any] = {}
        most = room // max(1, bytes_of_one(self.x))  # samples
        for name in ("test", "validation", "train"):
            x, y = self._made_now(getattr(self, name), most)
            parts[name] = replace(getattr(self, name), x=x, y=y)
            most -= len(x)
        return replace(self, **parts)

    def _made_now(self, part: Split, most: int) -> tuple[Tensor, Tensor]:
        """The inputs of the first peers, at most so many samples, and the targets of all."""
        one, total = single(self.x), int(part.offsets[part.offsets <= most][-1])
        x = torch.empty(total, *one.shape[1:], device=self.device)
        small = self.targets == "classes" and self.n_classes <= 256
        y = torch.empty(part.total, dtype=torch.uint8 if small else self.y.dtype, device=self.device)
        done = 0
        for rows in _together(part):
            made = self.held(part, rows)
            place = slice(done, done := done + len(made.y))
            x[place], y[place] = single(made.x)[: max(0, total - place.start)], made.y
        return x, y

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
        if self.made is None:
            return self._counts(part.owner, self.y[part.index], self.peers)
        return torch.cat([self._made_counts(part, rows) for rows in _together(part)])

    def _counts(self, owner: Tensor, y: Tensor, peers: int) -> Tensor:
        cells = owner * self.groups.count + self.groups.of(y).cpu()
        return torch.bincount(cells, minlength=peers * self.groups.count).view(peers, self.groups.count)

    def _made_counts(self, part: Split, rows: Tensor) -> Tensor:
        own = part.take(rows)
        return self._counts(own.owner, self.held(part, rows).y, len(rows))

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
        made = None if chosen.made is None else chosen.made.with_empty_row()
        return replace(chosen, train=train, validation=validation, test=test, made=made)

    def spread(self, number: int, peers: int) -> Federation:
        """The one peer of this federation as number `number` of `peers`, of which the others have no data."""
        parts = (self.train, self.validation, self.test)
        train, validation, test = (part.spread(number, peers) for part in parts)
        made = None if self.made is None else self.made.take(torch.zeros(peers, dtype=torch.long))
        return replace(self, train=train, validation=validation, test=test, names=(), made=made)

    def kept(self) -> Federation:
        """The same data, all made now and held in a pool."""
        if self.made is None:
            return self
        parts = [part for part in (self.train, self.validation, self.test) if isinstance(part, Stretch)]
        whole = Stretch.joined(parts)
        made = parts if whole is None else [whole]  # what decides a peer's samples is then found once
        one = single(self.x)
        x = one.new_empty(sum(part.total for part in made), *one.shape[1:])
        y, done = self.y.new_empty(len(x)), 0
        for part in made:
            for rows in _together(part):
                held = self.held(part, rows)
                place = slice(done, done := done + len(held.y))
                x[place], y[place] = single(held.x), held.y
        listed, begin = [], 0
        for part in parts:
            home = part if whole is None else whole
            first = begin + home.offsets[:-1] + part.first - home.first - part.offsets[:-1]
            index = torch.arange(part.total) + torch.repeat_interleave(first, part.sizes)
            listed.append(Split(index, part.offsets))
            begin += part.total if whole is None else 0
        train, validation, test = listed
        return replace(self, x=x, y=y, train=train, validation=validation, test=test, made=None)

    def take(self, ids: Tensor) -> Federation:
        """Only those peers, with a pool of only their samples: what a shard must be sent."""
        parts = [part.take(ids) for part in (self.train, self.validation, self.test)]
        about: dict[str, Any] = {
            "clusters": None if self.clusters is None else self.clusters[ids],
            "names": tuple(self.names[peer] for peer in ids.tolist()) if self.names else (),
        }
        if self.made is not None:
            train, validation, test = parts
            made = self.made.take(ids)
            return replace(self, train=train, validation=validation, test=test, made=made, **about)
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
            **about,
        )


def _together(split: Split) -> tuple[Tensor, ...]:
    """Peers in parts, whose samples are made at once."""
    rows = max(1, _MADE_TOGETHER * split.peers // max(1, split.total))
    return tuple(torch.arange(split.peers).split(rows))


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
    """Bytes of one sample, also where there is none."""
    parts = [x] if isinstance(x, Tensor) else x.values()
    return sum(part.element_size() * math.prod(part.shape[1:]) for part in parts)


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
