"""Workers that die and nodes that vanish in the middle of a round end no run, and change no number."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ray_cluster import Nodes, three_nodes

import coterie
from coterie.experiments.cluster.connecting import answers, the_ray
from coterie.experiments.cluster.fleet import Fleet
from coterie.experiments.cluster.placing import cut
from coterie.experiments.cluster.ray_blocks import RayBlocks

ROUNDS = 5
WHAT: dict[str, Any] = {
    "algorithm": "random-gossip",
    "data": "digits",
    "partition": "dirichlet(0.5)",
    "topology": "ring",
    "peers": 6,
    "rounds": ROUNDS,
}
HOW = {"executor": "looped", "checkpoint_seconds": 0.0}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with three_nodes() as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> coterie.Run:
    return coterie.simulate(**WHAT, execution=HOW)


def assert_same(ours: coterie.Run, theirs: coterie.Run) -> None:
    assert torch.equal(ours.accuracy_over_time("after_local"), theirs.accuracy_over_time("after_local"))
    assert torch.equal(ours.accuracy_over_time("after_mixing"), theirs.accuracy_over_time("after_mixing"))
    for name, value in ours.params.items():
        assert torch.equal(value, theirs.params[name]), name
    for name, total in vars(ours.totals).items():
        assert torch.equal(total, vars(theirs.totals)[name]), name


class Accident:
    """Happens once, when what was sent in a round is about to be carried."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, round: int, what: Callable[[RayBlocks], None]
    ) -> None:
        self.happened = False
        exchange, ask = RayBlocks.exchange, RayBlocks.ask

        def asked(blocks: RayBlocks, method: str, *arguments: Any) -> list[Any]:
            self._now = method == "begin" and arguments[0] == round
            return ask(blocks, method, *arguments)

        def carried(blocks: RayBlocks, deliveries: Any) -> Any:
            if self._now and not self.happened:
                self.happened = True
                what(blocks)
            return exchange(blocks, deliveries)

        monkeypatch.setattr(RayBlocks, "ask", asked)
        monkeypatch.setattr(RayBlocks, "exchange", carried)


def kill_one(blocks: RayBlocks) -> None:
    _, pid = answers(the_ray(), blocks._workers[1].where.remote())
    os.kill(pid, signal.SIGKILL)


def test_a_worker_is_killed(
    nodes: Nodes, alone: coterie.Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    accident, workers = Accident(monkeypatch, 2, kill_one), {}
    run = coterie.simulate(
        **WHAT,
        execution={**HOW, "engine": "ray", "workers": 3},
        run_dir=tmp_path / "run",
        observer=lambda record, history: workers.update({record.round: len(record.memory)}),
    )
    assert accident.happened
    assert [workers.pop(round) for round in (0, 1)] == [3, 3]
    assert workers.pop(ROUNDS - 1) == 3  # another took its place, as soon as its CPU was free
    assert set(workers) == {2, 3}
    assert_same(alone, run)
    assert_same(alone, coterie.open(tmp_path / "run"))


def test_a_node_is_gone_and_another_comes(
    nodes: Nodes, alone: coterie.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    accident, workers = Accident(monkeypatch, 1, lambda _: nodes.remove(nodes.others.pop())), []

    def watch(record: Any, history: Any) -> None:
        workers.append(len(record.memory))
        if record.round == 2:
            nodes.others.append(nodes.add())

    run = coterie.simulate(**WHAT, execution={**HOW, "engine": "ray", "workers": 3}, observer=watch)
    assert accident.happened
    assert workers == [3, 2, 2, 2, 3]
    assert_same(alone, run)


@dataclass(frozen=True)
class Slow(coterie.ModelAlgorithm):
    """Keeps the worker that hosts peer 0 from its work for a while in each round."""

    facts = coterie.Facts(paper="none", measured="after_mixing", communication="one model per link")

    def round(self, state: coterie.ModelState, node: coterie.Node) -> coterie.Round[coterie.ModelState]:
        mine = node.train(state.params)
        node.measure(after_local=mine)
        inbox = yield coterie.Exchange(mine)
        if 0 in node.ids and node.rows < WHAT["peers"]:
            time.sleep(2.0)  # far more than others take, also on a busy machine
        return coterie.ModelState(coterie.average(mine, inbox))


def test_peers_move_away_from_a_slow_worker(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are those that the workers measured."""
    hosted: list[list[int]] = []
    begin = RayBlocks.__init__

    def begun(blocks: RayBlocks, *given: Any) -> None:
        begin(blocks, *given)
        hosted.append([len(ids) for ids in blocks.ids])

    by_speed = Fleet._cut

    def evenly_at_first(fleet: Fleet) -> list[torch.Tensor]:
        """What the look before the first round tells of a busy machine may be anything."""
        return cut(fleet._weights, [1.0] * fleet.count) if fleet._clock is None else by_speed(fleet)

    monkeypatch.setattr(RayBlocks, "__init__", begun)
    monkeypatch.setattr(Fleet, "_cut", evenly_at_first)
    cloudpickle = the_ray().cloudpickle
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    what = {**WHAT, "algorithm": Slow()}
    try:
        run = coterie.simulate(**what, execution={**HOW, "engine": "ray", "workers": 3})
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    first, second = hosted  # a second cut after three rounds, and no third, which would be the same
    assert second[0] < first[0]
    assert sum(second) == sum(first) == WHAT["peers"]
    assert_same(coterie.simulate(**what, execution=HOW), run)
