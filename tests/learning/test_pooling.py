"""Faster pooling gives what PyTorch's own gives, bit for bit: outputs, and who receives the gradient."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.learning.pooling import LaterReLU, RectifyingPool, SquarePool, with_square_pools

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


def network(shared: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    relu = nn.ReLU()
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), relu, nn.MaxPool2d(2)),
        nn.Conv2d(3, 4, 3, padding=1),
        relu if shared else nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.ReLU(),
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_a_relu_behind_the_pool_changes_no_bit(layout: torch.memory_format, shared: bool) -> None:
    """Whole numbers and flat areas make ties, above zero and below: the first receives the gradient."""
    plain = network(shared)
    with torch.no_grad():
        for value in plain.parameters():
            value.copy_((4 * value).round())
    moved = with_square_pools(copy.deepcopy(plain), plain=True)
    kinds = [type(layer) for layer in moved.modules()]
    assert kinds.count(RectifyingPool) == kinds.count(LaterReLU) == (0 if shared else 2)
    x = torch.randint(-2, 3, (6, 2, 8, 8)).float().repeat_interleave(2, 3)[..., :8].to(memory_format=layout)
    x[0] = 0.0
    for training in (True, False):
        outputs, found = [], []
        for module in (plain.train(training), moved.train(training)):
            out = module(x)
            pull = torch.arange(1.0, out.numel() + 1).view(out.shape)
            outputs.append(out.detach())
            found.append(torch.autograd.grad(out, list(module.parameters()), pull))
        assert torch.equal(*outputs)
        assert float(outputs[0].max()) > 0
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_relu_asked_for_its_outputs_gives_them() -> None:
    plain, moved = network().eval(), with_square_pools(network(), plain=True).eval()
    x = torch.randn(2, 2, 8, 8)
    assert torch.equal(moved[:3](x), plain[:3](x))


def test_a_relu_stays_where_others_may_follow_it() -> None:
    assert all(type(layer) is not LaterReLU for layer in with_square_pools(network()).modules())
