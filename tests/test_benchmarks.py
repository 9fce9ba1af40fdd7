"""The benchmarks' own parts: what is compared, how noise is judged, and how rivals are run."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

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
    taken = iter([4.0, 2.0, 6.0, 2.0, 5.0, 4.0])
    a, b = timing.by_turns(lambda: next(taken), lambda: next(taken), turns=3)
    row = timing.Row("a / b", a, b, 3.0, at_least=False)
    assert (row.ratio, row.ratios, row.verdict) == (2.0, [2.0, 3.0, 1.25], "yes")
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
