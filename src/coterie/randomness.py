"""Random numbers named by what they are for, never by the order in which they are asked for.

A stream is a pure function of (seed, purpose, round, node): Philox4x32-10 (Salmon et al., 2011),
whose key is a hash of seed and purpose and whose counter holds the node, the round, an index and a
block number. All rows are computed in a few tensor operations, so any sharding of the nodes, any
number of workers and any resumed run draw the same numbers, and there is no state to save.

Generated samples need thousands of normal numbers for each peer in every round. Philox gives such a stream
its key; its numbers come from SplitMix64 (Steele et al., 2014), which is many times faster and is addressed
by number as well. Only integers and a table are involved, so that all machines have the same samples.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_HALF, _LOW = np.uint64(32), np.uint64(_MASK)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # and the steps of SplitMix64: a shift, and a multiplier after it
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LEVELS = 1 << 16

Words = NDArray[np.uint64]

SHARED = _MASK
"""The node id of streams that every node computes alike, such as who is sampled this round."""


def digest(seed: int, purpose: str, *more: int) -> int:
    """A 64-bit number that names a purpose; the same on every machine and Python version."""
    text = f"{seed}/{purpose}" + "".join(f"/{number}" for number in more)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def numpy_generator(seed: int, purpose: str, *more: int) -> np.random.Generator:
    """A generator for work done once for all nodes, such as drawing a partition or a graph."""
    return np.random.Generator(np.random.Philox(key=digest(seed, purpose, *more)))


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: int) -> tuple[Tensor, ...]:
    """Philox4x32-10 on int64 tensors that hold 32-bit words; broadcasts its four counter words.

    Two words at a time: there are dozens of operations, and on few numbers each costs as much as on many.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(word.numpy() for word in counter))
    multiplied = np.stack((c0, c2)).view(np.uint64)
    added = np.stack((c1, c3)).view(np.uint64)
    pair = (2,) + (1,) * c0.ndim
    multipliers = np.array(_MULTIPLIERS, np.uint64).reshape(pair)
    keys = [[(key >> 32 * half) + step * _WEYL[half] & _MASK for half in (0, 1)] for step in range(10)]
    for pair_of_keys in np.array(keys, np.uint64).reshape(10, *pair):
        product = (multiplied * multipliers)[::-1]
        multiplied = product >> _HALF
        multiplied ^= added
        multiplied ^= pair_of_keys
        added = np.bitwise_and(product, _LOW, out=product)
    words = (multiplied[0], added[0], multiplied[1], added[1])
    return tuple(torch.from_numpy(word.view(np.int64)) for word in words)


