"""What a receiver can tell of one message: its size without its weight, and push-sum's mass, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.algorithms.parts.push_sum import PlausibleShares
from coterie.algorithms.parts.weighting import judged_by, weighted
from coterie.protocol.plausible import Sized, norm
from coterie.protocol.trees import map_tree

MINE = {"w": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([[4.0]])}  # as long as 5


def row(*values: float) -> Tensor:
    return torch.tensor([values])


def test_the_norm_is_that_of_all_real_numbers() -> None:
    assert norm({"a": MINE, "steps": torch.tensor([[7]])}) == 5.0
    assert norm({}) == 0.0
    assert norm({"w": torch.tensor([[3e30, 4e30]])}) == pytest.approx(5e30), "beyond float32 when squared"


@pytest.mark.parametrize(("factor", "wrong"), [(0.0, False), (1.0, False), (100.0, False), (100.1, True)])
def test_a_model_may_be_a_hundred_times_as_long(factor: float, wrong: bool) -> None:
    said = Sized(MINE)(map_tree(lambda leaf: leaf * factor, MINE))
    assert bool(said) is wrong
    assert not wrong or said == "its norm is 500, and that of this peer's own model is 5"


def test_a_model_of_zeros_judges_nobody() -> None:
    nothing = map_tree(torch.zeros_like, MINE)
    assert Sized(nothing)(MINE) == ""


def test_what_stands_beside_the_model_is_not_measured() -> None:
    assert Sized(MINE)({**MINE, "samples": torch.tensor([1e9])}) == ""


def test_many_samples_are_no_reason_to_be_refused() -> None:
    check = judged_by(MINE)
    assert check(weighted(MINE, torch.tensor([1e6]))) == ""
    assert check(weighted(MINE, torch.tensor([0.0]))) == ""
    assert check(weighted({"w": row(600, 0), "b": row(0)}, torch.tensor([1e6]))).startswith("its norm is 600")
    assert check(weighted(MINE, torch.tensor([-1.0]))) == "its weight is -1"
    some = {"model": MINE, "samples": {"n": torch.tensor([0.0])}}
    assert check(some) == "its weight is 0 and its model is not"


def share(mass: float, model: dict[str, Tensor] = MINE) -> dict[str, dict[str, Tensor]]:
    values = {name: value * mass for name, value in model.items()}
    return {"values": values, "mass": {"mu": torch.tensor([mass], dtype=torch.float64)}}


def test_no_more_mass_is_taken_than_exists_elsewhere() -> None:
    check = PlausibleShares(2.5, Sized(MINE, "values", "mass/mu"))
    assert check(share(1.5)) == ""
    assert check(share(1.5)) == "its push-sum mass is 1.5, and at most 1 exists elsewhere"
    assert check(share(1.0)) == ""
    assert check(share(0.0)) == "", "of one that has hardly any mass left"
    assert check(share(0.1)).startswith("its push-sum mass")


@pytest.mark.parametrize("mass", [-1.0, 1e9, float("inf"), float("nan")])
def test_mass_that_cannot_be(mass: float) -> None:
    assert PlausibleShares(4.0, Sized(MINE, "values", "mass/mu"))(share(mass)).startswith("its push-sum mass")


def test_a_small_mass_hides_no_large_model() -> None:
    check = PlausibleShares(4.0, Sized(MINE, "values", "mass/mu"))
    assert check({**share(1e-9), "values": MINE}).startswith("its norm is 5e+09")
    assert check(share(4.0)) == "", "what was refused takes no room"
