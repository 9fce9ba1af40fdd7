"""Random streams: the published Philox vectors, no trace of sharding, and the distributions they claim."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.randomness import (
    SHARED,
    Stream,
    digest,
    normals,
    numpy_generator,
    philox,
    shared_stream,
    stream,
)

seeds = st.integers(0, 2**63)
rounds = st.integers(0, 2**32 - 1)
node_ids = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12, unique=True)

DRAWS: dict[str, Callable[[Stream], Tensor]] = {
    "bits": lambda s: s.bits(7),
    "uniform": lambda s: s.uniform(6, index=3),
    "permutation": lambda s: s.permutation(s.ids % 9 + 1, width=9),
    "sample": lambda s: s.sample(4, 30),
    "sample of many": lambda s: s.sample(6, 5000, index=2),
}


def nodes(n: int) -> Tensor:
    return torch.arange(n)


def surprise(counts: np.ndarray, variance: float = 1.0) -> float:
    """Chi-square against uniform, in standard deviations; far below 0 is as wrong as far above.

    `variance`: that of a count, relative to independent draws.
    """
    freedom = counts.size - 1
    statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum() / variance
    return float((statistic - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_known_answers(counter: str, key: str, expected: str) -> None:
    """Philox4x32-10 in kat_vectors of Random123, the authors' own implementation."""
    c0, c1, c2, c3 = (torch.tensor([int(word, 16)]) for word in counter.split())
    low, high = (int(word, 16) for word in key.split())
    words = philox((c0, c1, c2, c3), high << 32 | low)
    assert " ".join(f"{word.item():08x}" for word in words) == expected


def test_philox_leaves_its_counter_alone() -> None:
    counter = (nodes(3), nodes(3), nodes(3), nodes(3))
    philox(counter, key=5)
    assert all(torch.equal(word, nodes(3)) for word in counter)


def test_digest_is_the_same_everywhere() -> None:
    assert digest(7, "batches", 3) == 0x6D2D95D01AA9B422
    independent = hashlib.blake2b(b"7/batches/3", digest_size=8).digest()
    assert digest(7, "batches", 3) == int.from_bytes(independent, "little")


def test_first_numbers_never_change() -> None:
    """Results of published runs depend on these: a change here must be meant."""
    draws = stream(0, "batches", round=1, ids=torch.tensor([0, 1])).bits(3)
    assert draws.tolist() == [[3409415638, 1584565104, 3086925671], [1345574638, 663509183, 446445278]]


@given(seeds, rounds, node_ids, st.data())
def test_a_shard_draws_what_the_whole_draws(
    seed: int, round: int, ids: list[int], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1))  # any order, even repeated
    whole = stream(seed, "test", round, torch.tensor(ids))
    shard = stream(seed, "test", round, torch.tensor(ids)[rows])
    for name, draw in DRAWS.items():
        assert torch.equal(draw(shard), draw(whole)[rows]), name


@given(st.integers(0, 40), st.integers(0, 40))
def test_asking_for_more_keeps_the_first(few: int, more: int) -> None:
    source = stream(1, "test", 2, nodes(3))
    assert torch.equal(source.bits(few + more)[:, :few], source.bits(few))
    assert torch.equal(source.uniform(few + more)[:, :few], source.uniform(few))


def test_seed_purpose_round_node_and_index_each_matter() -> None:
    streams = [
        stream(0, "batches", 0, torch.tensor([0])).bits(8),
        stream(1, "batches", 0, torch.tensor([0])).bits(8),
        stream(0, "noise", 0, torch.tensor([0])).bits(8),
        stream(0, "batches", 1, torch.tensor([0])).bits(8),
        stream(0, "batches", 0, torch.tensor([1])).bits(8),
        stream(0, "batches", 0, torch.tensor([0])).bits(8, index=1),
    ]
    words = torch.cat(streams).flatten().tolist()
    assert len(set(words)) == len(words)


@given(seeds, st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 5))
def test_permutation_covers_each_size(seed: int, sizes: list[int], spare: int) -> None:
    width = max(sizes) + spare
    order = stream(seed, "test", 0, nodes(len(sizes))).permutation(torch.tensor(sizes), width)
    assert order.shape == (len(sizes), width)
    for row, size in zip(order.tolist(), sizes, strict=True):
        assert sorted(row[:size]) == list(range(size))
        assert row[size:] == list(range(size, width))  # what lies beyond the size stays in place


def test_permutation_is_uniform() -> None:
    order = stream(3, "test", 0, nodes(24_000)).permutation(torch.full((24_000,), 4), width=4)
    counts = np.unique(order.numpy(), axis=0, return_counts=True)[1]
    assert counts.size == 24
    assert abs(surprise(counts)) < 4


@given(seeds, st.one_of(st.integers(1, 700), st.just(5000), st.just(2**31)), st.data())
def test_sample_is_distinct_and_in_range(seed: int, n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, min(n, 40)))
    drawn = stream(seed, "test", 0, nodes(3)).sample(k, n)
    assert drawn.shape == (3, k)
    for row in drawn.tolist():
        assert len(set(row)) == k
        assert all(0 <= number < n for number in row)