@dataclass(frozen=True)
class Stream:
    """Random numbers for a block of nodes. Every method is pure: same arguments, same numbers.

    `index` tells apart the draws of one stream, for example the epochs of local training.
    """

    key: int
    round: int | Tensor  # (rows, 1) where rows are samples, whose round is in the key
    ids: Tensor  # (rows,)

    def bits(self, n: int, index: int = 0) -> Tensor:
        """(rows, n) integers in [0, 2^32)."""
        ids = self.ids[:, None].cpu()
        blocks = torch.arange(-(-n // 4))[None, :]
        words = philox((blocks, torch.tensor(index), torch.as_tensor(self.round), ids), self.key)
        return torch.stack(words, dim=-1).flatten(1)[:, :n].to(self.ids.device)

    def uniform(self, n: int, index: int = 0) -> Tensor:
        """(rows, n) floats in [0, 1) with 24 random bits."""
        return (self.bits(n, index) >> 8).float() * 2.0**-24

    def keys(self, index: int = 0) -> Words:
        """(rows,) of each node's stream of normal numbers, for `normals`."""
        low, high = self.bits(2, index).cpu().numpy().astype(np.uint64).T
        keys: Words = low | high << _HALF
        return keys

    def permutation(self, sizes: Tensor, width: int, index: int = 0) -> Tensor:
        """(rows, width): the first sizes[i] entries of row i are a permutation of range(sizes[i])."""
        keys = self.bits(width, index)
        position = torch.arange(width, device=keys.device)
        keys = keys.masked_fill(position >= sizes[:, None], _MASK + 1)
        # Sorted with their positions in the low bits, which NumPy does several times faster than torch's
        # argsort, and in the same order: equal keys keep theirs.
        shift = width.bit_length()
        keyed = (keys << shift | position).cpu().numpy()
        keyed.sort(axis=1)
        return torch.from_numpy(keyed).to(keys.device) & ((1 << shift) - 1)

    def sample(self, k: int, n: int, index: int = 0) -> Tensor:
        """(rows, k) distinct integers of range(n), in random order when n <= 16 k."""
        if not 0 <= k <= n:
            raise ValueError(f"cannot draw {k} distinct integers below {n}")
        if n <= 16 * k:
            return self.bits(n, index).argsort(dim=1, stable=True)[:, :k]
        # Floyd's algorithm: k steps whatever n is.
        chosen = torch.empty(len(self.ids), k, dtype=torch.long, device=self.ids.device)
        draws = self.bits(k, index)
        for step in range(k):
            top = n - k + step
            pick = draws[:, step] * (top + 1) >> 32
            taken = (chosen[:, :step] == pick[:, None]).any(dim=1)
            chosen[:, step] = torch.where(taken, top, pick)
        return chosen

    def of_samples(self, n: int, *names: int) -> Stream:
        """A row of random numbers for each of n samples of every row, those of one row after the other's.

        names: tell apart draws for other samples, such as those of the next step.
        """
        assert isinstance(self.round, int)
        place = torch.arange(n).repeat(len(self.ids))[:, None]
        return Stream(digest(self.key, "samples", self.round, *names), place, self.ids.repeat_interleave(n))


def stream(seed: int, purpose: str, round: int, ids: Tensor) -> Stream:
    """The stream of each node in `ids` for one purpose in one round."""
    return Stream(digest(seed, purpose), round & _MASK, ids)


def shared_stream(seed: int, purpose: str, round: int) -> Stream:
    """A one-row stream that every node computes alike."""
    return stream(seed, purpose, round, torch.tensor([SHARED]))


def normals(keys: Words, first: NDArray[np.int64], n: int) -> Tensor:
    """(rows, n) standard normal numbers: those from number first[i] on of the stream with key keys[i].

    n and first are even: a word of 64 bits gives two numbers, each the sum of two of 65,536 quantiles of a
    normal distribution with half the variance. A row is a pure function of its key and what is asked for.
    """
    begin = keys + (first >> 1).astype(np.uint64) * _GOLDEN
    words: Words = np.add.outer(begin, np.arange(1, n // 2 + 1, dtype=np.uint64) * _GOLDEN)
    mixed = np.empty_like(words)
    for shift, multiplier in _MIXING:
        np.right_shift(words, np.uint64(shift), out=mixed)
        words ^= mixed
        words *= np.uint64(multiplier)
    np.right_shift(words, np.uint64(31), out=mixed)
    words ^= mixed
    halves = torch.from_numpy(words.view(np.int32)).flatten()  # two of each word
    low, place = _quantiles(), torch.from_numpy(mixed.view(np.int32)).flatten()  # memory that is done with
    drawn = low.index_select(0, torch.bitwise_and(halves, _LEVELS - 1, out=place))
    drawn += low.index_select(0, halves.bitwise_right_shift_(16).add_(_LEVELS // 2))  # the sign is kept
    return drawn.view(len(keys), n)


@functools.lru_cache(maxsize=1)
def _quantiles() -> Tensor:
    """(65536,) of a normal distribution with mean 0 and variance 1/2, in the middle of equal shares."""
    middle = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / _LEVELS
    values = torch.special.ndtri(middle)
    scaled: Tensor = values * (0.5 / values.square().mean()).sqrt()
    return scaled.float()
