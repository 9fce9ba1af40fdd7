"""Nothing in a run is done for one peer after another in Python: 9,000 peers take the calls of 6,000."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import coterie
from coterie.data.sources import synthetic
from coterie.learning import executor

FEW, MANY = 6_000, 9_000  # more than are listed one by one
_OURS = str(Path(coterie.__file__).parent)


class Calls:
    """Counts calls of Python functions and of built-in ones, by who calls and what, in all threads."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call") or not frame.f_code.co_filename.startswith(_OURS):
            return
        place = f"{frame.f_code.co_filename.removeprefix(_OURS)}:{frame.f_code.co_name}"
        self.found[place if event == "call" else f"{place} -> {getattr(argument, '__name__', argument)}"] += 1

    def __enter__(self) -> Calls:
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def calls_of(peers: int, folder: Path, **changed: Any) -> Counter[str]:
    experiment: dict[str, Any] = {
        "algorithm": "d-psgd",
        "data": "synthetic(0.5,0.5,size=4,clusters=3)",
        "model": "mlr",
        "topology": "random-regular(4)",
        "peers": peers,
        "rounds": 2,
        "execution": {"executor": "stacked", "checkpoint_seconds": 0.0, "workers": 1},
    }
    with Calls() as calls:
        coterie.simulate(**experiment | changed, run_dir=folder)
    return calls.found


@pytest.fixture
def one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of rows may grow in number with the peers: here all fit into one."""
    for name in ("_CACHE_BYTES", "_STEP_BYTES", "_FORWARD_BYTES", "_DRAWN_BYTES"):
        monkeypatch.setattr(executor, name, 1 << 30)
    monkeypatch.setattr(synthetic, "_PIECES", 1 << 20)


@pytest.mark.usefixtures("one_chunk")
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"algorithm": "random-gossip(1)"},
        {"algorithm": "oracle"},
        {"algorithm": "dfedpgp", "topology": "directed(4)"},
        {"splitting": {"validation": 0.3}, "faults": {"churn": 0.2, "loss": 0.1}},
    ],
    ids=["d-psgd", "random-gossip", "oracle", "dfedpgp", "churn"],
)
def test_calls_do_not_grow_with_the_peers(changed: dict[str, Any], tmp_path: Path) -> None:
    calls_of(8, tmp_path / "warm", **changed)  # what is imported and cached at the first time
    few, many = (calls_of(peers, tmp_path / str(peers), **changed) for peers in (FEW, MANY))
    grown = {place: (few[place], n) for place, n in many.items() if n - few[place] > (MANY - FEW) // 10}
    assert not grown
