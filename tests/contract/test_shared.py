"""What travels: only what is shared and trains; every algorithm takes the same exam without the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from algorithm_exam import (
    CLASSES,
    FEATURES,
    HIDDEN,
    Exam,
    assert_finite,
    assert_same,
    check_shards_agree,
    differs,
    exam,
    federation,
    module,
    state_of,
    topology_for,
)
from torch import Tensor, nn

from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.ditto import Ditto
from coterie.algorithms.facade import FACADE
from coterie.catalogue import algorithms
from coterie.models import model_tree
from coterie.protocol import Algorithm
from coterie.topology import MessageLoss

FIRST, LAST = {"0.weight", "0.bias"}, {"2.weight", "2.bias"}


def sends(algorithm: Algorithm[Any]) -> bool:
    return algorithm.facts.communication != "none"


@exam()
def test_only_what_is_shared_travels(
    algorithm: Algorithm[Any], sit: Callable[..., Exam], delivered: set[str]
) -> None:
    """And what stays becomes everyone's own: all start alike, and two with different data differ."""
    part = dataclasses.replace(sit(algorithm), shared="0")
    simulation, _ = part.played(3, topology=MessageLoss(topology_for(algorithm), 0.2, seed=3))
    assert_finite(simulation)
    assert delivered & (FIRST | LAST) == (FIRST if sends(algorithm) else set())
    head = simulation.personal()["2.weight"]
    fixed = type(algorithm).__name__ == "FedBABU"  # its head keeps its start by design
    assert torch.equal(head[0], head[2]) is fixed


