"""Parameters that travel as bytes: by hand, what stays whole, bytes, guards and real peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peers_in_memory import SMALL, World, simulated

import coterie
from coterie.algorithms.blend_dfl import BlendDFL
from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.kin import Kin
from coterie.algorithms.osgp import OSGP
from coterie.algorithms.robust.guards import Clipping, Watched
from coterie.algorithms.robust.received import Around
from coterie.errors import ConfigError
from coterie.protocol.trees import Counters, row_bytes
from coterie.protocol.wrapping import InBytes, packed, unpacked
from coterie.testing import run_virtually

SETTING: dict[str, Any] = {
    "data": "digits",
    "peers": 4,
    "rounds": 3,
    "model": "mlp(16)",
    "execution": {"executor": "stacked", "workers": 1},
}


def test_rows_of_matrices_become_bytes_and_a_scale() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(2, 3, 4, 5)).astype("float32")
    bias, counter = torch.ones(2, 3), Counters(mu=torch.ones(2, 3, 3))
    tree = {"model": {"conv.weight": torch.from_numpy(weight), "conv.bias": bias}, "mass": counter}
    sent: Any = packed(tree)
    scale = np.abs(weight).max((2, 3)) / 127
    np.testing.assert_allclose(sent["model"]["conv.weight"]["scale"], scale, rtol=1e-6)
    steps = np.round(weight / scale[..., None, None])
    assert sent["model"]["conv.weight"]["8-bit"].dtype == torch.int8
    np.testing.assert_array_equal(sent["model"]["conv.weight"]["8-bit"], steps)
    assert sent["model"]["conv.bias"] is bias
    assert sent["mass"] is counter
    assert row_bytes(sent["model"]) == 60 + 3 * 4 + 3 * 4
    back: Any = unpacked(sent)
    assert back.keys() == tree.keys()
    half_a_step = scale[..., None, None] / 2 * (1 + 1e-5)
    assert (np.abs(back["model"]["conv.weight"].numpy() - weight) <= half_a_step).all()


def test_zeros_and_what_is_no_number_stay_so() -> None:
    zeros: Any = unpacked(packed({"a.b": torch.zeros(1, 2, 2)}))
    assert torch.equal(zeros["a.b"], torch.zeros(1, 2, 2))
    broken: Any = unpacked(packed({"a.b": torch.tensor([[[1.0, float("nan")], [1.0, 2.0]]])}))
    assert bool(broken["a.b"][0, 0].isnan().all())
    torch.testing.assert_close(broken["a.b"][0, 1], torch.tensor([1.0, 2.0]), atol=0.01, rtol=0)


def test_names_without_a_dot_travel_whole() -> None:
    """Only of a name with a dot is it known that it is a parameter, which may have to stay at home."""
    tree = {"weight": torch.ones(1, 2, 2)}
    assert packed(tree) == tree


@pytest.mark.parametrize("algorithm", ["d-psgd", "kin(private=never)", "fedavg"])
def test_a_quarter_of_the_bytes_and_nearly_the_same_models(algorithm: str) -> None:
    whole = coterie.simulate(algorithm, **SETTING)
    small = coterie.simulate(algorithm, **SETTING, payload="8-bit")
    sent = [float(run.frame("rounds")["bytes"].sum()) for run in (whole, small)]
    assert 0.25 < sent[1] / sent[0] < 0.33
    moved = 0.0
    for name, value in whole.model(0).items():
        moved = max(moved, float((small.model(0)[name] - value).abs().max()))
        torch.testing.assert_close(small.model(0)[name], value, atol=0.02, rtol=0)
    assert moved > 0


@pytest.mark.parametrize("algorithm", ["osgp", "gossip-fedavg", "local"])
def test_what_is_sealed_or_conserved_is_whole(algorithm: str) -> None:
    whole, small = (coterie.simulate(algorithm, **SETTING, payload=how) for how in ("whole", "8-bit"))
    for name, value in whole.model(0).items():
        assert torch.equal(small.model(0)[name], value)


@pytest.mark.parametrize(
    "algorithm",
    [
        InBytes(DPSGD()),
        InBytes(Kin(peers=2)),
        InBytes(OSGP()),
        InBytes(Around(DPSGD(), Watched(Clipping(0.1)))),
    ],
    ids=["d-psgd", "kin", "osgp", "guarded"],
)
def test_real_peers_do_as_the_simulator(tmp_path: Path, algorithm: Any) -> None:
    world = World(algorithm, tmp_path, SMALL)
    run_virtually(world.play())
    expected, _, _ = simulated(world)
    for number, peer in world.peers_by_number.items():
        for name, value in algorithm.personal(peer.state).items():
            torch.testing.assert_close(value[0], expected[name][number], rtol=1e-4, atol=1e-5)


def test_a_wrapped_method_still_says_which_tasks_it_is_for() -> None:
    class Odd(BlendDFL):
        def check_task(self, task: Any) -> None:
            raise ConfigError("not for this")

    with pytest.raises(ConfigError, match="not for this"):
        InBytes(Odd()).check_task(None)  # type: ignore[arg-type]
