"""Payloads as vectors and back."""

from __future__ import annotations

import pytest
import torch

from coterie.errors import ContractError
from coterie.protocol import Tree
from coterie.protocol.trees import flatten_row, leaves, take, unflatten


def payload() -> Tree:
    return {
        "model": {"w": torch.arange(12.0).reshape(2, 2, 3), "b": torch.tensor([[7.0], [8.0]]).double()},
        "n": torch.tensor([5.0, 6.0]),
    }


@pytest.mark.parametrize("row", [0, 1])
def test_a_row_there_and_back(row: int) -> None:
    vector, like = flatten_row(payload(), row)
    assert vector.tolist() == [*range(6 * row, 6 * row + 6), 7.0 + row, 5.0 + row]
    assert vector.dtype == torch.float64  # of the most precise tensor
    back = dict(leaves(unflatten(vector, like)))
    for name, value in leaves(take(payload(), torch.tensor([row]))):
        assert torch.equal(back[name], value)
        assert back[name].dtype == value.dtype


def test_a_payload_without_tensors() -> None:
    vector, like = flatten_row({}, 0)
    assert len(vector) == 0
    assert unflatten(vector, like) == {}


def test_a_vector_of_another_length_is_refused() -> None:
    vector, like = flatten_row(payload(), 0)
    for wrong in (vector[1:], torch.cat((vector, vector[:1]))):
        with pytest.raises(ContractError, match=r"\d numbers do not fit a payload of 8"):
            unflatten(wrong, like)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_only_real_numbers(dtype: torch.dtype) -> None:
    with pytest.raises(ContractError, match=r"'inner/steps' is (int64|bool)"):
        flatten_row({"inner": {"steps": torch.zeros(2, dtype=dtype)}}, 0)
