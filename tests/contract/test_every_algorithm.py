"""The exam that every algorithm of the catalogue takes.

An algorithm that is added to the catalogue takes it without a change here, except for one line in
`BYTES_PER_ROUND`: how much its paper says that it sends. Models are compared in float64, where two orders of
the same sum agree to 1e-9; in float32 a ReLU that flips by rounding would hide real mistakes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.algorithms import algorithms
from coterie.data import Federation, from_peers
from coterie.learning import Executor, ExecutorName, Workers, pinned_threads
from coterie.protocol import (
    Algorithm,
    Exchange,
    Facts,
    ModelAlgorithm,
    ModelState,
    Node,
    Round,
    average,
)
from coterie.protocol.state import named_tensors
from coterie.randomness import numpy_generator, stream
from coterie.simulation import POINTS, RoundRecord, Simulation, load_checkpoint, save_checkpoint
from coterie.topology import Churn, Graph, Loss, Topology, make
from coterie.training import Training

SIZES = (5, 9, 12, 1, 7, 10)  # training samples of each peer; peer 3 has a single one
ONE_CLASS_PEER = 4
PEERS, CLASSES, FEATURES, HIDDEN = len(SIZES), 3, 4, 6
CLUSTERS = torch.tensor([0, 0, 0, 1, 1, 1])
MODEL_BYTES = 4 * (FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
BODY_BYTES = 4 * (FEATURES * HIDDEN + HIDDEN)
MASS_BYTES = 8  # push-sum's mu in double precision
NUMBER_BYTES = 4  # a number of samples, sent along with a model

# Settings other than the defaults that take a different path through an algorithm.
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("d-psgd", {"mixing": "metropolis"}),
    ("random-gossip", {"peers": 1}),
    ("kd-pdfl", {"broadcast": "overwrite", "exchange_every": 3, "c_base": 10.0}),
    ("kd-pdfl", {"broadcast": "none", "step_rule": "elementwise", "exchange_every": 3, "c_base": 10.0}),
    ("kd-pdfl", {"use_cache": True, "step_rule": "const", "exchange_every": 3}),
    ("kd-pdfl", {"layer": "1", "exchange_every": 3, "mu2": 1.0}),
    ("kd-pdfl", {"layer": "0", "share": "base", "broadcast": "overwrite", "exchange_every": 3}),
    ("kd-pdfl", {"layer": "1", "share": "base", "use_cache": True, "exchange_every": 3}),
    ("fedavg-plus", {"switch_at": 1, "exchange_every": 4}),
    ("blend-dfl", {"kd_weight": 0.0, "weighting": "fixed", "ce_norm": "batch"}),
    ("dfedpgp", {"literal": True, "groups": 3, "head_epochs": 2, "head_lr": 0.2}),
    ("osgp", {"tau": 1}),
    ("dis-pfl", {"regrow": "gradient", "common_masks": True}),
    ("osgp", {"literal": True, "groups": 3}),
    ("dfedavgm-p", {"mixing": "metropolis", "momentum": 0.0, "groups": 3}),
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


def module(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)).to(dtype)


def topology_for(algorithm: Algorithm[Any]) -> Topology:
    facts = algorithm.facts
    name = "star" if facts.hub else "directed(2)" if facts.directed else "random-regular(3)"
    return make(name, peers=PEERS, seed=5)


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[int, Workers]]:
    pools = {count: Workers(count) for count in (1, 2)}
    yield pools
    for pool in pools.values():
        pool.close()


@dataclass
class Exam:
    """Makes simulations of one algorithm that differ in what must not matter."""

    algorithm: Algorithm[Any]
    pools: dict[int, Workers]
    dtype: torch.dtype = torch.float64

    def simulation(
        self,
        *,
        executor: ExecutorName = "stacked",
        workers: int = 1,
        seed: int = 1,
        shards: Sequence[Tensor] | None = None,
        topology: Topology | None = None,
    ) -> Simulation:
        net = module(self.dtype)
        return Simulation(
            algorithm=self.algorithm,
            federation=federation(self.dtype),
            module=net,
            topology=topology or topology_for(self.algorithm),
            training=Training(epochs=1, batch_size=4, lr=0.1, lr_decay=0.9, clip=1.0),
            executor=Executor(executor, net, self.pools[workers]),
            seed=seed,
            rounds=4,
            shards=shards,
        )

    def played(self, rounds: int = 2, **how: Any) -> tuple[Simulation, list[RoundRecord]]:
        simulation = self.simulation(**how)
        return simulation, [simulation.step() for _ in range(rounds)]


@pytest.fixture
def sit(workers: dict[int, Workers]) -> Callable[..., Exam]:
    return lambda algorithm, dtype=torch.float64: Exam(algorithm, workers, dtype)


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
        f"{record.round}/{point}/{what}": getattr(evaluation, what)
        for record in records
        for point, evaluation in record.evaluations.items()
        for what in ("accuracy", "loss")
    }


# (a) and (b): executors and shards


def check_executors_agree(exam: Exam) -> None:
    stacked, stacked_records = exam.played(executor="stacked")
    looped, looped_records = exam.played(executor="looped")
    assert_same(state_of(stacked), state_of(looped), 1e-9)
    assert_same(measured(stacked_records), measured(looped_records), 1e-5)


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


@exam()
def test_stacked_and_looped_agree(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    check_executors_agree(sit(algorithm))


@exam()
def test_one_block_three_shards_and_one_node_each_agree(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    check_shards_agree(sit(algorithm))


# (c) and (d): workers and seeds


def check_workers_do_not_matter(exam: Exam, executor: ExecutorName) -> None:
    finals = []
    for count in (1, 2):
        with pinned_threads(count):
            finals.append(state_of(exam.played(executor=executor, workers=count)[0]))
    assert_same(*finals)


def check_repeatable(exam: Exam) -> None:
    first, second, other = (exam.played(2, seed=seed) for seed in (1, 1, 2))
    assert_same(state_of(first[0]), state_of(second[0]))
    assert_same(measured(first[1]), measured(second[1]))
    assert differs(state_of(first[0]), state_of(other[0])), "the seed does not matter"


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@exam(variants=False)
def test_number_of_workers_changes_no_bit(
    algorithm: Algorithm[Any], executor: ExecutorName, sit: Callable[..., Exam]
) -> None:
    check_workers_do_not_matter(sit(algorithm, torch.float32), executor)


@exam(variants=False)
def test_same_seed_same_bits_other_seed_other_result(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    check_repeatable(sit(algorithm, torch.float32))


# (e) checkpoints


@pytest.mark.parametrize("faulty", [False, True], ids=["healthy", "faulty"])
@exam()
def test_resumed_run_equals_uninterrupted_run(
    algorithm: Algorithm[Any], faulty: bool, sit: Callable[..., Exam], tmp_path: Path
) -> None:
    topology = topology_for(algorithm)
    if faulty:
        topology = Loss(Churn(topology, 0.3, 8), 0.3, 8)
    exam = sit(algorithm, torch.float32)
    whole, records = exam.played(4, topology=topology)
    started, first = exam.played(2, topology=topology)
    save_checkpoint(tmp_path / "state", started, {"note": 1})
    resumed = exam.simulation(topology=topology)
    assert load_checkpoint(tmp_path / "state", resumed) == {"note": 1}
    rest = [resumed.step() for _ in range(2)]
    assert resumed.round == whole.round
    assert_same(state_of(whole), state_of(resumed))
    assert_same(vars(whole.totals), vars(resumed.totals))
    assert_same(measured(records), measured([*first, *rest]))


# (f) to (h): what a network does to a node


class Cut(Topology):
    """Another topology without the links of some nodes, in which some nodes are offline."""

    def __init__(self, inner: Topology, alone: Sequence[int] = (), offline: Sequence[int] = ()) -> None:
        self.inner, self.alone, self.offline = inner, torch.tensor(alone), torch.tensor(offline)
        self.nodes, self.hub = inner.nodes, inner.hub
        self.directed, self.time_varying = inner.directed, inner.time_varying

    def graph(self, round: int) -> Graph:
        graph = self.inner.graph(round)
        kept = self.delivers(round, 0, graph.senders, graph.receivers)
        return Graph.from_links(self.nodes, graph.senders[kept], graph.receivers[kept])

    def online(self, round: int) -> Tensor:
        return ~torch.isin(torch.arange(self.nodes), self.offline)

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        return ~(torch.isin(senders, self.alone) | torch.isin(receivers, self.alone))


@exam()
def test_isolated_peer_goes_on_alone(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    """What the others do makes no difference to it, and it trains unless it needs a hub to.

    Nothing is measured: for that, hub algorithms hand out their model whatever the links are.
    """
    exam, inner = sit(algorithm), topology_for(algorithm)
    finals = []
    for alone in ([5], range(inner.nodes)):
        simulation = exam.simulation(topology=Cut(inner, alone=alone))
        before = state_of(simulation)
        for _ in range(3):
            simulation.step(evaluate=False)
        assert_finite(simulation)
        finals.append({name: value[5] for name, value in state_of(simulation).items()})
    assert_same(*finals, tolerance=1e-9)
    assert differs(finals[0], {name: value[5] for name, value in before.items()}) is not algorithm.facts.hub


@exam(variants=False)
def test_nobody_hears_anybody(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    """Empty inboxes for all: finite models, and nothing arrives."""
    inner = topology_for(algorithm)
    simulation, records = sit(algorithm).played(topology=Cut(inner, alone=range(inner.nodes)))
    assert_finite(simulation)
    assert int(simulation.totals.bytes_received.sum()) == 0
    for record in records:
        for evaluation in record.evaluations.values():
            assert bool(evaluation.loss.isfinite().all())


@exam(variants=False)
def test_peer_with_one_sample_and_peer_with_one_class_learn(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    exam = sit(algorithm, torch.float32)
    data = federation()
    assert int(data.train.sizes[3]) == 1
    assert int((data.label_histogram()[ONE_CLASS_PEER] > 0).sum()) == 1
    simulation, records = exam.played()
    assert_finite(simulation)
    losses = torch.stack([record.train_loss for record in records])
    for peer in (3, ONE_CLASS_PEER):
        taken = losses[:, peer][~losses[:, peer].isnan()]
        assert bool(taken.isfinite().all())
        if algorithm.settings().get("participation", 1.0) == 1.0:
            assert len(taken) == len(records)


@exam()
def test_churn_and_loss(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    """Those who are offline keep every bit of their state, nothing is lost from the books, twice the same."""
    exam, finals = sit(algorithm, torch.float32), []
    for _ in range(2):
        topology = Loss(Churn(topology_for(algorithm), 0.5, 2), 0.5, 2)
        simulation = exam.simulation(topology=topology)
        away = 0
        for number in range(4):
            before, offline = state_of(simulation), ~topology.online(number)
            record = simulation.step()
            away += int(offline.sum())
            after = state_of(simulation)
            assert_same({k: v[offline] for k, v in before.items()}, {k: v[offline] for k, v in after.items()})
            assert torch.equal(record.online, topology.online(number)[:PEERS])
            assert bool(record.train_loss[offline[:PEERS]].isnan().all())
            for traffic in record.traffic:
                assert not bool(offline[traffic.senders].any()), "an offline peer sent something"
                assert not bool((offline[traffic.receivers] & traffic.delivered).any())
        assert away > 3
        assert_finite(simulation)
        finals.append(state_of(simulation) | vars(simulation.totals))
    assert_same(*finals)


@exam(variants=False)
def test_everyone_offline_but_one(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    inner = topology_for(algorithm)
    topology = Cut(inner, offline=[peer for peer in range(PEERS) if peer != 2])
    simulation = sit(algorithm).simulation(topology=topology)
    before = state_of(simulation)
    simulation.step()
    simulation.step()
    others = [peer for peer in range(PEERS) if peer != 2]
    after = state_of(simulation)
    assert_same({k: v[others] for k, v in before.items()}, {k: v[others] for k, v in after.items()})
    assert_finite(simulation)
    assert int(simulation.totals.bytes_received[others].sum()) == 0


# (i) bytes


def each_link(graph: Graph, settings: dict[str, Any]) -> int:
    return len(graph.senders)


def pulls(graph: Graph, settings: dict[str, Any], same_cluster: bool = False) -> int:
    """Every peer gets a model from M of those that can reach it, or from all when they are fewer."""
    reach = graph.adjacency()
    if same_cluster:
        reach = reach & (CLUSTERS[:, None] == CLUSTERS[None, :])
    return int(reach.sum(1).clamp(max=settings["peers"]).sum())


def sampled(settings: dict[str, Any]) -> int:
    return round(settings["participation"] * PEERS)


def around_a_star(graph: Graph, settings: dict[str, Any]) -> int:
    """Each neighbour of one node sends to it, and is answered; here all nodes have as many neighbours."""
    answered = settings.get("broadcast") != "none"
    return int(graph.in_degree[0]) * (1 + answered)


BYTES_PER_ROUND: dict[str, Callable[[Graph, dict[str, Any]], int]] = {
    "local": lambda graph, s: 0,
    "d-psgd": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "dfedavgm": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "kd-pdfl": lambda graph, s: (
        around_a_star(graph, s) * (BODY_BYTES if s["share"] == "base" else MODEL_BYTES)
    ),
    "star-fedavg": lambda graph, s: around_a_star(graph, s) * MODEL_BYTES,
    "fedavg-plus": lambda graph, s: around_a_star(graph, s) * MODEL_BYTES,
    "blend-dfl": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "dfedpgp": lambda graph, s: each_link(graph, s) * (BODY_BYTES + MASS_BYTES),
    "osgp": lambda graph, s: each_link(graph, s) * (MODEL_BYTES + MASS_BYTES),
    # Of 24 and 18 weights, 11 and 10 are kept; 3 bytes of mask each; the biases.
    "dis-pfl": lambda graph, s: each_link(graph, s) * (4 * 21 + 6 + 4 * (HIDDEN + CLASSES)),
    "dfedsam": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "dfedavgm-p": lambda graph, s: each_link(graph, s) * BODY_BYTES,
    "gossip-fedavg": lambda graph, s: each_link(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "random-gossip": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "ppdl": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "ppdl-var": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "dac": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES * (1 + PEERS)),
    "dac-var": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES * (1 + PEERS)),
    "oracle": lambda graph, s: pulls(graph, s, same_cluster=True) * (MODEL_BYTES + NUMBER_BYTES),
    "fedavg": lambda graph, s: sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES),
    "fedper": lambda graph, s: sampled(s) * (2 * BODY_BYTES + NUMBER_BYTES),
    "fedrep": lambda graph, s: sampled(s) * (2 * BODY_BYTES + NUMBER_BYTES),
    "fedbabu": lambda graph, s: sampled(s) * (2 * BODY_BYTES + NUMBER_BYTES),
    "fedprox": lambda graph, s: sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES),
    "ditto": lambda graph, s: sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES),
    "per-fedavg": lambda graph, s: sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES),
    "pfedme": lambda graph, s: PEERS * MODEL_BYTES + sampled(s) * (MODEL_BYTES + NUMBER_BYTES),
    "pfedkd-wcl": lambda graph, s: (
        sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES * ("lastclient" in s["server_update"]))
    ),
}


@exam()
def test_bytes_are_those_that_the_paper_describes(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    name = next(name for name in algorithms if algorithms[name] is type(algorithm))
    assert name in BYTES_PER_ROUND, f"say in BYTES_PER_ROUND how many bytes {name} sends per round"
    simulation = sit(algorithm, torch.float32).simulation()
    expected = 0
    for number in range(3):
        record = simulation.step(evaluate=number != 1)  # measuring is not traffic
        this_round = BYTES_PER_ROUND[name](simulation.topology.graph(number), algorithm.settings())
        assert sum(int(traffic.bytes.sum()) for traffic in record.traffic) == this_round
        expected += this_round
    assert int(simulation.totals.bytes_sent.sum()) == expected
    assert int(simulation.totals.bytes_received.sum()) == expected  # nothing was lost


# (k) and (l): records, and states that nobody changes


@exam(variants=False)
def test_both_points_are_measured(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    simulation, records = sit(algorithm, torch.float32).played(2)
    for record in records:
        assert tuple(record.evaluations) == POINTS
        for evaluation in record.evaluations.values():
            assert evaluation.accuracy.shape == evaluation.loss.shape == (PEERS,)
            assert bool(((evaluation.accuracy >= 0) & (evaluation.accuracy <= 1)).all())
    assert algorithm.facts.measured in POINTS
    assert simulation.step(evaluate=False).evaluations == {}


def check_states_are_left_alone(exam: Exam) -> None:
    simulation = exam.simulation()
    for _ in range(2):
        given = [block.state for block in simulation.blocks]
        before = [{name: value.clone() for name, value in named_tensors(state)} for state in given]
        simulation.step()
        for state, copy in zip(given, before, strict=True):
            assert_same(copy, dict(named_tensors(state)))


@exam()
def test_a_round_leaves_the_state_it_was_given(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    check_states_are_left_alone(sit(algorithm))


# The exam can be failed: algorithms that break one rule each.

_FACTS = Facts(paper="none", measured="after_mixing", communication="one model to each neighbour")


@dataclass(frozen=True)
class NoiseByRow(ModelAlgorithm):
    """Draws by position in the block instead of by node id."""

    facts = _FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        noise = stream(0, "noise", node.round, torch.arange(node.rows)).uniform(CLASSES)
        yield Exchange()
        return ModelState({**state.params, "2.bias": state.params["2.bias"] + noise})


@dataclass(frozen=True)
class MeanOverRows(ModelAlgorithm):
    """Knows the mean of models that it never received."""

    facts = _FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        mine = node.train(state.params)
        inbox = yield Exchange(mine)
        mixed = average(mine, inbox)
        return ModelState({name: value - 0.1 * value.mean(0) for name, value in mixed.items()})


@dataclass(frozen=True)
class GlobalGenerator(ModelAlgorithm):
    """Draws from torch's global generator."""

    facts = _FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange()
        return ModelState({name: value + torch.rand_like(value) for name, value in state.params.items()})


@dataclass(frozen=True)
class InPlace(ModelAlgorithm):
    """Changes the state that it was given."""

    facts = _FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange()
        for value in state.params.values():
            value.mul_(0.9)
        return state


@pytest.mark.parametrize(
    ("algorithm", "check"),
    [
        (NoiseByRow(), check_shards_agree),
        (MeanOverRows(), check_shards_agree),
        (GlobalGenerator(), check_repeatable),
        (InPlace(), check_states_are_left_alone),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else value.__name__,
)
def test_the_exam_can_be_failed(
    algorithm: Algorithm[Any], check: Callable[[Exam], None], sit: Callable[..., Exam]
) -> None:
    with torch.random.fork_rng(), pytest.raises(AssertionError):
        check(sit(algorithm))
