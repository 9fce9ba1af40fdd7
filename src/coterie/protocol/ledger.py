"""What sealed sums give away together: a ledger of the sums that a collector had, and the bound on them.

A single sum hides its summands. Several do not: sum{a,b,c,d} - sum{b,c,d} = a, and so does a difference of
sums of different rounds, but for what the models have changed. The bound makes that precise. What is
particular to the model of member m in round t is taken as

    x_mt = u_m + v_mt,   var u_m = alike,   var v_mt = 1 - alike        all independent, of equal size

u_m stays for a while, and v_mt is new in every round: the drift, which is noise to whoever compares rounds.
With A the matrix of sums and members, and t_k the round of sum k, the best linear estimate of u_m from the
sums explains this share of its variance:

    opened_m = alike (A' C^-1 A)_mm,   C_kl = |G_k and G_l| (alike + (1 - alike) [t_k = t_l])

One sum over n members opens alike / n of each; where it is 1, a model is found out. So nothing but groups
and rounds decides, which everyone who takes part in a sum knows: collectors and members come to the same
result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, log2
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.errors import DamagedRunError

_ROUNDING = 1e-9
_HEADS, _MEMBERS = "heads", "members"


@dataclass(frozen=True)
class Bound:
    """What a collector may learn from sealed sums; everyone in an experiment has the same.

    smallest: fewest members of a sum. opened: largest share of a single model. rounds: how long a sum counts.
    alike: how much of what is particular to a model stays from round to round. largest: the largest absolute
    value in a sum; None: nothing is agreed.
    """

    smallest: int = 3
    opened: float = 0.75
    rounds: int = 10
    alike: float = 0.9
    largest: float | None = None

    def beyond(self, exponent: int) -> str:
        """Why values within 2^exponent are not within the agreed range; empty if they are."""
        if self.largest is None or exponent <= ceil(log2(self.largest)):
            return ""
        return f"values within 2^{exponent} are beyond the agreed {self.largest:g}"


BOUND = Bound()


class Sum(NamedTuple):
    """A sealed sum that was opened."""

    round: int
    members: frozenset[int]


def too_small(members: int, smallest: int) -> str:
    return f"a sum over {members} would say too much about each: the smallest group is {smallest}"


def opened_shares(sums: Collection[Sum], alike: float) -> dict[int, float]:
    """How much of each member's model these sums of one collector open together, from 0 to 1."""
    members = sorted(frozenset().union(*(one.members for one in sums)))
    taking_part = np.array([[float(m in one.members) for m in members] for one in sums])
    rounds = np.array([one.round for one in sums])
    staying = np.where(rounds[:, None] == rounds, 1.0, alike)
    covariance = (taking_part @ taking_part.T) * staying
    inverse = np.linalg.pinv(covariance, rcond=1e-10, hermitian=True)
    shares = alike * np.einsum("km,kl,lm->m", taking_part, inverse, taking_part)
    return dict(zip(members, shares.tolist(), strict=True))


@dataclass
class Ledger:
    """The sums of some collectors, as far as they are known here, and what may be added to them."""

    bound: Bound = field(default_factory=Bound)
    _sums: dict[int, list[Sum]] = field(default_factory=dict)  # by collector, oldest first

    def refusal(self, collector: int, round: int, members: Iterable[int], more: Iterable[Sum] = ()) -> str:
        """Why a collector must not have this sum beside those that it had; empty if it may.

        more: sums that it had, and of which this ledger may not know.
        """
        asked = Sum(round, frozenset(members))
        if len(asked.members) < self.bound.smallest:
            return too_small(len(asked.members), self.bound.smallest)
        had = dict.fromkeys((*self.had(collector, round), *more))
        counted = [*(one for one in had if one != asked), asked]
        if all(one.members == asked.members for one in counted):
            return ""  # however often one group is asked, no model stands out
        shares = opened_shares(counted, self.bound.alike)
        member = max(shares, key=lambda m: (shares[m], -m))
        if shares[member] <= self.bound.opened + _ROUNDING:
            return ""
        return (
            f"with the {len(counted) - 1} sums of the last {self.bound.rounds} rounds it would open "
            f"{shares[member]:.0%} of the model of member {member}, and {self.bound.opened:.0%} is agreed"
        )

    def note(self, collector: int, round: int, members: Iterable[int]) -> None:
        """A sum that was opened, or may have been."""
        had, one = self.had(collector, round), Sum(round, frozenset(members))
        self._sums[collector] = had if one in had else sorted([*had, one], key=lambda each: each.round)

    def had(self, collector: int, round: int) -> list[Sum]:
        """Those sums of a collector that one of this round is seen together with."""
        return [one for one in self._sums.get(collector, ()) if one.round > round - self.bound.rounds]

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint; nothing if nothing was noted."""
        rows = [(collector, one) for collector, sums in sorted(self._sums.items()) for one in sums]
        if not rows:
            return {}
        heads = [(collector, one.round, len(one.members)) for collector, one in rows]
        members = [m for _, one in rows for m in sorted(one.members)]
        return {_HEADS: torch.tensor(heads), _MEMBERS: torch.tensor(members)}

    def recall(self, tensors: Mapping[str, Tensor], collectors: Iterable[int] | None = None) -> None:
        """Go on with what `tensors` gave before, of some collectors or of all."""
        self._sums, own = {}, None if collectors is None else set(collectors)
        if not tensors:
            return
        heads, members = tensors.get(_HEADS), tensors.get(_MEMBERS)
        if heads is None or members is None or heads.ndim != 2 or heads.shape[1] != 3 or members.ndim != 1:
            raise DamagedRunError("what a checkpoint holds of sealed sums cannot be read")
        sizes = heads[:, 2].tolist()
        if heads.is_floating_point() or min(sizes, default=1) < 1 or sum(sizes) != len(members):
            raise DamagedRunError("what a checkpoint holds of sealed sums does not fit together")
        groups = members.split(sizes)
        for (collector, round, _), group in zip(heads.tolist(), groups, strict=True):
            if own is None or collector in own:
                self._sums.setdefault(collector, []).append(Sum(round, frozenset(group.tolist())))
