"""Payloads as vectors and back."""

from __future__ import annotations

import pytest
import torch

from coterie.errors import ContractError
from coterie.protocol import Tree
from coterie.protocol.trees import Counters, flatten_row, leaves, take, unflatten, without


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


def test_what_stays_at_home_is_taken_from_models_and_not_from_what_is_beside_them() -> None:
    """Parameters of those names go, wherever they are; counters and branches of the same names stay."""
    one = torch.ones(2)
    model = {"n": one, "model": one, "head.bias": one, "body.weight": one}
    at_home = frozenset({"n", "model", "head.bias"})
    assert set(dict(leaves(without(model, at_home)))) == {"body.weight"}
    sent = without({"model": model, "n": Counters(n=one)}, at_home)
    assert set(dict(leaves(sent))) == {"model/body.weight", "n/n"}


def test_a_parameter_sent_in_pieces_stays_at_home() -> None:
    """As an algorithm that rounds numbers may send them."""
    pieces = {"code": torch.ones(2), "scale": torch.ones(2)}
    for payload in ({"head.bias": pieces}, {"model": {"head.bias": pieces, "n": pieces}}):
        assert not list(leaves(without(payload, frozenset({"head.bias", "n"}))))
