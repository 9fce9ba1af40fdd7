"""Faster pooling gives what PyTorch's own gives, bit for bit: outputs, and who receives the gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.learning.pooling import SquarePool, with_square_pools

OWN, TORCH = with_square_pools(nn.MaxPool2d(2)), nn.MaxPool2d(2)


def gradients(pool: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    out = pool(leaf)
    pull = torch.arange(1.0, out.numel() + 1).view(out.shape)  # another number for every output
    return out.detach(), torch.autograd.grad(out, leaf, pull)[0]


@given(
    shape=st.tuples(*(st.integers(1, 3), st.integers(1, 3), st.integers(2, 9), st.integers(2, 9))),
    levels=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_outputs_and_gradients_are_those_of_torch(
    shape: tuple[int, int, int, int], levels: int, seed: int
) -> None:
    """Few levels make many ties, of which only the first may receive the gradient."""
    x = torch.randint(-levels, levels, shape, generator=torch.Generator().manual_seed(seed)).float()
    assert isinstance(OWN, SquarePool)
    for ours, theirs in zip(gradients(OWN, x), gradients(TORCH, x), strict=True):
        assert torch.equal(ours, theirs)
    with torch.no_grad():
        assert torch.equal(OWN(x), TORCH(x))


def test_a_square_worked_out_by_hand() -> None:
    x = torch.tensor([[[[1.0, 3.0, 5.0], [3.0, 2.0, 9.0]]]])
    out, gradient = gradients(OWN, x)
    assert out.tolist() == [[[[3.0]]]]  # the third column is in no square
    assert gradient.tolist() == [[[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]]  # the first of two equal ones


@pytest.mark.parametrize(
    "other",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.AvgPool2d(2),
    ],
    ids=str,
)
def test_other_pools_stay_as_they_are(other: nn.Module) -> None:
    kind = type(other)
    assert type(with_square_pools(copy.deepcopy(other))) is kind


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 6, 6),
        torch.randn(2, 3, 6, 6).transpose(2, 3),
    ],
    ids=["channels last", "one image", "turned"],
)
def test_inputs_in_another_order_go_to_torch(x: Tensor) -> None:
    assert torch.equal(OWN(x), TORCH(x))


def test_too_small_an_image_is_refused_as_by_torch() -> None:
    with pytest.raises(RuntimeError, match="too small"):
        OWN(torch.randn(1, 1, 1, 4))
