"""bfloat16 by autocast: close to float32, not equal to it, and refused where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from training_lab import Branches, dense, peers, seeded, stacked

from coterie import simulate
from coterie.data import Federation
from coterie.errors import ConfigError
from coterie.learning import Executor, ExecutorName, Workers, cross_entropy, require_precision
from coterie.learning.local_steps import LocalWork
from coterie.protocol import Params
from coterie.randomness import stream
from coterie.training import Training


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as pool:
        yield pool


def single(data: Federation) -> Federation:
    return Federation(**{**vars(data), "x": data.x.float()})


def train(executor: Executor, data: Federation) -> tuple[Params, torch.Tensor]:
    rows = torch.arange(data.peers)
    work = LocalWork.resolve(Training(epochs=3, batch_size=4, lr=0.1, momentum=0.5), 0, {})
    start = stacked(executor.module, data.peers)
    return executor.train(
        start, data, rows, stream(9, "batches", 0, rows), work, cross_entropy, executor.trainable
    )


@pytest.mark.parametrize("build", [dense, Branches], ids=["dense", "branches"])
@pytest.mark.parametrize("name", ["stacked", "looped"])
def test_training_is_close_to_float32(name: ExecutorName, build: type[nn.Module], workers: Workers) -> None:
    module, data = seeded(build).float(), single(peers())
    exact, exact_losses = train(Executor(name, module, workers), data)
    found, losses = train(Executor(name, module, workers, "bfloat16"), data)
    torch.testing.assert_close(losses, exact_losses, rtol=0.05, atol=0.02)
    for key, value in found.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, exact[key], rtol=0.1, atol=0.05)
        assert not torch.equal(value, exact[key]), "it was not used"


@pytest.mark.parametrize("executor", ["stacked", "looped", "auto"])
def test_a_run_learns_as_well(executor: str) -> None:
    runs = [
        simulate(
            algorithm="d-psgd", peers=4, rounds=4, execution={"executor": executor, "precision": precision}
        )
        for precision in ("float32", "bfloat16")
    ]
    means = [float(run.personal_accuracy.mean()) for run in runs]
    assert means[0] > 0.6
    assert means[1] == pytest.approx(means[0], abs=0.05)


def test_a_device_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    require_precision("bfloat16", device)
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: False)
    require_precision("float32", device)
    with pytest.raises(ConfigError, match=r"execution\.precision 'bfloat16' cannot be used on device 'cpu'"):
        require_precision("bfloat16", device)
