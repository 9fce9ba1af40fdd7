"""PPDL-var: PPDL whose q falls with time (Listo Zec et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms.ppdl import PPDL
from coterie.errors import ConfigError
from coterie.protocol import Facts


@dataclass(frozen=True)
class PPDLVar(PPDL):
    """PPDL that explores at first and exploits later.

        q(t) = (q - q_last) * q_decay^(t-1) + q_last,  q(0) = q

    Rounds 0 and 1 both use q, since the authors' code sets the value of round t after the update of
    round t. Everything else, and what differs from the paper, is as in ppdl.
    """

    q: float = 0.5
    q_last: float = 0.07
    q_decay: float = 0.9

    facts = Facts(
        paper="Listo Zec et al. 2025",
        measured="after_local",
        communication="one sealed sum over M peers",
        sealed=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.q_last <= self.q:
            raise ConfigError(f"q_last must be from 0 to q ({self.q}), not {self.q_last}")
        if not 0 < self.q_decay <= 1:
            raise ConfigError(f"q_decay must be above 0 and at most 1, not {self.q_decay}")

    def q_in(self, round: int) -> float:
        return float((self.q - self.q_last) * self.q_decay ** max(round - 1, 0) + self.q_last)
