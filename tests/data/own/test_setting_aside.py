"""Which samples are held out follows from each sample alone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from coterie.data import from_peers
from coterie.data.own.setting_aside import digests, set_aside
from coterie.data.own.several import Raw, samples
from coterie.errors import ConfigError

FRACTIONS = {"test_fraction": 0.2, "validation": 0.25}


def parts(x: np.ndarray, seed: int = 0) -> dict[str, set[bytes]]:
    """The rows in each part of one peer's data."""
    made = from_peers([(x, np.zeros(len(x), dtype=int))], seed=seed, n_classes=1, **FRACTIONS)
    rows = made.x.numpy()  # type: ignore[union-attr]
    splits = {"train": made.train, "validation": made.validation, "test": made.test}
    return {name: {row.tobytes() for row in rows[split.index.numpy()]} for name, split in splits.items()}


def test_a_sample_is_held_out_by_its_own_hash() -> None:
    """As worked out by hand: BLAKE2b of the inputs, then of the seed, the purpose and that."""
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    expected = []
    for row in x:
        content = row.tobytes()
        inner = hashlib.blake2b(f":{len(content)}:".encode() + content, digest_size=16).digest()
        drawn = hashlib.blake2b(b"7/test/" + inner, digest_size=8).digest()
        expected.append(int.from_bytes(drawn, "little") / 2**64 < 0.2)
    assert set_aside(torch.from_numpy(x), 0.2, 7, "test").tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_what_was_learned_from_is_never_tested_on_when_a_file_grows(seed: int) -> None:
    """Rows come in any order, some of them twice, from the very first few on."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 40, size=(120, 1)).astype(float)  # of 40 different ones
    learned: set[bytes] = set()
    for n in (8, 9, 12, 20, 50, 120):
        now = parts(rng.permutation(rows[:n]), seed)
        assert not now["train"] & now["test"]
        assert not now["train"] & now["validation"]
        assert not now["validation"] & now["test"]
        assert not learned & now["test"]
        assert not learned & now["validation"]
        learned |= now["train"]


def test_the_fractions_are_kept_on_average() -> None:
    """Of 10,000 samples 2,000 +- 5 standard deviations of 40, and a quarter of the rest."""
    now = parts(np.arange(10_000.0)[:, None])
    assert abs(len(now["test"]) - 2000) < 200
    assert abs(len(now["validation"]) - (10_000 - len(now["test"])) / 4) < 200
    assert now["test"] != parts(np.arange(10_000.0)[:, None], seed=1)["test"]


def test_the_lowest_number_is_held_out_if_none_is_below_the_fraction() -> None:
    x = torch.arange(4.0)[:, None]
    held = set_aside(x, 1e-9, 0, "test")
    assert int(held.sum()) == 1
    twice = set_aside(torch.cat((x, x)), 1e-9, 0, "test")
    assert twice.tolist() == held.tolist() * 2  # a copy is no other sample
    assert not set_aside(x[:1], 0.5, 0, "test").any()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="must lie between 0 and 1"):
        set_aside(torch.zeros(3, 1), fraction, 0, "test")


def read(values: object) -> Raw:
    return samples(values, "x", 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([[1, 2], [3, 4]]), np.array([[1.0, 2.0], [3.0, 4.0]])),  # a table gets a 0.5 elsewhere
        (np.array([[1.0, 0.0], [3.0, -0.0]]), np.array([[1.0, -0.0], [3.0, 0.0]])),
        (np.array([[1, 2, 0], [3, 0, 0]]), np.array([[1, 2, 0, 0, 0], [3, 0, 0, 0, 0]])),  # longer padding
        ([[1, 2], [3]], np.array([[1, 2, 0], [3, 0, 0]])),  # padded by us, or by the user
        ([[[1.0, 5.0]], [[3.0, 0.0], [0.0, 2.0]]], np.array([[[1.0, 5], [0, 0]], [[3, 0], [0, 2]]])),
        ({"a": [[1.0], [2.0]], "b": [[3], [4]]}, {"b": [[3.0], [4.0]], "a": [[1], [2]]}),
    ],
)
def test_equal_samples_have_equal_digests(one: object, other: object) -> None:
    assert digests(read(one)) == digests(read(other))
    assert len(set(digests(read(one)))) == 2


def test_inputs_are_not_mixed_up() -> None:
    """A number that moves to another input makes another sample."""
    one, other = {"a": [[1.0], [2.0]], "b": [[2.0], [1.0]]}, {"a": [[2.0], [1.0]], "b": [[1.0], [2.0]]}
    assert digests(read(one)) == digests(read(other))[::-1]
    moved = {"a": [[1.0, 2.0], [2.0, 1.0]], "b": [[0.0], [0.0]]}
    assert not set(digests(read(one))) & set(digests(read(moved)))


def test_a_corrected_label_moves_nothing() -> None:
    x, y = np.arange(50.0)[:, None], np.arange(50) % 2
    before, after = (from_peers([(x, labels)], n_classes=2) for labels in (y, 1 - y))
    assert torch.equal(before.x, after.x)  # type: ignore[arg-type]
    assert torch.equal(before.train.index, after.train.index)
