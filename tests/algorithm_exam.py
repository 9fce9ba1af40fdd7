"""The exam that every algorithm of the catalogue takes; its parts are in `tests/contract/`.

An algorithm that is added to the catalogue takes it without a change, except for one line in
`BYTES_PER_ROUND` of `test_traffic.py`: how much its paper says that it sends. Models are compared in float64,
where two orders of the same sum agree to 1e-9; in float32 a ReLU that flips by rounding would hide real
mistakes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from coterie.catalogue import algorithms
from coterie.data import Federation, from_peers
from coterie.learning import Executor, ExecutorName, Workers
from coterie.protocol import Algorithm
from coterie.protocol.trees import named_tensors
from coterie.randomness import numpy_generator
from coterie.simulation import RoundRecord, Simulation
from coterie.topology import Topology, make
from coterie.training import Training

SIZES = (5, 9, 12, 1, 7, 10)  # training samples of each peer; peer 3 has a single one
ONE_CLASS_PEER = 4
PEERS, CLASSES, FEATURES, HIDDEN = len(SIZES), 3, 4, 6
CLUSTERS = torch.tensor([0, 0, 0, 1, 1, 1])

# Settings other than the defaults that take a different path through an algorithm.
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("local", {"best": True}),
    ("d-psgd", {"mixing": "metropolis"}),
    ("random-gossip", {"peers": 1}),
    ("random-gossip", {"sealed": False}),
    ("kd-pdfl", {"broadcast": "overwrite", "exchange_every": 3, "c_base": 10.0}),
    ("kd-pdfl", {"broadcast": "none", "step_rule": "elementwise", "exchange_every": 3, "c_base": 10.0}),
    ("kd-pdfl", {"use_cache": True, "step_rule": "const", "exchange_every": 3}),
    ("kd-pdfl", {"layer": "1", "exchange_every": 3, "mu2": 1.0}),
    ("kd-pdfl", {"layer": "0", "share": "base", "broadcast": "overwrite", "exchange_every": 3}),
    ("kd-pdfl", {"layer": "1", "share": "base", "use_cache": True, "exchange_every": 3}),
    ("fedavg-plus", {"switch_at": 1, "exchange_every": 4}),
    ("blend-dfl", {"kd_weight": 0.0, "weighting": "fixed", "ce_norm": "batch"}),
    ("dfedpgp", {"literal": True, "head_epochs": 2, "head_lr": 0.2}),
    ("dfedpgp", {"mixing": "uniform"}),
    ("osgp", {"tau": 1}),
    ("dis-pfl", {"regrow": "gradient", "common_masks": True}),
    ("osgp", {"literal": True}),
    ("dfedavgm-p", {"mixing": "metropolis", "momentum": 0.0}),
    ("fedavg", {"participation": 0.5}),
    ("fedper", {"participation": 0.5, "head_tuning": 2}),
    ("fedrep", {"participation": 0.5, "head_epochs": 2, "head_lr": 0.2}),
    ("fedbabu", {"participation": 0.5}),
    ("fedprox", {"participation": 0.5, "mu": 0.5}),
    ("pfedkd-wcl", {"participation": 0.5, "server_update": "kl_grad_reverse_lastclient"}),
    ("pfedkd-wcl", {"server_update": "param_avg"}),
    ("ditto", {"participation": 0.5, "global_epochs": 1, "personal_epochs": 3}),
    ("per-fedavg", {"participation": 0.5, "adaptation_lr": 0.1}),
    ("pfedme", {"participation": 0.5, "beta": 0.7}),
    ("fedavg", {"finetune_epochs": 2}),
    ("ppdl", {"peers": 2, "reward_baseline": True}),
    ("ppdl-var", {"peers": 1}),
    ("dac", {"peers": 1}),
    ("pdfl", {"probe": 3, "kd_weight": 0.0}),
    ("dpfl", {"peers": 1, "every": 1}),
    ("pfedgraph", {"similarity": 0.1, "pull": 1.0}),
    ("dbe", {"mu": 0.3, "kappa": 2.0, "sealed": False}),
    ("fedala", {"adaptive": "all", "first_epochs": 2}),
    ("facade", {"clusters": 2}),
    ("kin", {"peers": 2, "private": "never", "head": "mixed", "refuse": False}),
    ("kin", {"peers": 3, "memory": 1.0, "explore": 0.0, "margin": 0.0, "apart": False, "smooth": 0.0}),
    ("kin", {"private": "always"}),
    ("kin", {"shows": 5}),
    ("dfedsalt", {"rho": 0.0, "head_epochs": 2, "head_lr": 0.2}),
)


def build(name: str, settings: dict[str, Any]) -> Algorithm[Any]:
    return algorithms[name](**settings)


def exam(variants: bool = True) -> Any:
    """Every entry of the catalogue, and the variants in the parts of the exam where settings matter."""
    entries = [(name, {}) for name in algorithms] + list(VARIANTS if variants else ())
    return pytest.mark.parametrize(
        "algorithm",
        [
            pytest.param(
                build(name, settings),
                id=name + "".join(f"-{key}={value}" for key, value in settings.items()),
            )
            for name, settings in entries
        ],
    )


@cache
def federation(dtype: torch.dtype = torch.float64) -> Federation:
    """Six peers with different numbers of samples, one of them with one sample, one with one class."""
    rng = numpy_generator(3, "exam")
    datasets = []
    for peer, size in enumerate(SIZES):
        parts = {}
        for part, n in (("train", size), ("validation", 4), ("test", 6)):
            y = rng.integers(0, 1 if peer == ONE_CLASS_PEER else CLASSES, n)
            parts[part] = (rng.normal(size=(n, FEATURES)) + y[:, None], y)
        datasets.append(parts)
    made = from_peers(datasets, n_classes=CLASSES)
    return dataclasses.replace(made, x=made.x.to(dtype), clusters=CLUSTERS)


def module(dtype: torch.dtype = torch.float64, normalised: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        norm = [nn.BatchNorm1d(HIDDEN)] if normalised else []
        layers = nn.Linear(FEATURES, HIDDEN), *norm, nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        return nn.Sequential(*layers).to(dtype)


def topology_for(algorithm: Algorithm[Any]) -> Topology:
    facts = algorithm.facts
    name = "star" if facts.hub else "directed(2)" if facts.directed else "random-regular(3)"
    return make(name, peers=PEERS, seed=5)


@dataclass
class Exam:
    """Makes simulations of one algorithm that differ in what must not matter."""

    algorithm: Algorithm[Any]
    pools: dict[int, Workers]
    dtype: torch.dtype = torch.float64
    epoch_groups: int = 0
    batchnorm: Literal["none", "average", "local"] = "none"
    work: Literal["own", "equal"] = "own"
    shared: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)  # other settings than the usual ones
    network: nn.Module | None = None  # another than the usual one

    def simulation(
        self,
        *,
        executor: ExecutorName = "stacked",
        workers: int = 1,
        seed: int = 1,
        shards: Sequence[Tensor] | None = None,
        topology: Topology | None = None,
    ) -> Simulation:
        net = self.network or module(self.dtype, self.batchnorm != "none")
        return Simulation(
            algorithm=self.algorithm,
            federation=federation(self.dtype),
            module=net,
            topology=topology or topology_for(self.algorithm),
            training=Training(
                epochs=1,
                epoch_groups=self.epoch_groups,
                batch_size=4,
                lr=0.1,
                lr_decay=0.9,
                clip=1.0,
                work=self.work,
                **self.training,
            ),
            executor=Executor(executor, net, self.pools[workers]),
            seed=seed,
            rounds=4,
            shards=shards,
            local_buffers=self.batchnorm == "local",
            shared=self.shared,
        )

    def played(self, rounds: int = 2, **how: Any) -> tuple[Simulation, list[RoundRecord]]:
        simulation = self.simulation(**how)
        return simulation, [simulation.step() for _ in range(rounds)]


def state_of(simulation: Simulation) -> dict[str, Tensor]:
    """Every tensor of the state, its rows in the order of node ids, whatever the blocks are."""
    order = torch.argsort(torch.cat([block.node.ids for block in simulation.blocks]))
    parts = [dict(named_tensors(block.state)) for block in simulation.blocks]
    return {name: stacked([part[name] for part in parts])[order].clone() for name in parts[0]}


def stacked(parts: list[Tensor]) -> Tensor:
    """Blocks on top of each other; a table over samples is as wide as the longest row of its block."""
    if parts[0].dim() == 3 and len({part.shape[1] for part in parts}) > 1:
        widest = max(part.shape[1] for part in parts)
        parts = [nn.functional.pad(part, (0, 0, 0, widest - part.shape[1])) for part in parts]
    return torch.cat(parts)


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if tolerance:
            precision = tolerance if value.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(
                theirs[name], value, rtol=precision, atol=precision, equal_nan=True, msg=name
            )
        else:
            assert torch.equal(value.nan_to_num(), theirs[name].nan_to_num()), name


def assert_finite(simulation: Simulation) -> None:
    for name, value in simulation.personal().items():
        assert bool(value.isfinite().all()), name


def differs(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return any(not torch.equal(a[name].nan_to_num(), b[name].nan_to_num()) for name in a)


def measured(records: list[RoundRecord]) -> dict[str, Tensor]:
    return {
        f"{record.round}/{point}/{what}": values
        for record in records
        for point, evaluation in record.evaluations.items()
        for what, values in {**evaluation.metrics, "loss": evaluation.loss}.items()
    }


# What `test_failing.py` needs as well


def check_shards_agree(exam: Exam) -> None:
    nodes = exam.simulation().topology.nodes
    whole, records = exam.played()
    scattered = [torch.tensor([4, 0]), torch.tensor([2]), torch.tensor([5, 1, 3, 6][: nodes - 3])]
    for shards in (scattered, [torch.tensor([node]) for node in range(nodes)]):
        cut, cut_records = exam.played(shards=shards)
        assert_same(state_of(whole), state_of(cut), 1e-9)
        assert_same(measured(records), measured(cut_records), 1e-5)
        for name, total in vars(whole.totals).items():
            assert torch.equal(total, vars(cut.totals)[name]), name


def check_repeatable(exam: Exam) -> None:
    first, second, other = (exam.played(2, seed=seed) for seed in (1, 1, 2))
    assert_same(state_of(first[0]), state_of(second[0]))
    assert_same(measured(first[1]), measured(second[1]))
    assert differs(state_of(first[0]), state_of(other[0])), "the seed does not matter"


def check_states_are_left_alone(exam: Exam) -> None:
    simulation = exam.simulation()
    for _ in range(2):
        given = [block.state for block in simulation.blocks]
        before = [{name: value.clone() for name, value in named_tensors(state)} for state in given]
        simulation.step()
        for state, copy in zip(given, before, strict=True):
            assert_same(copy, dict(named_tensors(state)))
