"""Which samples each row sees."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import ConfigError
from coterie.learning.local_steps import LocalWork, draw_batches, local_steps
from coterie.learning.updates import SGD
from coterie.randomness import stream
from coterie.training import Training

sizes = st.lists(st.integers(1, 23), min_size=1, max_size=6)


def work(epochs: Tensor | None = None, repeat: int = 1, **settings: int) -> LocalWork:
    training = Training(epochs=repeat, **settings)
    return LocalWork(training, SGD(), round=0, rounds=1, epochs=epochs)


def seen(
    n_samples: Tensor, steps: Tensor, batch_size: int, ids: Tensor | None = None
) -> list[list[list[int]]]:
    """For each row, the samples of each of its batches."""
    ids = torch.arange(len(n_samples)) if ids is None else ids
    batches = draw_batches(stream(1, "batches", 2, ids), n_samples, steps, batch_size)
    return [
        [
            batches.index[row, step, : int(batches.sizes[row, step])].tolist()
            for step in range(int(steps[row]))
        ]
        for row in range(len(n_samples))
    ]


@given(sizes, st.integers(1, 8), st.integers(1, 3))
def test_every_epoch_visits_every_sample_once(n: list[int], batch_size: int, epochs: int) -> None:
    n_samples = torch.tensor(n)
    steps = local_steps(n_samples, work(batch_size=batch_size, repeat=epochs))
    assert steps.tolist() == [epochs * -(-size // batch_size) for size in n]
    for size, batches in zip(n, seen(n_samples, steps, batch_size), strict=True):
        per_epoch = -(-size // batch_size)
        for epoch in range(epochs):
            mine = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(sample for batch in mine for sample in batch) == list(range(size))
            assert all(len(batch) == batch_size for batch in mine[:-1])
            assert len(mine[-1]) == size - batch_size * (per_epoch - 1), "the last batch is what is left"


@given(sizes, st.integers(1, 8), st.integers(1, 12), st.data())
def test_who_goes_on_in_an_epoch_sees_its_rest(
    n: list[int], batch_size: int, count: int, data: st.DataObject
) -> None:
    """Each row from its own place on: the batches are those that come after the first ones."""
    n_samples, steps = torch.tensor(n), torch.full((len(n),), count)
    taken = torch.tensor([data.draw(st.integers(0, -(-size // batch_size) - 1)) for size in n])
    own = stream(1, "batches", 2, torch.arange(len(n)))
    rest = draw_batches(own, n_samples, steps, batch_size, taken)
    for row, whole in enumerate(seen(n_samples, taken + steps, batch_size)):
        found = [rest.index[row, k, : int(rest.sizes[row, k])].tolist() for k in range(count)]
        assert found == whole[int(taken[row]) :]


@given(sizes, st.integers(1, 8), st.integers(1, 12))
def test_steps_mode_starts_a_new_epoch_when_one_is_over(n: list[int], batch_size: int, count: int) -> None:
    n_samples = torch.tensor(n)
    steps = local_steps(n_samples, work(steps=count, batch_size=batch_size))
    assert steps.tolist() == [count] * len(n)
    for size, batches in zip(n, seen(n_samples, steps, batch_size), strict=True):
        flat = [sample for batch in batches for sample in batch]
        for start in range(0, len(flat), size):
            assert len(set(flat[start : start + size])) == len(flat[start : start + size])


@given(sizes, st.integers(1, 8))
def test_a_row_does_not_depend_on_the_rows_beside_it(n: list[int], batch_size: int) -> None:
    n_samples, ids = torch.tensor(n), torch.arange(len(n)) * 3 + 1
    steps = local_steps(n_samples, work(batch_size=batch_size))
    together = seen(n_samples, steps, batch_size, ids)
    for row in range(len(n)):
        alone = seen(n_samples[row : row + 1], steps[row : row + 1], batch_size, ids[row : row + 1])
        assert alone[0] == together[row]


def test_epochs_are_shuffled_differently() -> None:
    n = torch.tensor([40])
    (batches,) = seen(n, torch.tensor([3]), 40)
    assert len({tuple(batch) for batch in batches}) == 3


def test_uneven_epochs_and_rows_without_data() -> None:
    n = torch.tensor([10, 10, 0, 3])
    assert local_steps(n, work(epochs=torch.tensor([1, 3, 5, 0]), batch_size=4)).tolist() == [3, 9, 0, 0]
    assert local_steps(n, work(steps=7)).tolist() == [7, 7, 0, 7]


@pytest.mark.parametrize("wrong", [{"epochs": -1}, {"batch_size": 0}, {"lr": -0.1}, {"momentum": 1.0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Training(**wrong)  # type: ignore[arg-type]
