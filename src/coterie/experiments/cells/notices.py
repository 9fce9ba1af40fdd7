"""How far a run is, in a few numbers: what progress bars show, here and of runs that go elsewhere.

Nothing here needs PyTorch, so that the process of a board on Ray is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.experiments.runs.records import History
    from coterie.simulation import RoundRecord

_RECENT = 20  # rounds whose time predicts the rest


@dataclass(frozen=True)
class Notice:
    """Of a run, after a round."""

    done: int  # rounds
    before: int  # of these, how many an earlier process had done
    each: float  # seconds that a round takes
    metric: str  # the main one
    mean: float | None  # of it over peers, as it was measured last; None: not yet
    memory: tuple[int, ...]  # bytes of each worker

    @classmethod
    def of(
        cls, record: RoundRecord, history: History, point: str, before: int = 0, memory: tuple[int, ...] = ()
    ) -> Notice:
        """point: of the round, at which the algorithm is measured."""
        recent = history.seconds[-_RECENT:]
        means = (one.mean(history.main, point) for one in reversed(history.measurements))
        return cls(
            done=record.round + 1,
            before=before,
            each=sum(recent) / len(recent),
            metric=history.main,
            mean=next((mean for mean in means if mean is not None), None),
            memory=record.memory or memory,
        )


class Notices:
    """A board: the last notice of each run, until it is read. On Ray it is an actor."""

    def __init__(self) -> None:
        self._unread: dict[str, Notice] = {}

    def leave(self, name: str, notice: Notice) -> None:
        self._unread[name] = notice

    def read(self) -> dict[str, Notice]:
        """What was left since the last time."""
        found, self._unread = self._unread, {}
        return found
