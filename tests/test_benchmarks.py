"""The benchmarks' own parts: what is compared, how noise is judged, and how rivals are run."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from coterie.algorithms.blend_dfl import BlendDFL
from coterie.learning import CLASSIFICATION
from coterie.protocol import Samples

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def rows(path: Path, **ratios: list[float]) -> Path:
    entries = [{"what": what, "ratios": found, "better": "lower"} for what, found in ratios.items()]
    path.write_text(json.dumps({"format": "coterie-benchmarks-1", "rows": entries}))
    return path


def test_a_row_keeps_the_ratio_of_every_turn(benchmarks: Any) -> None:
    timing = benchmarks("timing")
    taken = iter([4.0, 2.0, 6.0, 2.0, 9.0, 4.0])
    a, b = timing.by_turns(lambda: next(taken), lambda: next(taken), turns=3)
    row = timing.Row("a / b", a, b, 2.1, at_least=False)  # the best of each would be 4 / 2
    assert (row.ratio, row.ratios, row.verdict) == (2.25, [2.0, 3.0, 2.25], "NO")
    assert row.entry()["better"] == "lower"
    assert timing.Row("once", 3.0, 2.0, None, at_least=True).ratios == [1.5]


def test_runs_differ_only_beyond_their_noise(benchmarks: Any, tmp_path: Path) -> None:
    comparing = benchmarks("comparing")
    names = {
        "same": [1.0, 1.2, 1.1],
        "slower": [1.0, 1.1, 1.05],
        "faster": [2.0],
        "close": [1.0, 1.01],
        "gone": [1.0],
    }
    before = comparing.read(rows(tmp_path / "a.json", **names))
    changed = {"same": [1.15, 1.3, 1.2], "slower": [1.5, 1.6, 1.4], "faster": [1.0], "close": [1.02, 1.03]}
    after = comparing.read(rows(tmp_path / "b.json", **changed))
    found = {what: comparing.verdict(before[what], after[what]) for what in changed}
    assert found == {
        "same": "within the noise",
        "slower": "WORSE",
        "faster": "better",
        "close": "within the noise",
    }
    table = comparing.compared(tmp_path / "a.json", tmp_path / "b.json")
    assert table.row_count == 5
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(SystemExit, match="holds no benchmarks"):
        comparing.read(tmp_path / "c.json")


def test_a_rival_is_timed_or_says_why_not(benchmarks: Any, tmp_path: Path) -> None:
    driver = benchmarks("rivals.driver")
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(
        "import time\nnow = time.monotonic()\nprint('{\"ends\": [%f, %f, %f]}' % (now, now + 1, now + 3))"
    )
    bad.write_text("raise ValueError('of no use')")
    taken = driver.run(Path(sys.executable), good, driver.TINY)
    assert taken.per_round == pytest.approx(1.5, abs=1e-4)
    assert taken.first > 0
    assert taken.peak > 1 << 20
    assert driver.run(Path(sys.executable), bad, driver.TINY) == "does not run: ValueError: of no use"
    table = driver.table({"coterie": [taken], "other": "does not run: x"}, driver.TINY)
    assert table.row_count == 2


def test_every_rival_has_a_script_and_pinned_versions(benchmarks: Any) -> None:
    driver = benchmarks("rivals.driver")
    known = driver.tomllib.loads((ROOT / "benchmarks" / "rivals" / "requirements.toml").read_text())
    assert {"plain", "pfl", "flower", "jax", "fedjax"} <= set(known)
    for name, entry in known.items():
        assert (ROOT / "benchmarks" / "rivals" / f"{name}_work.py").is_file()
        assert all("==" in one for one in entry["install"])


def test_the_plain_reading_of_blend_dfl_weighs_samples_by_eq_10_to_12(benchmarks: Any) -> None:
    """Counts 3 and 1: beta = 1/3 and 1, over their mean 2/3 that is 1/2 and 3/2; half way in mid-run."""
    weights = benchmarks("plain_blend").class_weights(torch.tensor([0, 2, 0, 0]), 0.5)
    assert weights.tolist() == pytest.approx([0.75, 1.25, 0.75, 0.75])


def test_the_plain_reading_of_blend_dfl_has_the_loss_of_ours(benchmarks: Any) -> None:
    """Of three clients on a ring all are near each other; in the first round there is no teacher."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 8, 4, generator=generator), torch.randint(3, (3, 8), generator=generator)
    plain = benchmarks("plain_blend").PlainBlendDFL(x, y, epochs=1, batch=4, rounds=2)
    before = plain.loss(0, 1, x[1], y[1]).item()
    assert before == pytest.approx(functional.cross_entropy(plain.models[1](x[1]), y[1]).item())
    plain.round(0)
    teacher = torch.stack([model(x[1]) for model in plain.trained]).mean(0)
    z, ours = plain.models[1](x[1]), BlendDFL()
    samples = Samples(y[1:2], torch.tensor([0]), torch.arange(8)[None], None)
    w = ours.weights(samples, 0.5, True)
    kd = 9 * CLASSIFICATION.divergence(*(CLASSIFICATION.softened(v[None], 3.0) for v in (teacher, z)))
    expected = (w * (CLASSIFICATION.losses(z[None], y[1:2]) + kd)).sum() / w.sum()
    assert plain.loss(1, 1, x[1], y[1]).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_profile_sees_the_workers(benchmarks: Any) -> None:
    """Convolutions run in other threads than the one that asks."""
    profiling, work = benchmarks("profiling"), benchmarks("rivals.work")
    found = profiling.shares("looped", work.torch_network("cnn"), peers=2, samples=32)
    assert sum(found.values()) == pytest.approx(1.0)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found["aten::convolution_backward"] > 0
    assert profiling.table("small", found).row_count == profiling._SHOWN + 1


def test_the_limit_of_the_networks_is_their_products(benchmarks: Any) -> None:
    """Counted by running them: outputs of a layer times the numbers that each of them needs."""
    driver, work = benchmarks("rivals.driver"), benchmarks("rivals.work")
    for model, shape in work.SHAPES.items():
        counted: list[int] = []

        def count(layer: Any, _: Any, out: torch.Tensor, counted: list[int] = counted) -> None:
            counted.append(out.numel() * layer.weight[0].numel())

        network = work.torch_network(model)
        for layer in network:
            if hasattr(layer, "weight"):
                layer.register_forward_hook(count)
        network(torch.zeros(1, *shape))
        assert driver._PRODUCTS[model] == sum(counted)
        steps = benchmarks("local_steps").operations(network, shape)
        assert steps == 6 * driver._PRODUCTS[model] - 2 * counted[0]
