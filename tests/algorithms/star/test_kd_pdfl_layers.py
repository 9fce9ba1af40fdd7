"""KD-PDFL on hidden layers, with base layers only, and among unlike networks: by NumPy and plain torch."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.algorithms.kd_pdfl import KDPDFL
from coterie.errors import ConfigError
from coterie.learning import Executor, ExecutorName, Workers
from coterie.protocol.trees import named_tensors
from coterie.simulation import HostedNetwork, Simulation, load_checkpoint, save_checkpoint

BASE, HEAD = ("first.weight", "first.bias"), ("head.weight", "head.bias")
PLAIN = {"exchange_every": 2, "broadcast": "none"}  # no local steps


@pytest.fixture(autouse=True)
def same_weights() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def shallow() -> nn.Sequential:
    return network(first=nn.Linear(3, 4), bend=nn.Tanh(), head=nn.Linear(4, 2))


def deep() -> nn.Sequential:
    """Has the first layer in common with the other; its head only by name, and the head's bias by shape."""
    return network(
        first=nn.Linear(3, 4), bend=nn.Tanh(), middle=nn.Linear(4, 5), more=nn.ReLU(), head=nn.Linear(5, 2)
    )


def network(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers)).double()


def samples(world: Any, peer: int) -> Tensor:
    return world.federation.x[world.federation.train.of(peer)]


def collaboration_after(a: KDPDFL, d: np.ndarray, peers: int = 5) -> np.ndarray:
    """The star's new weights of its neighbours, eq. 2, from 1/peers each."""
    w = np.full(len(d), 1 / peers)
    h = a.mu1 * d + a.mu2 * (2 * a.lambda_g * w - 1 / ((peers - 1) / peers + a.delta))
    return np.maximum(0, w - h / np.sqrt((h**2).sum()))


@pytest.mark.parametrize("share", ["whole", "base"])
@pytest.mark.parametrize("layer", ["first", "bend"])
def test_distances_by_a_hidden_layer(layer: str, share: Any, world: Any) -> None:
    algorithm = KDPDFL(layer=layer, share=share, mu1=0.02, mu2=1.0, c_base=8.0, **PLAIN)
    simulation = world.simulation(algorithm, world.seed_with_stars(2), network=shallow())
    before = {name: value.numpy().copy() for name, value in simulation.personal().items()}
    record = simulation.step()
    after, near, x = simulation.personal(), world.near[2], samples(world, 2).numpy()

    def outputs(peer: int) -> np.ndarray:
        z = x @ before["first.weight"][peer].T + before["first.bias"][peer]
        return z if layer == "first" else np.tanh(z)

    d = np.array([((outputs(j) - outputs(2)) ** 2).mean() for j in near])  # per sample and feature
    w = collaboration_after(algorithm, d)
    assert len({0.0, *w}) == 1 + len(near), "nobody is chosen, or all alike: the test shows nothing"
    np.testing.assert_allclose(record.diagnostics["collaboration"][2, near], w, atol=1e-6)
    c = min(world.sizes[2] / 8.0, 1 / (len(near) + 1))
    for name in (*BASE, *HEAD):
        mixed = c * before[name][2] + (1 - c) * np.einsum("j,j...->...", w / w.sum(), before[name][near])
        stays = share == "base" and name in HEAD
        np.testing.assert_allclose(after[name][2], before[name][2] if stays else mixed, atol=1e-6)


@pytest.mark.parametrize("settings", [{"broadcast": "overwrite"}, {"use_cache": True}], ids=str)
def test_the_head_never_leaves_its_node(settings: dict[str, Any], world: Any) -> None:
    base, whole = (
        world.simulation(KDPDFL(layer="bend", share=share, exchange_every=2, **settings), network=shallow())
        for share in ("base", "whole")
    )
    heads = {name: base.personal()[name].clone() for name in HEAD}
    sent = spy(base)
    for _ in range(6):
        base.step()
        whole.step()
    assert sent == {BASE}
    assert all(torch.equal(base.personal()[name], value) for name, value in heads.items())
    size, all_of_it = 8 * (3 * 4 + 4), 8 * (3 * 4 + 4 + 4 * 2 + 2)
    messages = base.totals.messages_sent
    assert int(messages.sum()) > 0
    assert torch.equal(base.totals.bytes_sent, messages * size)
    assert torch.equal(whole.totals.bytes_sent, messages * all_of_it)


def spy(simulation: Simulation) -> set[tuple[str, ...]]:
    """The names in everything that is sent from now on."""
    deliver, names = simulation._router.deliver, set()

    def listening(*given: Any) -> Any:
        names.update(tuple(block.sent) for block in simulation.blocks)
        return deliver(*given)

    simulation._router.deliver = listening  # type: ignore[method-assign]
    return names


def test_base_needs_a_layer() -> None:
    with pytest.raises(ConfigError, match="'base' needs layer"):
        KDPDFL(share="base")


# Two networks in one run: peers 1 and 3 have the deep one.

DEEP = [1, 3]


