"""What a member of a secure sum refuses: steps that do not fit, and keys that are not the others' own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import RefusedError
from coterie.peer.exchange.membership import Position, Sign, Verify
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.sealed.bodies import (
    Advertised,
    encode_parts,
    pack,
    pack_claim,
    pack_letters,
    pack_reveal,
    unpack,
    unpack_letters,
    unpack_reveal,
    unpack_shared,
)
from coterie.peer.exchange.sealed.party import Party
from coterie.peer.exchange.sealed.sealing import Sealing
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Claim, SealStep
from coterie.peer.trust.authority import Authority
from coterie.peer.trust.cards import Card, card_of_authority
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import Roster
from coterie.protocol.ledger import Bound, Ledger
from coterie.protocol.secure_sum import Keys, Reveal
from coterie.protocol.secure_sum.member import STEPS
from coterie.testing import run_virtually

ALL_STEPS = ("measure", *STEPS)
COLLECTOR, PLACE, SESSION = 9, Position(3, 1), "ab" * 16


class Nobody:
    """A membership that knows no names: a member needs them only to count bytes."""

    def roster(self) -> dict[int, Any]:
        return {}


def sealing(number: int, sign: Sign | None = None, verify: Verify | None = None) -> Sealing:
    """A member of which one collector may ask its part."""
    party = Party(
        f"peer-{number}",
        number,
        transport=None,  # type: ignore[arg-type]  # a member only answers
        membership=Nobody(),  # type: ignore[arg-type]
        changed=Signal(),
        metrics=Metrics(),
        sign=sign,
        verify=verify,
        ledger=Ledger(Bound(smallest=2, opened=1.0)),  # the steps themselves, for small groups, too
    )
    made = Sealing(party, patience=1.0, at=lambda: PLACE)
    made.open(PLACE, torch.linspace(-1, number, 50), {COLLECTOR})
    return made


@dataclass
class Group:
    """Members, and a collector that may ask them anything."""

    members: dict[int, Sealing]
    session: str = SESSION
    exponent: int = 4
    threshold: int = 2

    @classmethod
    def of(cls, *numbers: int) -> Group:
        return cls({number: sealing(number) for number in numbers})

    def head(self, step: str, **changes: Any) -> SealStep:
        whole = {"members": tuple(self.members), "threshold": self.threshold, "exponent": self.exponent}
        head = {"sender": "peer-9", "round": 3, "slot": 1, "step": step, "session": self.session}
        return SealStep(**{**head, **whole, **changes})

    def ask(
        self, number: int, step: str, body: bytes = b"", caller: int = COLLECTOR, **changes: Any
    ) -> bytes:
        return self.members[number].take(caller, self.head(step, **changes), body)[1]

    def until(self, step: str) -> dict[int, bytes]:
        """All steps before this one, for everyone; the bodies for this one."""
        bodies = dict.fromkeys(self.members, b"")
        for name in ALL_STEPS[: ALL_STEPS.index(step)]:
            answers = {n: self.ask(n, name, bodies[n]) for n in self.members}
            if name == "advertise":
                bodies = dict.fromkeys(self.members, pack(answers))
            elif name == "share":
                shared = {n: unpack_shared(answer, answers, n) for n, answer in answers.items()}
                bodies = {
                    n: pack_letters(
                        {k: boxes[n] for k, (boxes, _) in shared.items() if k != n},
                        {k: promise.shares[n] for k, (_, promise) in shared.items()},
                    )
                    for n in shared
                }
            elif name == "mask":
                bodies = {n: self.claimed(n, list(self.members)) for n in self.members}
        return bodies

    def claimed(self, number: int, survivors: list[int], **changes: Any) -> bytes:
        """A claim to the sum over these, for which one member vouches: it knows of nobody else."""
        head = {"sender": "peer-9", "round": 3, "slot": 1, "session": self.session}
        claim = Claim(**{**head, "members": tuple(survivors), **changes})
        self.members[number].vouching.answer(COLLECTOR, claim, PLACE.round)
        return pack_claim(claim, {number: b""})

    def refuses(self, number: int, step: str, body: bytes = b"", **changes: Any) -> str:
        with pytest.raises(RefusedError) as refusal:
            self.ask(number, step, body, **changes)
        assert refusal.value.reason == "sealing"
        return refusal.value.text


def masked(group: Group) -> None:
    """All have given their masked vectors, and nothing is claimed yet."""
    bodies = group.until("mask")
    for number, body in bodies.items():
        group.ask(number, "mask", body)


def pack_claim_as(content: bytes) -> bytes:
    return encode_parts({"claim": content})


def test_one_exchange_has_one_sum() -> None:
    group = Group.of(1, 2, 3)
    bodies = group.until("unmask")
    assert "has not begun" in group.refuses(1, "advertise", session="cd" * 16)
    group.ask(1, "unmask", bodies[1])
    assert "masks were lifted already" in group.refuses(1, "measure", session="cd" * 16)


def repeated(threshold: int = 3) -> Group:
    """Four members whose first sum got as far as their masked vectors, and was begun again."""
    group = Group({n: sealing(n) for n in (1, 2, 3, 4)}, threshold=threshold)
    group.until("unmask")
    group.session = "cd" * 16
    for number in (1, 2, 3):
        group.ask(number, "measure")
    return group


def test_a_sum_is_repeated_with_fewer_members() -> None:
    group = repeated()
    group.ask(1, "advertise", members=(1, 2, 3))
    assert "was given up" in group.refuses(
        1, "unmask", group.claimed(1, [1, 2, 3, 4], session=SESSION), session=SESSION
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"members": (1, 2, 3, 4)},
        {"members": (1, 2, 3, 5)},
        {"members": (1, 2, 3), "threshold": 2},
    ],
)
def test_a_repeated_sum_cannot_be_another_one(changes: dict[str, Any]) -> None:
    """With a smaller threshold, or other members, two sums that differ in one model could be opened."""
    assert "fewer members than the first, and the same threshold" in repeated().refuses(
        1, "advertise", **changes
    )


def test_a_sum_is_not_repeated_for_ever() -> None:
    group = Group.of(1, 2, 3)
    for session in ("ab", "cd", "ef"):
        group.ask(1, "measure", session=session * 16)
    assert "begun 3 times" in group.refuses(1, "measure", session="99" * 16)


def test_of_two_attempts_at_most_one_is_opened() -> None:
    """Whoever gives in to the second has given up the first: five members, every choice of who does."""
    numbers = (1, 2, 3, 4, 5)
    for size in range(6):
        for moved in itertools.combinations(numbers, size):
            group = Group({n: sealing(n) for n in numbers}, threshold=3)
            bodies = group.until("unmask")
            for number in moved:
                group.ask(number, "measure", session="cd" * 16)
            first = 0
            for number in numbers:
                try:
                    first += bool(group.ask(number, "unmask", bodies[number]))
                except RefusedError:
                    assert number in moved
            assert first < group.threshold or len(moved) < group.threshold


@pytest.mark.parametrize("spoiled", ["box", "promise"])
def test_a_member_says_whose_shares_are_of_no_use(spoiled: str) -> None:
    group = Group.of(1, 2, 3)
    boxes, promised = unpack_letters(group.until("mask")[1])
    if spoiled == "box":
        boxes[2] = boxes[2][:-1] + bytes([boxes[2][-1] ^ 1])
    else:
        promised[2] = bytes(64)
    answer, content = group.members[1].take(COLLECTOR, group.head("mask"), pack_letters(boxes, promised))
    assert (answer.accused, content) == ((2,), b"")


def test_keys_are_advertised_once() -> None:
    """Or one session could have two sums, over groups that differ in one member."""
    group = Group.of(1, 2, 3)
    group.until("share")
    assert "already" in group.refuses(1, "advertise")
    assert "already" in group.refuses(1, "advertise", members=(1, 2))


@pytest.mark.parametrize("step", STEPS)
def test_a_sum_begins_with_measure(step: str) -> None:
    assert "has not begun" in Group.of(1, 2, 3).refuses(1, step)


def test_no_step_is_left_out_or_repeated() -> None:
    group = Group.of(1, 2, 3)
    group.until("advertise")
    assert "before advertise" in group.refuses(1, "mask", pack({}))
    bodies = group.until("share")
    assert "next step is share" in group.refuses(2, "mask", pack({}))
    assert "next step is share" in group.refuses(2, "unmask", group.claimed(2, [1, 2, 3]))
    group.ask(1, "share", bodies[1])
    assert "next step is mask" in group.refuses(1, "share", bodies[1])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"members": (2, 3)}, "leaves out this member"),
        ({"exponent": -3}, "the range of its values"),
        ({"members": (1,)}, "needs 2 to"),
        ({"members": (1, 1, 2)}, "different members"),
        ({"threshold": 1}, "must be from 2 to 3"),
        ({"members": (1, 2, 3, 4), "threshold": 2}, "must be from 3 to 4"),
        ({"members": (1, 2, COLLECTOR)}, "could subtract its own part"),
    ],
)
def test_a_plan_that_would_reveal_too_much_is_refused(changes: dict[str, Any], text: str) -> None:
    group = Group.of(1, 2, 3)
    group.until("advertise")
    assert text in group.refuses(1, "advertise", **changes)
    assert "before advertise" in group.refuses(1, "share", pack({}))


def test_a_stranger_gets_nothing() -> None:
    group = Group.of(1, 2, 3)
    group.until("unmask")
    for step in ALL_STEPS:
        assert "gives nothing to you" in group.refuses(1, step, caller=8)


def test_an_exchange_that_is_over_is_over() -> None:
    group = Group.of(1, 2)
    group.members[1].close()
    with pytest.raises(RefusedError, match="stale"):
        group.ask(1, "measure")
    with pytest.raises(RefusedError, match="stale"):
        group.ask(2, "measure", round=2)


@pytest.mark.parametrize(
    ("survivors", "text"),
    [
        ([1], "only 1 of 3 members are left after step mask"),
        ([2, 3], "reveals only sums with itself"),
        ([1, 7], "[7] are no members"),
    ],
)
def test_survivors_must_be_enough_and_known(survivors: list[int], text: str) -> None:
    group = Group.of(1, 2, 3)
    masked(group)
    assert text in group.refuses(1, "unmask", group.claimed(1, survivors))
    assert "next step is nothing" in group.refuses(1, "unmask", group.claimed(2, [1, 2, 3]))


@pytest.mark.parametrize("body", [b"", b"{", b"[1, 2", b"[true, 1]", b'{"1": 2}', b"[" * 100_000])
def test_unreadable_bodies_are_refused(body: bytes) -> None:
    group = Group.of(1, 2, 3)
    group.until("unmask")
    group.refuses(1, "unmask", body)
    assert "not readable" in group.refuses(1, "unmask", pack_claim_as(body))
    other = Group.of(1, 2, 3)
    other.until("share")
    other.refuses(1, "share", body)
    other.refuses(1, "mask", body)


@settings(max_examples=60, deadline=None)
@given(step=st.sampled_from(STEPS), data=st.data())
def test_whatever_a_collector_sends_is_answered_or_refused(step: str, data: st.DataObject) -> None:
    """The true message of each step with one piece replaced, or noise."""
    group = Group.of(1, 2, 3)
    true = group.until(step)[1]
    start = data.draw(st.integers(0, len(true)))
    end = data.draw(st.integers(start, len(true)))
    body = true[:start] + data.draw(st.binary(max_size=40)) + true[end:]
    reason, accused = "sealing", set[int]()
    try:
        answer, _ = group.members[1].take(COLLECTOR, group.head(step), body)
        accused = set(answer.accused)
    except RefusedError as refusal:
        reason = refusal.reason
    assert reason == "sealing"
    assert accused <= {2, 3}


def test_the_size_of_a_step_is_bounded() -> None:
    member = sealing(1)
    head = Group.of(1, 2).head("mask")
    run_virtually(member.admit(COLLECTOR, head, 6000))
    with pytest.raises(RefusedError, match="oversized"):
        run_virtually(member.admit(COLLECTOR, head, 10_000))


@pytest.mark.parametrize("first", [[1, 2, 3], [1, 2], [1, 3]])
@pytest.mark.parametrize("second", [[1, 2, 3], [1, 2], [1, 3]])
def test_nobody_reveals_both_shares_of_a_member(first: list[int], second: list[int]) -> None:
    group = Group.of(1, 2, 3)
    masked(group)
    reveal = unpack_reveal(group.ask(1, "unmask", group.claimed(1, first)))
    assert set(reveal.seeds) == set(first)
    assert set(reveal.keys) == {1, 2, 3} - set(first)
    group.refuses(1, "unmask", group.claimed(2, second))
    group.refuses(1, "advertise")
    group.refuses(1, "measure", session="cd" * 16)


def test_a_collector_that_tells_members_different_things_opens_nobody() -> None:
    """Whatever lists of survivors it chooses: never `threshold` shares of both secrets of one member."""
    numbers = (1, 2, 3)
    lists = [
        [n for n in numbers if n in chosen]
        for size in (2, 3)
        for chosen in itertools.combinations(numbers, size)
    ]
    for told in itertools.product(lists, repeat=3):
        if not all(number in survivors for number, survivors in zip(numbers, told, strict=True)):
            continue
        group = Group.of(*numbers)
        masked(group)
        reveals = [
            unpack_reveal(group.ask(number, "unmask", group.claimed(number, survivors)))
            for number, survivors in zip(numbers, told, strict=True)
        ]
        for member in numbers:
            seeds = sum(member in reveal.seeds for reveal in reveals)
            keys = sum(member in reveal.keys for reveal in reveals)
            assert seeds < group.threshold or keys < group.threshold


# --- signed keys ---------------------------------------------------------------------------------


@pytest.fixture
def identities(tmp_path: Path) -> dict[int, Identity]:
    return {n: Identity.create(tmp_path / f"peer-{n}", f"peer-{n}") for n in (1, 2, 3, COLLECTOR)}


def card(identity: Identity, number: int) -> Card:
    return Card(
        name=identity.name,
        number=number,
        address=f"host:{1000 + number}",
        certificate=identity.certificate_pem,
    )


def signing_group(identities: Mapping[int, Identity], session: str = SESSION) -> Group:
    """Three members, each with a roster of all others."""
    members = {}
    for number in (1, 2, 3):
        roster = Roster.load(identities[number].folder)
        if not roster.members:
            roster.add(*(card(identities[n], n) for n in identities if n != number))
        members[number] = sealing(number, identities[number].sign, roster.verify)
    return Group(members, session)


def test_members_prove_whose_keys_they_are(identities: dict[int, Identity]) -> None:
    group = signing_group(identities)
    reveals = group.until("unmask")
    assert all(unpack_reveal(group.ask(n, "unmask", body)).seeds for n, body in reveals.items())


def cards_of(group: Group) -> dict[int, bytes]:
    return unpack(group.until("share")[1])


def own_keys() -> Keys:
    """Keys of which the collector knows the private halves."""
    return Keys(b"\x05" * 32, b"\x07" * 32)


Forgery = Callable[[dict[int, bytes], Mapping[int, Identity]], bytes]


def unsigned(cards: dict[int, bytes], identities: Mapping[int, Identity]) -> bytes:
    return Advertised(own_keys()).pack()


def with_the_old_proof(cards: dict[int, bytes], identities: Mapping[int, Identity]) -> bytes:
    return Advertised(own_keys(), Advertised.unpack(cards[2]).proof).pack()


def of_another_member(cards: dict[int, bytes], identities: Mapping[int, Identity]) -> bytes:
    return cards[3]


def signed_by_the_collector(cards: dict[int, bytes], identities: Mapping[int, Identity]) -> bytes:
    return Advertised(own_keys(), identities[COLLECTOR].sign(b"anything")).pack()


def with_a_broken_signature(cards: dict[int, bytes], identities: Mapping[int, Identity]) -> bytes:
    return cards[2][:-1] + bytes([cards[2][-1] ^ 1])


def cut_off(cards: dict[int, bytes], identities: Mapping[int, Identity]) -> bytes:
    return cards[2][:100]


@pytest.mark.parametrize(
    "forge",
    [
        unsigned,
        with_the_old_proof,
        of_another_member,
        signed_by_the_collector,
        with_a_broken_signature,
        cut_off,
    ],
)
def test_a_collector_cannot_put_keys_of_its_own_in_between(
    forge: Forgery, identities: dict[int, Identity]
) -> None:
    group = signing_group(identities)
    cards = cards_of(group)
    forged = {**cards, 2: forge(cards, identities)}
    assert "member 2 are not signed" in group.refuses(1, "share", pack(forged))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"session": "cd" * 16}, "another session"),
        ({"members": (1, 2)}, "other members"),
        ({"threshold": 3}, "another threshold"),
        ({"exponent": 5}, "another range"),
    ],
)
def test_keys_of_another_sum_are_refused(
    changes: dict[str, Any], what: str, identities: dict[int, Identity]
) -> None:
    """Signatures are of one sum: its session, members, threshold and range."""
    elsewhere, here = signing_group(identities), signing_group(identities)
    for number in (1, 2):
        asked = {key: value for key, value in changes.items() if key == "session"}
        elsewhere.ask(number, "measure", **asked)
    replayed = elsewhere.ask(2, "advertise", **changes)
    cards = cards_of(here)
    assert "member 2 are not signed" in here.refuses(1, "share", pack({**cards, 2: replayed})), what


def test_keys_for_another_collector_or_round_are_refused(identities: dict[int, Identity]) -> None:
    here = signing_group(identities)
    cards = cards_of(here)
    for place, collector in ((Position(3, 1), 8), (Position(2, 1), COLLECTOR), (Position(3, 2), COLLECTOR)):
        member = signing_group(identities).members[2]
        member.open(place, torch.ones(50), {collector})
        for step in ("measure", "advertise"):
            head = here.head(step, round=place.round, slot=place.slot)
            _, replayed = member.take(collector, head, b"")
        assert "member 2 are not signed" in here.refuses(1, "share", pack({**cards, 2: replayed}))


def test_a_member_that_is_not_in_the_roster_spoils_the_sum(identities: dict[int, Identity]) -> None:
    group = signing_group(identities)
    body = group.until("share")[1]
    Roster.load(identities[1].folder).remove("peer-2")
    roster = Roster.load(identities[1].folder)
    group.members[1].party.verify = roster.verify
    assert "member 2 are not signed" in group.refuses(1, "share", body)


def test_a_certificate_that_an_authority_renewed_is_good(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "ca")
    bob = Identity.create(tmp_path / "bob", "bob", authority=authority)
    roster = Roster.load(tmp_path / "bob")
    roster.add(card(bob, 2), card_of_authority(authority))
    renewed = bob.rotate(authority=authority)
    assert roster.verify(2, b"hello", renewed.sign(b"hello"))
    assert not roster.verify(2, b"other", renewed.sign(b"hello"))
    assert not roster.verify(3, b"hello", renewed.sign(b"hello"))
    mallory = Identity.create(tmp_path / "mallory", "bob")
    assert not roster.verify(2, b"hello", mallory.sign(b"hello"))
    assert not any(roster.verify(2, b"hello", junk) for junk in (b"", b"\xff" * 80, b"\x00" * 80))


def test_reveals_survive_the_wire() -> None:
    reveal = Reveal({1: 5, 2: 2**520}, {3: 0})
    assert unpack_reveal(pack_reveal(reveal)) == reveal
