"""DAC-var: DAC whose tau grows with time, as PPDL's authors compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coterie.algorithms.dac import DAC
from coterie.protocol import Facts


@dataclass(frozen=True)
class DACVar(DAC):
    """DAC that explores at first and exploits later.

        tau(t) = 2 a / (1 + exp(-0.2 t)) - a + 1,   a = tau

    so tau(0) = 1, and tau(t) goes to tau + 1.

    Differs from the paper: the schedule is that of the authors' code. Everything else, and what differs, is
    as in dac.
    """

    facts = Facts(
        paper="Listo Zec et al. 2022",
        measured="after_local",
        communication="one model and one score vector from each of M peers",
    )

    def tau_in(self, round: int) -> float:
        return 2 * self.tau / (1 + math.exp(-0.2 * round)) - self.tau + 1
