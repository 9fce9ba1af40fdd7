"""A member of a secure sum, as a state machine of four steps; what it is told and answers are messages.

    advertise -> Keys                    its public keys for this session
    share(roster) -> boxes               shares of its secrets, sealed for each other member
    promise() -> Promise                 hashes of these secrets and shares: who gives others later, lies
    mask(boxes, promised) -> words       its encoded vector under masks
    unmask(survivors) -> shares          what lifts the masks of the sum, and of nothing else

Each of the four steps is taken once. Two kinds: `PairwiseMember` (Bonawitz et al. 2017) and `OneTimeMember`
(Tjell and Wisniewski 2021, as PPDL describes it).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from torch import Tensor

from coterie.errors import SecureSumError
from coterie.protocol.secure_sum.fixed_point import FixedPoint, Words
from coterie.protocol.secure_sum.masks import KeyPair, add_keystream, commitment, seal, unseal
from coterie.protocol.secure_sum.shamir import SHARE_BYTES, VECTOR_PRIME, random_vector, split, split_vector

Boxes: TypeAlias = Mapping[int, bytes]
COMMITMENT_BYTES = 32
STEPS = ("advertise", "share", "mask", "unmask")


@dataclass(frozen=True)
class Plan:
    """What all members agree on beforehand.

    A threshold above half of the members makes sure that no collector on its own, even one that tells
    members different things, gets what lifts two different masks of one member; helpers among the members
    change that (docs/privacy.md).
    """

    session: bytes  # never used twice
    members: tuple[int, ...]
    threshold: int
    encoding: FixedPoint = field(default_factory=FixedPoint)

    def __post_init__(self) -> None:
        n = len(self.members)
        if n < 2 or len(set(self.members)) < n or n > self.encoding.most_members:
            raise SecureSumError(
                f"a secure sum needs 2 to {self.encoding.most_members} different members, not {self.members}"
            )
        if not n // 2 < self.threshold <= n:
            raise SecureSumError(
                f"the threshold of {n} members must be from {n // 2 + 1} to {n}, not {self.threshold}"
            )

    def point(self, member: int) -> int:
        """Where a member's shares are taken."""
        return self.members.index(member) + 1

    def require(self, present: Collection[int], step: str) -> None:
        """Refuse to go on with members that are strangers or too few."""
        if not set(present) <= set(self.members):
            raise SecureSumError(f"step {step}: {sorted(set(present) - set(self.members))} are no members")
        if len(present) < self.threshold:
            raise SecureSumError(
                f"only {len(present)} of {len(self.members)} members are left after step {step}, and the "
                f"threshold is {self.threshold}: nothing is revealed; repeat with members that answer"
            )

    def label(self, purpose: str, *members: int) -> bytes:
        """Binds keys and boxes to this session and these members."""
        return b"/".join((b"coterie", purpose.encode(), self.session, *(b"%d" % m for m in members)))


@dataclass(frozen=True)
class Keys:
    """A member's public keys: one to seal shares for it, one for masks."""

    sealing: bytes
    masking: bytes


@dataclass(frozen=True)
class Promise:
    """What a member commits itself to before anything is masked.

    seed: the commitment to its self-mask's seed. shares: for each member, the commitments to the shares of
    the seed and of the masking key that it gets, one after the other. Empty for members with one-time masks.
    """

    seed: bytes = b""
    shares: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Reveal:
    """A member's shares of the survivors' self-masks, and of the masking keys of those that dropped out."""

    seeds: Mapping[int, int] = field(repr=False)
    keys: Mapping[int, int] = field(repr=False)


class Member:
    """What both kinds have in common: order of the steps, keys, sealed boxes."""

    def __init__(self, number: int, vector: Tensor, plan: Plan) -> None:
        self.number, self.plan = number, plan
        self._vector = plan.encoding.encode(vector)
        self._sealing, self._masking = KeyPair.fresh(), KeyPair.fresh()
        self._roster: dict[int, Keys] = {}
        self._received: dict[int, bytes] = {}
        self._steps_taken = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(number={self.number}, next={(*STEPS, 'nothing')[self._steps_taken]})"

    def advertise(self) -> Keys:
        self._step("advertise")
        return Keys(self._sealing.public, self._masking.public)

    def share(self, roster: Mapping[int, Keys]) -> dict[int, bytes]:
        """Sealed shares for every other member of the roster."""
        self._step("share")
        self.plan.require(roster, "advertise")
        if roster.get(self.number) != Keys(self._sealing.public, self._masking.public):
            raise SecureSumError(f"the roster does not hold the keys of member {self.number}")
        self._roster = dict(roster)
        contents = self._contents(sorted(roster))
        self._received[self.number] = contents.pop(self.number)
        return {
            other: seal(self._key(other), content, self.plan.label("box", self.number, other))
            for other, content in contents.items()
        }

    def promise(self) -> Promise:
        """After `share`: what this member commits itself to."""
        return Promise()

    def mask(self, boxes: Boxes, promised: Boxes | None = None) -> Words:
        """The vector under its masks, given the boxes of all members that shared.

        promised: what each of them committed itself to about the shares in the box; None: nothing.
        """
        self._step("mask")
        self.plan.require({*boxes, self.number}, "share")
        bad = set()
        for other, box in boxes.items():
            if other not in self._roster or other == self.number:
                raise SecureSumError(f"member {other} sent shares but was not in the roster")
            try:
                content = unseal(self._key(other), box, self.plan.label("box", other, self.number))
            except SecureSumError:
                bad.add(other)
                continue
            if promised is not None and self._committed(other, content) != promised.get(other):
                bad.add(other)
            self._received[other] = content
        if bad:
            raise SecureSumError(
                f"the shares of members {sorted(bad)} were altered, meant for somebody else, or are not what "
                "was promised",
                bad,
            )
        return self._masked(sorted(self._received))

    def _step(self, name: str) -> None:
        if self._steps_taken >= len(STEPS) or STEPS[self._steps_taken] != name:
            due = (*STEPS, "nothing")[self._steps_taken]
            raise SecureSumError(f"member {self.number} was asked to {name}, but its next step is {due}")
        self._steps_taken += 1

    def _survivors(self, survivors: Collection[int]) -> set[int]:
        self._step("unmask")
        self.plan.require(survivors, "mask")
        if not {self.number} <= set(survivors) <= set(self._received):
            raise SecureSumError(
                f"member {self.number} reveals only sums with itself and members that shared with it"
            )
        return set(survivors)

    def _key(self, other: int) -> bytes:
        pair = sorted((self.number, other))
        return self._sealing.agree(self._roster[other].sealing, self.plan.label("sealing", *pair))

    def _contents(self, members: Iterable[int]) -> dict[int, bytes]:
        raise NotImplementedError

    def _committed(self, other: int, content: bytes) -> bytes:
        """What the owner of a box for this member must have promised about its content."""
        return b""

    def _masked(self, sharers: Iterable[int]) -> Words:
        raise NotImplementedError


