"""Every algorithm, wherever its peers live: in one process, in two workers of Ray, and as five real peers.

Between one process and Ray all bits are the same. Real peers add up in another order: 1e-4 relative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peers_in_memory import SMALL, World, assert_as_simulated, simulated
from ray_cluster import one_node

from coterie.catalogue import algorithms
from coterie.experiments.cluster.connecting import answers
from coterie.experiments.cluster.host import Host
from coterie.experiments.cluster.ray_blocks import RayBlocks
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.hosting import hosting, ingredients
from coterie.experiments.setup.prepare import Objects, prepare
from coterie.experiments.setup.schema import Execution, Experiment
from coterie.learning import Workers
from coterie.simulation import RoundRecord, Simulation, load_checkpoint, save_checkpoint
from coterie.testing import run_virtually, small_module


@pytest.fixture(scope="module")
def there() -> Iterator[There]:
    with one_node() as ray:
        yield There(ray, [ray.remote(Host).options(num_cpus=0).remote() for _ in range(3)])


@dataclass(frozen=True)
class There:
    """Ray, and three workers, which host the peers of one experiment after another."""

    ray: Any
    workers: list[Any]

    def prepare(self, experiment: Experiment, objects: Objects) -> None:
        given = experiment.model_dump(mode="json"), experiment.execution.executor, 1, objects
        answers(self.ray, [worker.prepare.remote(*given) for worker in self.workers])

    def host(self, nodes: int, count: int) -> RayBlocks:
        """All nodes, on so many of the workers."""
        return RayBlocks(self.ray, self.workers[:count], torch.arange(nodes).tensor_split(count))


def on_ray(world: World, there: There) -> RayBlocks:
    """The same peers, made anew by two workers."""
    objects = Objects(world.algorithm, world.federation, None, small_module(), None, world.topology)
    experiment = Experiment(
        algorithm=type(world.algorithm).__name__,
        data="own",
        model="own",
        partition="own",
        topology="own",
        peers=world.peers,
        rounds=world.rounds,
        seed=3,
        training=world.training,
        execution=Execution(sealing="quantised", executor="looped"),
    )
    there.prepare(experiment, objects)
    assert world.topology is not None
    return there.host(world.topology.nodes, 2)


def all_of(record: RoundRecord) -> dict[str, torch.Tensor]:
    found = {
        f"{point}/{name}": values
        for point, evaluation in record.evaluations.items()
        for name, values in {**evaluation.metrics, "loss": evaluation.loss, **evaluation.validation}.items()
    }
    found |= {f"diagnostics/{name}": values for name, values in record.diagnostics.items()}
    found |= {name: getattr(record, name) for name in ("train_loss", "gradient_steps", "samples_seen")}
    for slot, traffic in enumerate(record.traffic):
        found |= {f"{slot}/{name}": values for name, values in vars(traffic).items()}
    return found


@pytest.mark.parametrize("name", list(algorithms))
def test_one_process_two_ray_workers_and_five_real_peers_give_the_same_numbers(
    name: str, there: There, tmp_path: Path
) -> None:
    world = World(name, tmp_path, SMALL)
    run_virtually(world.play())
    here = simulated(world)
    assert_as_simulated(world, here)
    models, _, records = simulated(world, on_ray(world, there))
    for leaf, value in here[0].items():
        assert torch.equal(value, models[leaf]), leaf
    assert_same(here[2], records)


def assert_same(ours: list[RoundRecord], theirs: list[RoundRecord]) -> None:
    """To the last bit."""
    for one, other in zip(ours, theirs, strict=True):
        found = all_of(other)
        for what, values in all_of(one).items():
            assert torch.equal(values.nan_to_num(), found[what].nan_to_num()), (one.round, what)


USUAL = {"data": "digits", "partition": "dirichlet(0.5)", "topology": "ring", "peers": 7, "rounds": 3}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "churn and loss": {"algorithm": "osgp", "topology": "directed(2)", "faults": {"churn": 0.3, "loss": 0.3}},
    "several networks": {"algorithm": "d-psgd", "models": {"mlp(16)": "1,4-5"}, "model": "mlp(24)"},
    "a hub": {"algorithm": "fedrep", "topology": "star", "settings": {"participation": 0.5}},
    "made data": {"algorithm": "d-psgd", "data": "synthetic(1,1)", "partition": "natural", "model": "mlr"},
    "best models": {
        "algorithm": "d-psgd",
        "splitting": {"validation": 0.2},
        "stopping": {"keep": "best"},
        "training": {"momentum": 0.9, "optimizer_state": "kept"},
    },
    "own weights, a liar, a guard": {
        "algorithm": "d-psgd",
        "topology": "full",
        "init": "independent",
        "robust": "trimmed-mean",
        "faults": {"byzantine": {"sign-flip": "6"}},
    },
    **{
        f"{kind} sums": {"algorithm": "ppdl(3)", "topology": "full", "execution": {"sealing": kind}}
        for kind in ("plain", "quantised", "masked", "one-time")
    },
}


@pytest.mark.parametrize("what", EXPERIMENTS)
def test_on_one_two_and_three_workers_as_in_one_process(what: str, there: There, tmp_path: Path) -> None:
    """All that an experiment can ask for; and a checkpoint of two workers goes on on three, and in here."""
    table = {**USUAL, **EXPERIMENTS[what]}
    table["execution"] = {"executor": "looped", **table.get("execution", {})}
    prepared = prepare(resolve(table))
    there.prepare(prepared.experiment, Objects())
    with Workers(1) as threads:
        made_of = ingredients(hosting(prepared, "looped", threads))
        here = Simulation(**made_of)
        records = played(here)
        for count in (1, 2, 3):
            cut = Simulation(**made_of, hosts=there.host(here.topology.nodes, count))
            assert_same(records[:1], [cut.step()])
            if count == 2:
                save_checkpoint(tmp_path / "two", cut, {})
            assert_same(records[1:], played(cut))
            assert_same_end(here, cut)
        for hosts in (there.host(here.topology.nodes, 3), None):
            later = Simulation(**made_of, hosts=hosts)
            load_checkpoint(tmp_path / "two", later)
            assert_same(records[1:], played(later))
            assert_same_end(here, later)


def played(simulation: Simulation) -> list[RoundRecord]:
    return [simulation.step(evaluate_global=True) for _ in range(simulation.round, simulation.rounds)]


def assert_same_end(ours: Simulation, theirs: Simulation) -> None:
    for name, total in vars(ours.totals).items():
        assert torch.equal(total, vars(theirs.totals)[name]), name
    for one, other in zip(ours.models(), theirs.models(), strict=True):
        assert torch.equal(one.peers, other.peers)
        for name, value in one.params.items():
            assert torch.equal(value, other.params[name]), name


@pytest.mark.parametrize("topology", ["ring", "random-regular(4)"])
def test_what_crosses_between_workers_follows_from_the_graph(
    topology: str, there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each pair of blocks, the rows of one that somebody in the other hears, once each, and no others."""
    peers = 30
    prepared = prepare(resolve({**USUAL, "algorithm": "d-psgd", "peers": peers, "topology": topology}))
    there.prepare(
        prepared.experiment.model_copy(update={"execution": Execution(executor="looped")}), Objects()
    )
    given = RayBlocks._given
    sizes: list[int] = []

    def weighed(blocks: RayBlocks, deliveries: Any) -> Any:
        found = given(blocks, deliveries)
        objects = there.ray.get(list(found.values()))
        sizes.extend(sum(array.nbytes for array in one.values()) for one in objects)
        return found

    monkeypatch.setattr(RayBlocks, "_given", weighed)
    graph = prepared.topology.graph(0)
    with Workers(1) as threads:
        made_of = ingredients(hosting(prepared, "looped", threads))
        model = 4 * sum(value.numel() for value in prepared.module.parameters())
        for count in (2, 3):
            sizes.clear()
            hosts = there.host(peers, count)
            block = torch.cat([torch.full((len(ids),), n) for n, ids in enumerate(hosts.ids)])
            Simulation(**made_of, hosts=hosts).step(evaluate=False)
            away = block[graph.senders] != block[graph.receivers]
            rows = len(
                set(zip(graph.senders[away].tolist(), block[graph.receivers][away].tolist(), strict=True))
            )
            assert sum(sizes) == rows * model
            assert len(sizes) <= count * (count - 1)
