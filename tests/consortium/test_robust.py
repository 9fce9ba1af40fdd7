"""Plausible but bad models: the guard keeps what was learned, real peers do as the simulator, and name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lying import QUICK
from peers_in_memory import Size, World, simulated

import coterie
from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.osgp import OSGP
from coterie.algorithms.robust.attacks import Dissensus, Gaussian, Lying, SignFlip
from coterie.algorithms.robust.guards import Clipping, Near, Watched
from coterie.algorithms.robust.received import Around
from coterie.errors import ConfigError
from coterie.testing import run_virtually

DIGITS: dict[str, Any] = {
    "data": "digits",
    "partition": "dirichlet(0.5)",
    "topology": "full",
    "model": "mlp(64)",
    "peers": 5,
    "rounds": 15,
    "training": {"epochs": 1, "batch_size": 16, "lr": 0.1},
}


def honest_accuracy(honest: int = 4, **changes: Any) -> float:
    """Of the first peers, in %: the others may lie."""
    run = coterie.simulate(algorithm="d-psgd", **{**DIGITS, **changes})
    return 100 * float(run.accuracy_over_time("after_mixing")[-1][:honest].mean())


def test_the_plain_guard_loses_at_most_two_points() -> None:
    clean = honest_accuracy()
    assert honest_accuracy(robust="near") == clean, "where nobody lies it changes nothing, bit by bit"
    for lie in ("sign-flip", "gaussian"):
        faults = {"byzantine": {lie: "4"}}
        assert honest_accuracy(faults=faults) < clean - 20
        assert honest_accuracy(faults=faults, robust="near") >= clean - 2


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["near(2)", "clipping", "balance", "geometric-median"])
@pytest.mark.parametrize("lie", ["sign-flip", "gaussian", "scaling(100)", "ipm(2)"])
def test_guards_hold_against_coarse_lies(guard: str, lie: str) -> None:
    faults = {"byzantine": {lie: "8-9"}}
    more = {"peers": 10, "rounds": 15}
    assert honest_accuracy(8, robust=guard, faults=faults, **more) >= honest_accuracy(8, **more) - 6


@pytest.mark.parametrize(
    "algorithm",
    [
        Around(Around(DPSGD(), Watched(Clipping())), Lying(SignFlip(), (3,))),
        Around(Around(DPSGD(), Watched(Near())), Lying(Gaussian(), (1,))),
        Around(Around(OSGP(), Watched(Clipping(0.1))), Lying(Dissensus(), (0, 2))),
    ],
    ids=["clipping", "near", "push-sum"],
)
def test_real_peers_do_as_the_simulator(tmp_path: Path, algorithm: Any) -> None:
    world = World(algorithm, tmp_path, Size(peers=5, rounds=4, samples=6), pace=QUICK)
    run_virtually(world.play())
    expected, _, _ = simulated(world)
    for number, peer in world.peers_by_number.items():
        for name, value in algorithm.personal(peer.state).items():
            assert torch.allclose(value[0], expected[name][number], atol=1e-5), f"{name} of {number}"


def test_the_alarm_names_who_is_far_from_all_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    algorithm = Around(Around(DPSGD(), Watched(Near())), Lying(SignFlip(), (3,)))
    world = World(algorithm, tmp_path, Size(peers=5, rounds=6, samples=6), pace=QUICK)
    run_virtually(world.play())
    alarms = [text for text in caplog.messages if "more than 3 times as far" in text]
    assert len(alarms) >= 4, "one of each receiver"
    assert all("the models of peer-3 were" in text for text in alarms)
    assert world.peers_by_number[0].metrics.far["peer-3"] >= 3
    assert set(world.peers_by_number[0].metrics.far) == {"peer-3"}


def test_labels_are_turned_round_for_liars_only() -> None:
    from coterie.experiments.setup.config import resolve
    from coterie.experiments.setup.prepare import prepare

    plain = prepare(resolve({**DIGITS, "algorithm": "d-psgd"})).federation
    lied = prepare(
        resolve({**DIGITS, "algorithm": "d-psgd", "faults": {"byzantine": {"label-flip": "1"}}})
    ).federation
    for peer in range(5):
        before, after = plain.y[plain.train.of(peer)], lied.y[lied.train.of(peer)]
        assert torch.equal(after, 9 - before if peer == 1 else before)
        assert torch.equal(lied.y[lied.test.of(peer)], plain.y[plain.test.of(peer)]), "tests stay true"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"robust": "nearest"}, "near"),
        ({"robust": "near", "algorithm": "gossip-fedavg"}, "sealed = false"),
        ({"faults": {"byzantine": {"sign-flip": "9"}}}, "not within the peers"),
        ({"faults": {"byzantine": {"sign-flop": "1"}}}, "sign-flip"),
        ({"faults": {"byzantine": {"sign-flip": "1", "mimic": "0-1"}}}, "listed under"),
    ],
)
def test_mistakes_get_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        coterie.simulate(**{"algorithm": "d-psgd", **DIGITS, **changes})
