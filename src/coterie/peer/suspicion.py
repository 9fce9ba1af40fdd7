"""Who behaves as no honest member does: counted, and named in the log, in few lines."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from torch import Tensor

from coterie.peer.exchange.metrics import Metrics

_log = logging.getLogger("coterie.peer")
_FAR, _ODD_ROUNDS = 3.0, 3  # how far, in how many rounds in a row, makes a member suspicious


@dataclass
class Suspicion:
    """name: of a member, by its number."""

    metrics: Metrics
    name: Callable[[int], str]
    _accused: set[tuple[int, int]] = field(default_factory=set)  # whom, in which round
    _odd_rounds: Counter[int] = field(default_factory=Counter)  # by member, in a row

    def accuse(self, number: int, round: int, text: str) -> None:
        """Somebody sent what cannot be honest; one line for each round."""
        self.metrics.implausible[self.name(number)] += 1
        if (number, round) not in self._accused:
            self._accused = {(who, when) for who, when in self._accused if when == round} | {(number, round)}
            _log.warning("what %s sent is refused: %s", self.name(number), text)

    def watch(self, far: Tensor, heard: Collection[int], round: int) -> None:
        """Somebody sends models that are far from all others', round after round.

        far: (nodes,) as a guard records it. heard: whose models came.
        """
        odd = {number for number, times in enumerate(far.tolist()) if times > _FAR}
        for number in odd:
            self.metrics.far[self.name(number)] += 1
            self._odd_rounds[number] += 1
            if self._odd_rounds[number] == _ODD_ROUNDS:
                _log.warning(
                    "round %d: in %d rounds in a row the models of %s were more than %g times as far from "
                    "ours as the others' are; the guard limits what they do. Ask its owner",
                    round,
                    _ODD_ROUNDS,
                    self.name(number),
                    _FAR,
                )
        for number in set(heard) - odd:
            self._odd_rounds.pop(number, None)
