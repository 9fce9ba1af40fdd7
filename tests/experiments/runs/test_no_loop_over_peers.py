"""Nothing in a run is done for one peer after another in Python: 9,000 peers take the steps of 6,000."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import coterie
from coterie.algorithms.d_psgd import DPSGD
from coterie.data.sources import synthetic
from coterie.learning import executor
from coterie.protocol import ModelState, Node, Round

FEW, MANY = 6_000, 9_000  # more than are listed one by one
_OURS = (str(Path(coterie.__file__).parent), __file__)


class Steps:
    """Counts how often each line of ours is reached, in all threads: a loop comes back to its line."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        """A function is called: those of other packages are not looked into."""
        return self.line if frame.f_code.co_filename.startswith(_OURS) else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.found[f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"] += 1
        return self.line

    def __enter__(self) -> Steps:
        self.before = sys.gettrace(), threading.gettrace()  # those of a coverage measurement
        threading.settrace(self)
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        mine, of_threads = self.before
        sys.settrace(mine)
        threading.settrace(of_threads)  # type: ignore[arg-type]  # None is what it was


def steps_of(peers: int, **changed: Any) -> Counter[str]:
    experiment: dict[str, Any] = {
        "algorithm": "d-psgd",
        "data": "synthetic(0.5,0.5,size=4,clusters=3)",
        "model": "mlr",
        "topology": "random-regular(4)",
        "peers": peers,
        "rounds": 1,
        "execution": {"executor": "stacked", "checkpoint_seconds": 0.0, "workers": 1},
    }
    with Steps() as steps:
        coterie.simulate(**experiment | changed)
    return steps.found


def grown(few: Counter[str], many: Counter[str]) -> dict[str, tuple[int, int]]:
    """Lines that more peers reach more often, by a tenth of these peers or more, with their counts."""
    return {place: (few[place], n) for place, n in many.items() if n - few[place] > (MANY - FEW) // 10}


@pytest.fixture(autouse=True)
def one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of rows may grow in number with the peers: here all fit into one."""
    for name in ("_CACHE_BYTES", "_STEP_BYTES", "_FORWARD_BYTES", "_DRAWN_BYTES"):
        monkeypatch.setattr(executor, name, 1 << 30)
    monkeypatch.setattr(synthetic, "_PIECES", 1 << 20)


@pytest.mark.parametrize(
    "changed",
    [
        {"algorithm": "random-gossip(1)"},
        {"algorithm": "oracle"},
        {"algorithm": "dfedpgp", "topology": "directed(4)"},
        {"splitting": {"validation": 0.3}, "faults": {"churn": 0.2, "loss": 0.1}},
    ],
    ids=["random-gossip", "oracle", "dfedpgp", "churn"],
)
def test_steps_do_not_grow_with_the_peers(changed: dict[str, Any]) -> None:
    assert not grown(*(steps_of(peers, **changed) for peers in (FEW, MANY)))


def test_nor_with_records_checkpoints_pictures_and_a_report(tmp_path: Path) -> None:
    assert not grown(*(steps_of(peers, run_dir=tmp_path / str(peers), rounds=2) for peers in (FEW, MANY)))


def test_a_loop_over_peers_is_seen() -> None:
    few, many = (steps_of(peers, algorithm=Slow()) for peers in (FEW, MANY))
    seen = {place.split()[-1]: times for place, times in grown(few, many).items()}
    assert set(seen) == {"calls_for_each", "adds_for_each", "yields_for_each"}
    for times in seen.values():
        assert times == pytest.approx((FEW, MANY), abs=1)  # a loop looks once more whether there is another


@dataclass(frozen=True)
class Slow(DPSGD):
    """D-PSGD that goes through its peers one after another, in three ways."""

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        calls_for_each(node)
        adds_for_each(node)
        sum(yields_for_each(node))
        return (yield from super().round(state, node))


def calls_for_each(node: Node) -> None:
    for row in node.ids:
        int(row)


def adds_for_each(node: Node) -> int:
    """No function is called in this loop."""
    total = 0
    for row in node.ids:
        total += row
    return total


def yields_for_each(node: Node) -> Iterator[int]:
    """This loop is driven from C."""
    for row in node.ids:
        yield int(row)