@exam(variants=False)
def test_shards_agree_about_a_part(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    check_shards_agree(dataclasses.replace(sit(algorithm), shared="!0.bias"))


@exam(variants=False)
def test_sharing_everything_changes_no_bit(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    if algorithm.facts.partial:
        algorithm = DPSGD()  # by default these keep their heads; see below
    usual, _ = sit(algorithm, torch.float32).played()
    explicit, _ = dataclasses.replace(sit(algorithm, torch.float32), shared="*").played()
    assert_same(state_of(usual), state_of(explicit))


LIKE_IN_PAYLOADS = (
    "n", "mu", "s", "model", "values", "mass", "scores", "dense", "masks", "samples", "cluster",
)  # fmt: skip


class Shifted(nn.Module):
    """Two layers, and parameters of one's own between them, which have no dot in their names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.full((HIDDEN,), 0.01)))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        for name in self.names:
            hidden = hidden + getattr(self, name)
        return self.last(hidden)


@exam(variants=False)
def test_parameters_at_home_may_be_called_as_what_is_sent_beside_them(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    """Such as n, how many samples there are: with any other names the models are the same."""
    if isinstance(algorithm, FACADE):
        algorithm = FACADE(clusters=1)  # it draws further heads by their names

    def trained(names: tuple[str, ...]) -> dict[str, Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(12)
            network = Shifted(names).double()
        simulation, _ = dataclasses.replace(sit(algorithm), network=network, shared="first").played(2)
        return dict(simulation.personal())

    others = tuple(f"shift_{name}" for name in LIKE_IN_PAYLOADS)
    usual, found = trained(others), trained(LIKE_IN_PAYLOADS)
    assert_same({name.removeprefix("shift_"): value for name, value in usual.items()}, found)


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu", "dfedpgp", "dfedavgm-p", "dfedsalt"])
def test_partial_methods_share_what_they_are_told(
    name: str, sit: Callable[..., Exam], delivered: set[str]
) -> None:
    """By default all but the last linear layer, so that saying so changes no bit; or any other part."""
    algorithm = algorithms[name]()
    assert algorithm.facts.partial
    usual, _ = sit(algorithm).played()
    said, _ = dataclasses.replace(sit(algorithm), shared="!2").played()
    assert_same(state_of(usual), state_of(said))
    assert delivered & (FIRST | LAST) == FIRST
    delivered.clear()
    other, _ = dataclasses.replace(sit(algorithm), shared="2").played()
    assert delivered & (FIRST | LAST) == LAST
    assert differs(state_of(usual), state_of(other))


def test_partial_methods_are_those_that_say_so() -> None:
    partial = {name for name in algorithms if algorithms[name].facts.partial}  # type: ignore[attr-defined]
    send_their_heads = {"pdfl", "fedala", "facade", "kin"}  # and treat them unlike the body
    assert partial - send_their_heads == {"fedper", "fedrep", "fedbabu", "dfedpgp", "dfedavgm-p", "dfedsalt"}


def frozen_network(normalised: bool) -> nn.Module:
    """Three layers, of which the first does not train."""
    with torch.random.fork_rng():
        torch.manual_seed(12)
        norm = [nn.BatchNorm1d(HIDDEN)] if normalised else []
        first = nn.Sequential(nn.Linear(FEATURES, HIDDEN), *norm).requires_grad_(False)
        if normalised:
            first[1].running_mean.normal_()  # type: ignore[union-attr, operator]
        layers = *first, nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        return nn.Sequential(*layers).double()


@pytest.mark.parametrize("normalised", [False, True])
@exam(variants=False)
def test_frozen_parameters_are_nobodys_state(
    algorithm: Algorithm[Any], normalised: bool, sit: Callable[..., Exam], delivered: set[str]
) -> None:
    """They are in no state, so in no checkpoint, and in no message; executors agree, and they stay."""
    net = frozen_network(normalised)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    part = dataclasses.replace(sit(algorithm), network=net)
    stacked, _ = part.played(executor="stacked")
    looped, _ = part.played(executor="looped")
    assert_same(state_of(stacked), state_of(looped), 1e-9)
    frozen = {name for name in before if name.startswith("0.") or "running" in name or name == "1.weight"}
    held = {part for name in state_of(stacked) for part in name.split("/")}
    assert not frozen & (held | delivered)
    assert set(stacked.personal()) == set(model_tree(net))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_frozen_layer_is_the_same_as_features_computed_before(sit: Callable[..., Exam]) -> None:
    """D-PSGD behind a frozen layer equals D-PSGD on that layer's outputs as data."""
    net = frozen_network(False)
    behind, _ = dataclasses.replace(sit(DPSGD()), network=net).played()
    rest = nn.Sequential(*list(net)[2:])
    features = torch.relu(net[0](federation().x)).detach()
    simulation = dataclasses.replace(sit(DPSGD()), network=rest).simulation()
    for block in simulation.blocks:
        block.node.federation = dataclasses.replace(block.node.federation, x=features)
    for _ in range(2):
        simulation.step()
    for (_, ours), (_, theirs) in zip(
        sorted(behind.personal().items()), sorted(simulation.personal().items()), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_bytes_are_counted_on_what_travels(sit: Callable[..., Exam]) -> None:
    sizes = {name: value.numel() for name, value in model_tree(module()).items()}
    for shared, names in (("0", FIRST), ("*.bias", {"0.bias", "2.bias"}), ("", FIRST | LAST)):
        part = dataclasses.replace(sit(DPSGD(), torch.float32), shared=shared)
        simulation, _ = part.played(1)
        links = len(simulation.topology.graph(0).senders)
        assert int(simulation.totals.bytes_sent.sum()) == links * 4 * sum(sizes[name] for name in names)


def test_what_ditto_keeps_of_the_shared_model_is_trained(sit: Callable[..., Exam]) -> None:
    """Its w is one model: the part that stays goes on from what local training made of it."""
    simulation = dataclasses.replace(sit(Ditto()), shared="0").simulation()
    start = simulation.blocks[0].state.params["2.weight"][0]
    simulation.step()
    kept = simulation.blocks[0].state.params["2.weight"]
    assert not any(
        torch.equal(row, start) for row in kept[:-1]
    )  # the last is the hub's, which does not train
    assert torch.equal(kept[-1], start)
