"""Signed news: who may say what, and what it does to a roster."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from coterie.errors import ConfigError, RefusedError
from coterie.peer.trust.cards import Card
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.news import (
    NEWS_FILE,
    Farewell,
    Invitation,
    News,
    Renewal,
    parse_invitation,
    parse_news,
    quorum,
)
from coterie.peer.trust.roster import Roster

DIGEST = "ab" * 32


def card_of(identity: Identity, number: int, address: str = "") -> Card:
    where = address or f"10.0.0.{number}:7400"
    return Card(name=identity.name, number=number, address=where, certificate=identity.certificate_pem)


class Member:
    """One peer's files: identity, roster and news."""

    def __init__(self, folder: Path, name: str, number: int) -> None:
        self.identity, self.number = Identity.create(folder / name, name), number
        self.folder = folder / name

    @property
    def card(self) -> Card:
        return card_of(self.identity, self.number)

    def knows(self, *others: Member) -> Member:
        self.roster = Roster(self.folder / "roster.toml")
        self.roster.add(*(other.card for other in others))
        self.news = News(self.folder, self.roster, lambda: self.card, DIGEST)
        return self


@pytest.fixture
def four(tmp_path: Path) -> list[Member]:
    """Three who know each other, and a fourth whom nobody knows."""
    a, b, c, d = (Member(tmp_path, name, n) for n, name in enumerate(("alice", "bob", "carol", "dave")))
    a.knows(b, c), b.knows(a, c), c.knows(a, b), d.knows(a, b, c)
    return [a, b, c, d]


def rotated(member: Member) -> tuple[Renewal, Identity]:
    following = member.identity.prepare()
    return Renewal.signed(card_of(following, member.number), member.identity.sign), following


def test_more_than_half() -> None:
    assert [quorum(members) for members in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_a_new_key_replaces_the_old_one_which_will_do_for_a_while(four: list[Member]) -> None:
    alice, bob, _, _ = four
    renewal, following = rotated(bob)
    old, new = bob.identity.certificate, following.certificate
    from cryptography.hazmat.primitives.serialization import Encoding

    with pytest.raises(RefusedError, match="is there a new card"):
        alice.roster.identify(new.public_bytes(Encoding.DER))
    assert alice.news.merge([renewal]) == [f"bob has a new key: {following.fingerprint}"]
    assert alice.roster.identify(new.public_bytes(Encoding.DER)) == "bob"
    assert alice.roster.identify(old.public_bytes(Encoding.DER)) == "bob"
    assert old.public_bytes(Encoding.PEM).decode() in alice.roster.anchors()
    again = Roster.load(alice.folder)  # what another process reads
    assert again.members["bob"].fingerprint == following.fingerprint
    with pytest.raises(RefusedError, match="was replaced"):
        again.identify(old.public_bytes(Encoding.DER))


def test_who_was_away_follows_several_keys(four: list[Member]) -> None:
    _, bob, carol, _ = four
    chain = []
    for _ in range(3):
        renewal, bob.identity = rotated(bob)
        chain.append(renewal)
    random.Random(0).shuffle(chain)
    assert len(carol.news.merge(chain)) == 3
    assert carol.roster.members["bob"].fingerprint == bob.identity.fingerprint


def test_only_the_owner_renews_its_card(four: list[Member]) -> None:
    alice, bob, carol, dave = four
    stolen = card_of(dave.identity, 1)
    theirs = Renewal.signed(bob.card.model_copy(update={"address": "evil:1"}), carol.identity.sign)
    for lie in (theirs, Renewal.signed(stolen, dave.identity.sign)):
        assert alice.news.merge([lie]) == []
    assert alice.roster.members["bob"] == bob.card
    assert alice.news.digest == ""


def test_an_older_address_does_not_come_back(four: list[Member]) -> None:
    alice, bob, _, _ = four
    first, second = (
        Renewal.signed(card_of(bob.identity, 1, f"10.0.0.{n}:7400"), bob.identity.sign, serial=n)
        for n in (8, 9)
    )
    assert alice.news.merge([second]) == ["bob is now at 10.0.0.9:7400"]
    assert alice.news.merge([first]) == []
    assert alice.roster.members["bob"].address == "10.0.0.9:7400"


def test_an_invitation_needs_more_than_half(four: list[Member]) -> None:
    alice, bob, carol, dave = four
    once = Invitation(digest=DIGEST, card=dave.card).with_proof("alice", alice.identity.sign)
    assert carol.news.merge([once]) == []
    for lie in (
        once.with_proof("bob", alice.identity.sign),  # not bob's key
        once.model_copy(update={"proofs": {**once.proofs, "bob": once.proofs["alice"]}}),
        once.with_proof("dave", dave.identity.sign),
        once.with_proof("bob", bob.identity.sign).model_copy(update={"digest": "0" * 64}),
        once.with_proof("bob", bob.identity.sign).model_copy(
            update={"card": dave.card.model_copy(update={"number": 9})}
        ),
    ):
        assert carol.news.merge([lie]) == []
    assert "dave" not in carol.roster.members
    twice = once.with_proof("bob", bob.identity.sign)
    assert carol.news.merge([twice]) == ["dave (number 3) is invited by alice, bob"]
    assert Roster.load(carol.folder).invited == {"dave"}
    assert bob.news.merge(parse_news(carol.news.text())) == ["dave (number 3) is invited by alice, bob"]
    assert bob.news.digest == carol.news.digest != ""


def test_who_was_removed_does_not_come_back_by_an_old_invitation(four: list[Member]) -> None:
    alice, bob, carol, dave = four
    signed = Invitation(digest=DIGEST, card=dave.card).with_proof("alice", alice.identity.sign)
    signed = signed.with_proof("bob", bob.identity.sign)
    carol.roster.add(dave.card)
    carol.roster.remove("dave")
    assert carol.news.merge([signed]) == []


def test_a_farewell_is_kept_and_only_ones_own(four: list[Member]) -> None:
    alice, bob, carol, _ = four
    forged = Farewell.signed(bob.card, 7, carol.identity.sign)
    assert alice.news.merge([forged]) == []
    assert alice.news.merge([Farewell.signed(bob.card, 7, bob.identity.sign)]) == ["bob leaves after round 7"]
    assert Roster.load(alice.folder).left["bob"].round == 7
    assert "bob" in alice.roster.members, "it may still be asked what it took"


@pytest.mark.parametrize(
    "raw", [b"{", b"[1]", b'[{"kind": "gossip"}]', b"[" * 50_000, b" " * (1 << 20) + b"[]"]
)
def test_what_is_no_news_gets_a_sentence(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="news"):
        parse_news(raw)
    with pytest.raises(ConfigError, match="neither a card nor an invitation"):
        parse_invitation(raw, "file")


def test_a_command_in_another_process_is_noticed(four: list[Member]) -> None:
    alice, bob, _, _ = four
    other = News(alice.folder, Roster.load(alice.folder), lambda: alice.card, DIGEST)
    other.merge([Farewell.signed(bob.card, 7, bob.identity.sign)])
    assert alice.news.digest == ""
    alice.news.refresh()
    assert alice.news.digest == other.digest != ""
    assert (alice.folder / NEWS_FILE).is_file()