def two_networks(
    world: Any,
    algorithm: KDPDFL,
    workers: Workers,
    seed: int = 0,
    executor: ExecutorName = "stacked",
    **more: Any,
) -> Simulation:
    """Every peer starts with other weights, whatever the blocks are."""
    like = world.simulation(algorithm, seed, network=shallow())

    def own(node: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(node)
            return deep() if node in DEEP else shallow()

    usual, other = shallow(), deep()
    return Simulation(
        algorithm=algorithm,
        federation=like.federation,
        module=usual,
        topology=like.topology,
        training=like.training,
        executor=Executor(executor, usual, workers),
        seed=seed,
        rounds=10,
        own_module=own,
        architectures=[HostedNetwork(torch.tensor(DEEP), Executor(executor, other, workers))],
        **more,
    )


@pytest.fixture
def workers() -> Any:
    with Workers(1) as pool:
        yield pool


def personal(simulation: Simulation) -> dict[int, nn.Module]:
    """Every peer's model as a plain module."""
    found = {}
    for models in simulation.models():
        for row, peer in enumerate(models.peers.tolist()):
            module = copy.deepcopy(models.module).eval()
            module.load_state_dict({name: value[row] for name, value in models.params.items()})
            found[peer] = module
    return found


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("star", [2, 3])
def test_unlike_networks_mix_what_they_have_in_common(
    star: int, use_cache: bool, world: Any, workers: Workers
) -> None:
    algorithm = KDPDFL(c_base=8.0, use_cache=use_cache, **PLAIN)
    simulation = two_networks(world, algorithm, workers, world.seed_with_stars(star))
    before = personal(simulation)
    record = simulation.step()
    near, x = world.near[star], samples(world, star)
    with torch.no_grad():
        p = {peer: module(x).softmax(-1) for peer, module in before.items()}
    d = np.array([float((p[j] - p[star]).square().sum() / len(x)) for j in near])
    w = collaboration_after(algorithm, d)
    np.testing.assert_allclose(record.diagnostics["collaboration"][star, near], w, atol=1e-6)
    share = (1 - min(len(x) / 8.0, 1 / (len(near) + 1))) * w / w.sum()
    old = {peer: module.state_dict() for peer, module in before.items()}
    for peer, module in personal(simulation).items():
        for name, value in module.state_dict().items():
            expected = old[peer][name]
            if peer == star:
                for j, weight in zip(near, share, strict=True):
                    if name in BASE or (j in DEEP) == (star in DEEP):
                        expected = expected + weight * (old[j][name] - old[star][name])
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)


def test_overwriting_broadcast_changes_the_common_layers_only(world: Any, workers: Workers) -> None:
    algorithm = KDPDFL(broadcast="overwrite", exchange_every=2)
    simulation = two_networks(world, algorithm, workers, world.seed_with_stars(2))
    before = {peer: module.state_dict() for peer, module in personal(simulation).items()}
    simulation.step()
    after = {peer: module.state_dict() for peer, module in personal(simulation).items()}
    for peer in (0, 1, 3):  # the neighbours of peer 2, of which 0 has the same network
        for name, value in after[peer].items():
            taken = name in BASE or peer == 0
            assert torch.equal(value, after[2][name] if taken else before[peer][name]), (peer, name)


def test_bytes_are_those_of_each_network(world: Any, workers: Workers) -> None:
    simulation = two_networks(world, KDPDFL(**PLAIN), workers, world.seed_with_stars(2))
    traffic = simulation.step().traffic[0]
    small, large = (8 * sum(p.numel() for p in net.parameters()) for net in (shallow(), deep()))
    assert dict(zip(traffic.senders.tolist(), traffic.bytes.tolist(), strict=True)) == {
        0: small,
        1: large,
        3: large,
    }


EVERYTHING = KDPDFL(broadcast="overwrite", exchange_every=4, use_cache=True)


@pytest.mark.parametrize(
    "algorithm", [EVERYTHING, KDPDFL(layer="bend", share="base", exchange_every=4)], ids=["whole", "base"]
)
def test_neither_executor_nor_shards_matter(algorithm: KDPDFL, world: Any, workers: Workers) -> None:
    whole = two_networks(world, algorithm, workers)
    looped = two_networks(world, algorithm, workers, executor="looped")
    single = two_networks(world, algorithm, workers, shards=[torch.tensor([i]) for i in (3, 0, 4, 1, 2)])
    mixed = two_networks(world, algorithm, workers, shards=[torch.tensor([3, 0, 2]), torch.tensor([4, 1])])
    for simulation in (whole, looped, single, mixed):
        for _ in range(4):
            last = simulation.step()
        assert last.evaluations["after_local"].metrics["accuracy"].shape == (5,)
        for peer, module in personal(simulation).items():
            for name, value in module.state_dict().items():
                torch.testing.assert_close(value, personal(whole)[peer].state_dict()[name])
        assert torch.equal(simulation.totals.bytes_sent, whole.totals.bytes_sent)


def test_resumed_with_two_networks(world: Any, workers: Workers, tmp_path: Path) -> None:
    whole, started, resumed = (two_networks(world, EVERYTHING, workers) for _ in range(3))
    for _ in range(6):
        whole.step()
    for _ in range(3):
        started.step()
    save_checkpoint(tmp_path / "state", started, {})
    load_checkpoint(tmp_path / "state", resumed)
    for _ in range(3):
        resumed.step()
    for ours, theirs in zip(whole.blocks, resumed.blocks, strict=True):
        saved = dict(named_tensors(theirs.state))
        assert all(torch.equal(value, saved[name]) for name, value in named_tensors(ours.state))
