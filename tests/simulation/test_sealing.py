"""Sealed algorithms under the four ways to add up: three give the same bits, the fourth is near."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.catalogue import algorithms
from coterie.data import Federation, from_peers
from coterie.learning import Executor, ExecutorName, Workers
from coterie.protocol import Params
from coterie.protocol.sealing import SealingKind
from coterie.protocol.trees import named_tensors
from coterie.randomness import numpy_generator
from coterie.simulation import Simulation
from coterie.topology import Churn, MessageLoss, Topology, make
from coterie.training import Training

SEALED = ("ppdl", "ppdl-var", "random-gossip", "oracle", "gossip-fedavg", "dbe")
SIZES = (5, 9, 12, 3, 7, 10, 6, 8)
ROUNDS = 3


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def federation() -> Federation:
    rng = numpy_generator(3, "sealing")
    peers = []
    for size in SIZES:
        parts = {}
        for part, n in (("train", size), ("validation", 8), ("test", 6)):
            y = rng.integers(0, 3, n)
            parts[part] = ((rng.normal(size=(n, 4)) + y[:, None]).astype(np.float32), y)
        peers.append(parts)
    made = from_peers(peers, n_classes=3)
    return dataclasses.replace(made, clusters=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))


Play = Callable[..., Simulation]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    pools = {count: Workers(count) for count in (1, 2)}

    def run(
        name: str,
        sealing: SealingKind,
        *,
        topology: Topology | None = None,
        workers: int = 1,
        executor: ExecutorName = "stacked",
        rounds: int = ROUNDS,
        **more: Any,
    ) -> Simulation:
        net = network()
        simulation = Simulation(
            algorithm=algorithms[name](),
            federation=federation(),
            module=net,
            topology=topology or make("random-regular(5)", peers=len(SIZES), seed=5),
            training=Training(epochs=1, batch_size=4, lr=0.1),
            executor=Executor(executor, net, pools[workers]),
            seed=1,
            rounds=ROUNDS,
            sealing=sealing,
            **more,
        )
        for _ in range(rounds):
            simulation.step(evaluate=False)
        return simulation

    yield run
    for pool in pools.values():
        pool.close()


def state_of(simulation: Simulation) -> dict[str, Tensor]:
    order = torch.argsort(torch.cat([block.node.ids for block in simulation.blocks]))
    parts = [dict(named_tensors(block.state)) for block in simulation.blocks]
    return {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}


def assert_same_bits(ours: Simulation, theirs: Simulation) -> None:
    expected = state_of(theirs)
    for name, value in state_of(ours).items():
        assert torch.equal(value.nan_to_num(), expected[name].nan_to_num()), name


def differ(ours: Params, theirs: Params) -> bool:
    return any(not torch.equal(value, theirs[name]) for name, value in ours.items())


def faulty() -> Topology:
    return MessageLoss(Churn(make("random-regular(5)", peers=len(SIZES), seed=5), 0.2, 8), 0.3, 8)


@pytest.mark.parametrize("faults", [False, True], ids=["healthy", "faulty"])
@pytest.mark.parametrize("name", SEALED)
@pytest.mark.parametrize("sealing", ["masked", "one-time"])
def test_quantised_and_masked_are_the_same_bits(
    name: str, faults: bool, sealing: SealingKind, play: Play
) -> None:
    topology = faulty() if faults else None
    quantised, masked = (play(name, kind, topology=topology) for kind in ("quantised", sealing))
    assert_same_bits(quantised, masked)
    assert torch.equal(quantised.totals.bytes_sent, masked.totals.bytes_sent), "payloads are what counts"


@pytest.mark.parametrize("name", SEALED)
def test_both_are_near_the_plain_sum(name: str, play: Play) -> None:
    """After the first mixing; later rounds may choose other peers where a choice hangs on a rounding."""
    full = make("full", peers=len(SIZES), seed=0)
    plain, quantised = (
        play(name, sealing, topology=full, rounds=1).personal() for sealing in ("plain", "quantised")
    )
    for parameter, value in plain.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(quantised[parameter], value, rtol=0.0, atol=1e-5 * scale)
    assert differ(plain, quantised)


@pytest.mark.parametrize("name", SEALED)
def test_shards_and_workers_do_not_matter(name: str, play: Play) -> None:
    whole = play(name, "quantised", executor="looped")
    assert_same_bits(play(name, "quantised", executor="looped", workers=2), whole)
    shards = [torch.tensor([4, 0, 7]), torch.tensor([2]), torch.tensor([5, 1, 3, 6])]
    cut = play(name, "quantised", executor="looped", shards=shards)
    assert not differ(cut.personal(), whole.personal())


@pytest.mark.parametrize("sealing", ["quantised", "masked", "one-time"])
def test_a_single_sender_is_never_opened(sealing: SealingKind, play: Play) -> None:
    """On a directed ring everyone has one sender: plain mixes, a secure sum does not open."""
    links = np.roll(np.eye(len(SIZES)), 1, axis=0)
    topology = make(links, peers=len(SIZES), seed=0)
    alone = play("local", sealing, topology=topology).personal()
    unopened = play("gossip-fedavg", sealing, topology=topology).personal()
    mixed = play("gossip-fedavg", "plain", topology=topology).personal()
    for name, value in alone.items():
        torch.testing.assert_close(unopened[name], value)
        assert not torch.allclose(mixed[name], value, atol=1e-2)


def test_where_nothing_is_sealed_it_has_no_effect(play: Play) -> None:
    assert_same_bits(play("d-psgd", "masked"), play("d-psgd", "plain"))


def test_as_an_option_of_an_experiment() -> None:
    small: dict[str, Any] = {"peers": 4, "rounds": 2, "topology": "full", "model": "mlr"}
    runs = {
        sealing: coterie.simulate(
            "gossip-fedavg", execution={"sealing": sealing, "executor": "stacked"}, **small
        )
        for sealing in ("plain", "quantised", "masked", "one-time")
    }
    for name, value in runs["masked"].params.items():
        assert torch.equal(value, runs["quantised"].params[name])
        assert torch.equal(value, runs["one-time"].params[name])
        torch.testing.assert_close(value, runs["plain"].params[name], rtol=1e-4, atol=1e-5)
    assert len({run.result()["bytes_sent_per_peer"] for run in runs.values()}) == 1