class PairwiseMember(Member):
    """Bonawitz et al.: masks that cancel between pairs, and a self-mask that hides until the end."""

    def __init__(self, number: int, vector: Tensor, plan: Plan) -> None:
        super().__init__(number, vector, plan)
        self._seed = secrets.token_bytes(32)
        self._promise = Promise()

    def promise(self) -> Promise:
        return self._promise

    def unmask(self, survivors: Collection[int]) -> Reveal:
        """For a survivor a share of its self-mask, for any other a share of its key; never both."""
        alive = self._survivors(survivors)
        seeds, keys = {}, {}
        for other, content in self._received.items():
            if other in alive:
                seeds[other] = int.from_bytes(content[:SHARE_BYTES], "little")
            else:
                keys[other] = int.from_bytes(content[SHARE_BYTES:], "little")
        return Reveal(seeds, keys)

    def _contents(self, members: Iterable[int]) -> dict[int, bytes]:
        points = {member: self.plan.point(member) for member in members}
        seeds = split(self._seed, self.plan.threshold, list(points.values()))
        keys = split(self._masking.private, self.plan.threshold, list(points.values()))
        contents = {
            member: b"".join(share[point].to_bytes(SHARE_BYTES, "little") for share in (seeds, keys))
            for member, point in points.items()
        }
        shares = {
            member: share_commitments(self.plan, self.number, member, contents[member]) for member in points
        }
        self._promise = Promise(seed_commitment(self.plan, self.number, self._seed), shares)
        return contents

    def _committed(self, other: int, content: bytes) -> bytes:
        return share_commitments(self.plan, other, self.number, content)

    def _masked(self, sharers: Iterable[int]) -> Words:
        total = self._vector.copy()
        add_keystream(total, self._seed)
        for other in sharers:
            if other != self.number:
                public = self._roster[other].masking
                add_pair_mask(total, self._masking, public, self.number, other, self.plan)
        return total


def seed_commitment(plan: Plan, owner: int, seed: bytes) -> bytes:
    return commitment(seed, plan.label("seed", owner))


def share_commitment(plan: Plan, kind: str, owner: int, holder: int, share: bytes) -> bytes:
    """kind: of what it is a share, seed or key. No nonce is needed: a single share is a random number."""
    return commitment(share, plan.label(f"share of {kind}", owner, holder))


def share_commitments(plan: Plan, owner: int, holder: int, content: bytes) -> bytes:
    """To both shares in a box; to nothing if it does not hold two."""
    if len(content) != 2 * SHARE_BYTES:
        return b""
    seed, key = content[:SHARE_BYTES], content[SHARE_BYTES:]
    return share_commitment(plan, "seed", owner, holder, seed) + share_commitment(
        plan, "key", owner, holder, key
    )


def add_pair_mask(total: Words, own: KeyPair, public: bytes, number: int, other: int, plan: Plan) -> None:
    """What `number` adds and `other` subtracts: together nothing."""
    low, high = sorted((number, other))
    add_keystream(total, own.agree(public, plan.label("mask", low, high)), subtract=number == high)


class OneTimeMember(Member):
    """Tjell and Wisniewski: a one-time mask, shared as a vector; only the sum of shares is revealed."""

    def __init__(self, number: int, vector: Tensor, plan: Plan) -> None:
        super().__init__(number, vector, plan)
        self._mask = random_vector(len(self._vector))

    def unmask(self, survivors: Collection[int]) -> Words:
        """The sum of the survivors' shares: a share of the sum of their masks."""
        parts = [np.frombuffer(self._received[member], dtype="<u4") for member in self._survivors(survivors)]
        return field_sum(parts)

    def _contents(self, members: Iterable[int]) -> dict[int, bytes]:
        points = {member: self.plan.point(member) for member in members}
        shares = split_vector(self._mask, self.plan.threshold, list(points.values()))
        return {member: shares[point].astype("<u4").tobytes() for member, point in points.items()}

    def _masked(self, sharers: Iterable[int]) -> Words:
        return field_sum((self._vector, self._mask))


def ring_sum(vectors: Iterable[Words]) -> Words:
    """Sum modulo 2^32."""
    first, *rest = vectors
    total = first.copy()
    for vector in rest:
        total += vector
    return total


def field_sum(vectors: Iterable[Words]) -> Words:
    """Sum in the field of 2^32 - 5 elements."""
    first, *rest = vectors
    total = first.astype(np.uint64)
    for vector in rest:
        total += vector
    total %= np.uint64(VECTOR_PRIME)
    return total.astype(np.uint32)