@pytest.mark.parametrize("n", [40, 5000])
def test_sample_is_uniform(n: int) -> None:
    drawn = stream(5, "test", 0, nodes(100_000)).sample(5, n).numpy()
    counts = np.bincount(drawn.ravel(), minlength=n)
    assert abs(surprise(counts, variance=(n - 5) / (n - 1))) < 4


@pytest.mark.parametrize(("k", "n"), [(3, 7), (2, 40)], ids=["by sorting", "by Floyd's algorithm"])
def test_every_subset_is_as_likely(k: int, n: int) -> None:
    subsets = math.comb(n, k)
    drawn = stream(6, "test", 0, nodes(200 * subsets)).sample(k, n).sort(dim=1).values
    counts = np.unique(drawn.numpy(), axis=0, return_counts=True)[1]
    assert counts.size == subsets
    assert abs(surprise(counts)) < 4


@pytest.mark.parametrize(("k", "n"), [(3, 2), (-1, 5), (5001, 5000)])
def test_sample_of_the_impossible_is_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"cannot draw {k} distinct integers below {n}"):
        stream(0, "test", 0, nodes(1)).sample(k, n)


def test_sample_of_all_is_a_permutation() -> None:
    assert stream(0, "test", 0, nodes(1)).sample(4097, 4097)[0].sort().values.equal(nodes(4097))


def test_uniform_fills_the_unit_interval_evenly() -> None:
    draws = stream(2, "test", 0, nodes(1000)).uniform(100)
    assert draws.dtype == torch.float32
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(surprise(np.histogram(draws.numpy(), bins=64, range=(0, 1))[0])) < 4


def test_rows_and_columns_of_uniform_are_uncorrelated() -> None:
    draws = stream(4, "test", 1, nodes(2000)).uniform(20).double()
    columns = torch.corrcoef(draws.T) - torch.eye(20)
    rows = torch.corrcoef(draws.reshape(20, -1)) - torch.eye(20)
    assert columns.abs().max() < 5 / 2000**0.5
    assert rows.abs().max() < 5 / 2000**0.5


def test_no_global_generator_is_read_or_moved() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = stream(0, "test", 0, nodes(2)).uniform(3)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert torch.equal(stream(0, "test", 0, nodes(2)).uniform(3), first)


def test_shared_stream_is_one_row_that_no_node_has() -> None:
    shared = shared_stream(0, "clients", 5)
    assert torch.equal(shared.bits(4), stream(0, "clients", 5, torch.tensor([SHARED])).bits(4))
    assert not torch.equal(shared.bits(4), stream(0, "clients", 5, torch.tensor([0])).bits(4))


def test_numpy_generator_is_named_alike() -> None:
    first = numpy_generator(0, "partition", 1).random(4)
    assert np.array_equal(first, numpy_generator(0, "partition", 1).random(4))
    assert not np.array_equal(first, numpy_generator(0, "partition", 2).random(4))
    assert not np.array_equal(first, numpy_generator(1, "partition", 1).random(4))


def test_normal_numbers_come_from_the_published_words():
    """SplitMix64 of seed 0 begins with e220a8397b1dcdaf; each half of it gives the sum of two quantiles."""
    first = normals(np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.int64), 2)[0]
    quantile = NormalDist(0.0, 0.5**0.5).inv_cdf
    for number, low, high in ((0, 0xCDAF, 0x7B1D), (1, 0xA839, 0xE220)):
        # The upper 16 bits are read with their sign.
        signed = high - 0x10000 if high >= 0x8000 else high
        shares = ((low + 0.5) / 0x10000, (signed + 0x8000 + 0.5) / 0x10000)
        assert abs(float(first[number]) - sum(map(quantile, shares))) < 1e-4


def test_normal_numbers_are_addressed_and_standard_normal():
    """Moments and shares within four standard errors; any stretch of a stream equals that of the whole."""
    keys = stream(0, "normals", 0, torch.arange(500)).keys()
    whole = normals(keys, np.zeros(500, dtype=np.int64), 2000)
    part = normals(keys[7:9], np.array([10, 1000]), 60)
    assert torch.equal(part, torch.stack((whole[7, 10:70], whole[8, 1000:1060])))
    z = whole.double().flatten()
    for value, expected, error in (
        (z.mean(), 0.0, 1.0),
        (z.square().mean(), 1.0, 2**0.5),
        (z.pow(4).mean(), 3.0, 96**0.5),
        ((z < 1.0).double().mean(), 0.841345, 0.3654),
        ((z.abs() > 3.0).double().mean(), 0.0026998, 0.0519),
        ((whole[:, ::2] * whole[:, 1::2]).mean(), 0.0, 2**0.5),  # the two numbers of a word
        ((whole[1:] * whole[:-1]).mean(), 0.0, 1.0),  # streams of neighbours
    ):
        assert abs(float(value) - expected) < 4 * error / len(z) ** 0.5
