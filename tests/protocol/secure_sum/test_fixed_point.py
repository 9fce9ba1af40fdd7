"""The range of an encoding, and how precise it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quantised import quantised_sum

from coterie.errors import SecureSumError
from coterie.protocol.secure_sum import FixedPoint, magnitude_exponent

numbers = st.floats(-1e15, 1e15, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-15)


@pytest.mark.parametrize(
    ("values", "exponent"),
    [
        ([0.0], -64),
        ([], -64),
        ([1.0], 0),
        ([1.0, -1.0000001], 1),
        ([8.0], 3),
        ([0.3, -0.5], -1),
        ([1e-30], -64),
        ([1e30], 64),
    ],
)
def test_the_smallest_power_of_two_that_holds_all_values(values: list[float], exponent: int) -> None:
    assert magnitude_exponent(torch.tensor(values, dtype=torch.float64)) == exponent


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5))
def test_the_error_of_each_summand_is_bounded(rows: list[list[float]]) -> None:
    vectors = [torch.tensor(row, dtype=torch.float64) for row in rows]
    exponent = max(map(magnitude_exponent, vectors))
    assert all(float(vector.abs().max()) <= 2.0**exponent for vector in vectors)
    total = quantised_sum(vectors, FixedPoint.within(exponent))
    error = (total - torch.stack(vectors).sum(0)).abs().max()
    assert float(error) <= len(vectors) * 2.0**exponent / 2**22


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_has_no_magnitude(value: float) -> None:
    with pytest.raises(SecureSumError, match="finite"):
        magnitude_exponent(torch.tensor([1.0, value]))
