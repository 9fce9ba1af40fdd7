"""What a stranger gets wrong with tasks and metrics: one line that says what to do, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]

LOADERS = """
import numpy as np
import coterie

x, amounts = np.arange(80.0).reshape(40, 2), np.linspace(0, 1, 40)


def numbers():
    return coterie.from_arrays(x, amounts, task="regression")


def untold():
    return coterie.from_arrays(x, amounts)


def together():
    return x, amounts
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, n = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60)
    tokens = n[:, None] * np.arange(6) % 5
    np.savez("amounts.npz", x=x, y=x[:, 0])
    np.savez("classes.npz", x=x, y=n % 3)
    np.savez("rows.npz", x=x, y=(x > 0).astype(int))
    np.savez("twos.npz", x=x, y=2 * (x > 0).astype(int))
    np.savez("tokens.npz", x=tokens[:, :-1], y=tokens[:, 1:])
    Path("own.py").write_text(LOADERS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("amounts.npz", 'for numbers to predict, say task="regression"'),
        ("rows.npz", 'for several labels per sample, say task="multi-label"'),
        ("rows.npz --task binary", 'say task="multi-label"'),
        ("classes.npz --task binary", "needs labels 0 and 1, and the data has 3 classes; use task 'class"),
        ("twos.npz --task multi-label", "a value that is neither 0 nor 1"),
        ("amounts.npz --task regression --set metrics=rsme", "did you mean rmse or mae?"),
        (
            "amounts.npz --task regression --set metrics=auc",
            "has no metric 'auc'; choose from: mae, r2, rmse",
        ),
        ("amounts.npz --task regression --set metrics=mae,mae", "'mae' is named twice"),
        ("amounts.npz --task regresion", "did you mean regression?"),
        (
            "tokens.npz --task next-token --partition pathological(1)",
            "sequences with a target at each position",
        ),
        ("own.py:numbers", "the data has numbers; choose task 'regression', or"),
        ("digits --task regression", "the data has classes; choose task 'classification' or 'binary', or"),
        ("own.py:untold --task regression", 'say task="regression"'),
        ("own.py:together --task regression", "for all peers together are coterie.from_arrays(x, y)"),
    ],
)
def test_it_is_told_in_a_line(coterie: Command, files: None, arguments: str, words: str) -> None:
    before = sorted(Path().iterdir())
    done = coterie("run", "--peers", "2", "--rounds", "1", "--data", *arguments.split())
    assert done.exit_code == 2, done.stdout
    assert words in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert [path for path in sorted(Path().iterdir()) if path.name != "__pycache__"] == before


def test_metrics_need_no_brackets(coterie: Command, files: None) -> None:
    quick = ["--set", "execution.executor=stacked", "--set", "execution.workers=1", "--no-plots"]
    task = ["--data", "amounts.npz", "--task", "regression", "--set", "metrics=mae,rmse"]
    done = coterie("run", "--peers", "2", "--rounds", "1", "--run-dir", "run", *task, *quick)
    assert done.exit_code == 0, done.stderr
    assert "mae_after_local" in Path("run/metrics.csv").read_text().splitlines()[0]
    assert "rmse_after_local" in Path("run/metrics.csv").read_text().splitlines()[0]
