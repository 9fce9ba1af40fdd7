"""The node that asks for a secure sum, and a whole secure sum within one process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from coterie.errors import SecureSumError
from coterie.protocol.secure_sum.fixed_point import FixedPoint, Words
from coterie.protocol.secure_sum.masks import KeyPair, add_keystream
from coterie.protocol.secure_sum.member import (
    COMMITMENT_BYTES,
    STEPS,
    Keys,
    OneTimeMember,
    PairwiseMember,
    Plan,
    Promise,
    Reveal,
    add_pair_mask,
    field_sum,
    ring_sum,
    seed_commitment,
    share_commitment,
)
from coterie.protocol.secure_sum.shamir import SHARE_BYTES, VECTOR_PRIME, combine, combine_vectors

Form: TypeAlias = Literal["pairwise", "one-time"]
A = TypeVar("A")
Count = TypeVar("Count", int, Tensor)


class Collector:
    """The node that asks for the sum: passes messages on, and lifts the masks of the sum at the end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._roster: dict[int, Keys] = {}
        self._sharers: list[int] = []
        self._masked: dict[int, Words] = {}
        self._promises: dict[int, Promise] = {}

    def roster(self, keys: Mapping[int, Keys]) -> dict[int, Keys]:
        """After `advertise`: the keys of those that answered, for all of them."""
        self.plan.require(keys, "advertise")
        self._roster = dict(keys)
        return self._roster

    def route(
        self, boxes: Mapping[int, Mapping[int, bytes]], promises: Mapping[int, Promise]
    ) -> dict[int, dict[int, bytes]]:
        """After `share`: the sealed boxes for each member that shared, by sender.

        promises: what each of them committed itself to.
        """
        self.plan.require(boxes, "share")
        self._promises = dict(promises)
        self._sharers = sorted(boxes)
        for sender in self._sharers:
            if {sender, *boxes[sender]} != set(self._roster):
                raise SecureSumError(f"member {sender} did not send shares to all others")
        return {
            to: {sender: boxes[sender][to] for sender in self._sharers if sender != to}
            for to in self._sharers
        }

    def promised(self, holder: int) -> dict[int, bytes]:
        """With the boxes for a member: what their senders promised about the shares in them."""
        return {
            sender: self._promises[sender].shares.get(holder, b"")
            for sender in self._sharers
            if sender != holder
        }

    def survivors(self, masked: Mapping[int, Words]) -> list[int]:
        """After `mask`: whose vectors are in the sum."""
        self.plan.require(masked, "mask")
        if len({len(vector) for vector in masked.values()}) > 1:
            raise SecureSumError("the members' vectors have different lengths")
        self._masked = dict(masked)
        return sorted(masked)

    def total(self, answers: Mapping[int, Any]) -> Tensor:
        """After `unmask`: the sum over the survivors."""
        self.plan.require(answers, "unmask")
        return self.plan.encoding.decode(self._unmasked(answers), len(self._masked))

    def _unmasked(self, answers: Mapping[int, Any]) -> Words:
        raise NotImplementedError


