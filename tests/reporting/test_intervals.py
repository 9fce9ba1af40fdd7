"""Student's intervals against tabulated quantiles and numbers worked out with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.reporting.intervals import interval, student_quantile

TABULATED = {  # (confidence, degrees of freedom): from printed tables
    (0.95, 1): 12.7062, (0.95, 2): 4.3027, (0.95, 3): 3.1824, (0.95, 4): 2.7764, (0.95, 9): 2.2622,
    (0.95, 30): 2.0423, (0.90, 2): 2.9200, (0.99, 5): 4.0321, (0.99, 10): 3.1693,
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), TABULATED.items())
def test_quantiles_are_the_tabulated_ones(key: tuple[float, int], value: float) -> None:
    assert student_quantile(*key) == pytest.approx(value, abs=1e-4)


def test_the_interval_of_three_numbers() -> None:
    values = [0.80, 0.83, 0.86]  # mean 0.83, standard deviation 0.03
    found = interval(values)
    assert found is not None
    half = 4.302653 * np.std(values, ddof=1) / np.sqrt(3)
    assert (found.mean, found.std, found.n) == (pytest.approx(0.83), pytest.approx(0.03), 3)
    assert found.low == pytest.approx(0.83 - half, abs=1e-6)
    assert found.high == pytest.approx(0.83 + half, abs=1e-6)


def test_one_number_has_no_interval() -> None:
    found = interval([0.5])
    assert found is not None
    assert (found.mean, found.std, found.low, found.high) == (0.5, None, None, None)
    assert interval([]) is None