class PairwiseCollector(Collector):
    """Removes the survivors' self-masks, and the pair masks of those that dropped out."""

    def checked(self, holder: int, reveal: Reveal) -> Reveal:
        """A member's shares, if they are all that it was asked for and what their owners promised it."""
        left = set(self._sharers) - set(self._masked)
        if set(reveal.seeds) != set(self._masked) or set(reveal.keys) != left:
            raise SecureSumError("it did not give one share of each member's secret", {holder})
        for kind, shares in (("seed", reveal.seeds), ("key", reveal.keys)):
            for owner, share in shares.items():
                whole = self._promises[owner].shares.get(holder, b"")
                promised = whole[:COMMITMENT_BYTES] if kind == "seed" else whole[COMMITMENT_BYTES:]
                written = share.to_bytes(SHARE_BYTES, "little")
                if share_commitment(self.plan, kind, owner, holder, written) != promised:
                    raise SecureSumError(
                        f"it gave a wrong share of member {owner}'s {kind}: not the one that both knew",
                        {holder},
                    )
        return reveal

    def _unmasked(self, answers: Mapping[int, Reveal]) -> Words:
        total = ring_sum(self._masked.values())
        for member in self._masked:
            seeds = {self.plan.point(a): r.seeds[member] for a, r in answers.items() if member in r.seeds}
            add_keystream(total, self._seed(member, seeds), subtract=True)
        for member in self._sharers:
            if member not in self._masked:
                self._add_left_behind(total, member, answers)
        return total

    def _seed(self, member: int, shares: Mapping[int, int]) -> bytes:
        """The seed that the shares give, if it is the one that the member promised."""
        try:
            seed = combine(shares, self.plan.threshold)
        except SecureSumError as error:
            raise SecureSumError(str(error), {member} if len(shares) >= self.plan.threshold else ()) from None
        if seed_commitment(self.plan, member, seed) != self._promises[member].seed:
            raise SecureSumError(
                f"the shares that member {member} gave out are not those of the seed that it promised: the "
                "sum would be nonsense, and is not opened",
                {member},
            )
        return seed

    def _add_left_behind(self, total: Words, member: int, answers: Mapping[int, Reveal]) -> None:
        """What a member that dropped out would have added to cancel its masks with the survivors."""
        shares = {self.plan.point(a): r.keys[member] for a, r in answers.items() if member in r.keys}
        pair = KeyPair.of(combine(shares, self.plan.threshold))
        if pair.public != self._roster[member].masking:
            raise SecureSumError(f"the shares of member {member}'s key do not give its key", {member})
        for other in self._masked:
            add_pair_mask(total, pair, self._roster[other].masking, member, other, self.plan)


class OneTimeCollector(Collector):
    """Interpolates the sum of the survivors' masks and subtracts it."""

    def _unmasked(self, answers: Mapping[int, Words]) -> Words:
        shares = {self.plan.point(member): share for member, share in answers.items()}
        masks = combine_vectors(shares, self.plan.threshold)
        return field_sum((*self._masked.values(), np.uint32(VECTOR_PRIME) - masks))


_KINDS: dict[Form, tuple[type[PairwiseMember] | type[OneTimeMember], type[Collector]]] = {
    "pairwise": (PairwiseMember, PairwiseCollector),
    "one-time": (OneTimeMember, OneTimeCollector),
}


def agreed_encoding(exponents: Iterable[int]) -> FixedPoint:
    """The range that holds the values of all members, from the magnitude exponent of each."""
    return FixedPoint.within(max(exponents))


def majority(members: Count) -> Count:
    """The smallest threshold that a group, or each of many groups, may have."""
    return members // 2 + 1


def secure_sum_locally(
    vectors: Sequence[Tensor],
    threshold: int | None = None,
    *,
    dropped: Mapping[int, str] | None = None,
    form: Form = "pairwise",
    encoding: FixedPoint | None = None,
) -> Tensor:
    """The sum of the members' vectors, with all members run in this process message by message.

    threshold: default: a majority. dropped: member -> the step (advertise, share, mask, unmask) from
    which on it is silent. The sum is over those that got as far as `mask`.
    """
    member_kind, collector_kind = _KINDS[form]
    numbers = tuple(range(len(vectors)))
    threshold = majority(len(vectors)) if threshold is None else threshold
    plan = Plan(secrets.token_bytes(16), numbers, threshold, encoding or FixedPoint())
    members = {number: member_kind(number, vectors[number], plan) for number in numbers}
    last = {number: STEPS.index(step) for number, step in (dropped or {}).items()}

    def answers(step: str, among: Sequence[int], ask: Callable[[Any], A]) -> dict[int, A]:
        there = [m for m in among if last.get(m, len(STEPS)) > STEPS.index(step)]
        return {number: ask(members[number]) for number in there}

    collector = collector_kind(plan)
    roster = collector.roster(answers("advertise", numbers, lambda m: m.advertise()))
    shared = answers("share", list(roster), lambda m: m.share(roster))
    boxes = collector.route(shared, {number: members[number].promise() for number in shared})
    masked = answers("mask", list(boxes), lambda m: m.mask(boxes[m.number], collector.promised(m.number)))
    survivors = collector.survivors(masked)
    return collector.total(answers("unmask", survivors, lambda m: m.unmask(survivors)))
