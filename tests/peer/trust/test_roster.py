"""Cards as they are mailed, and the roster: what is taken, what is refused, and that nothing is half-done."""

from __future__ import annotations

import base64
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from coterie.errors import ConfigError, CoterieError, RefusedError
from coterie.peer.trust.authority import Authority
from coterie.peer.trust.cards import AuthorityCard, Card, card_of_authority, parse_card
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import Roster, refuse_own

LONG_AGO = datetime.now(UTC) - timedelta(days=1000)


def card(identity: Identity, number: int = 1, name: str = "") -> Card:
    return Card(
        name=name or identity.name,
        number=number,
        address="peer.example.org:7400",
        certificate=identity.certificate_pem,
    )


def der(identity: Identity) -> bytes:
    return identity.certificate.public_bytes(serialization.Encoding.DER)


@pytest.fixture
def bob(tmp_path: Path) -> Identity:
    return Identity.create(tmp_path / "bob", "bob")


@pytest.fixture
def carol(tmp_path: Path) -> Identity:
    return Identity.create(tmp_path / "carol", "carol")


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    (tmp_path / "alice").mkdir()
    return Roster.load(tmp_path / "alice")


def test_a_card_survives_its_text(bob: Identity) -> None:
    read = parse_card(card(bob, 3).text())
    assert read == card(bob, 3)
    assert read.fingerprint == bob.fingerprint
    assert bob.fingerprint in card(bob).text()


def test_a_card_survives_the_mail(bob: Identity) -> None:
    mailed = card(bob).text().replace("\n", "\r\n") + "\r\n\r\n"
    read = parse_card(mailed)
    assert read.fingerprint == bob.fingerprint
    assert "\r" not in read.certificate


def test_a_tampered_card_is_refused(bob: Identity, carol: Identity) -> None:
    text = card(bob).text()
    body = text.index("-----BEGIN CERTIFICATE-----") + 60
    for place in range(body, body + 300, 37):
        flipped = "A" if text[place] != "A" else "B"
        with pytest.raises(ConfigError, match=r"bob\.card: .*(changed|damaged)"):
            parse_card(text[:place] + flipped + text[place + 1 :], "bob.card")
    with pytest.raises(ConfigError, match=r"changed: its fingerprint is"):
        parse_card(text.replace(bob.certificate_pem, carol.certificate_pem))
    with pytest.raises(ConfigError, match="changed: its fingerprint is"):
        parse_card(text.replace(bob.fingerprint, carol.fingerprint))


def test_a_forged_signature_is_refused(bob: Identity) -> None:
    """The fingerprint fits, for whoever altered the certificate altered that too."""
    raw = bytearray(der(bob))
    raw[-3] ^= 1
    forged = x509.load_der_x509_certificate(bytes(raw))
    pem = forged.public_bytes(serialization.Encoding.PEM).decode()
    with pytest.raises(ConfigError, match="signature does not fit"):
        parse_card(Card(name="bob", number=1, address="a:1", certificate=pem).text())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "bob"', 'name = "eve"', "the card says 'eve', but its certificate is that of 'bob'"),
        ('name = "bob"', 'name = "b/b"', "a name has"),
        ('name = "bob"', "", "name is missing"),
        ('name = "bob"', 'nmae = "bob"', "unknown key 'nmae'; did you mean name"),
        ("number = 1", 'number = "1"', "number"),
        ("number = 1", "number = -1", "number"),
        ("number = 1", "number = true", "number"),
        (":7400", "", "host:port"),
        (":7400", ":70000", "65535"),
        ("fingerprint", "# fingerprint", "whole card"),
        ("number = 1", "number = = 1", "not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_card_is_said(bob: Identity, old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_card(card(bob).text().replace(old, new, 1), "bob.card")
    assert str(caught.value).startswith("bob.card")


def test_an_expired_card_is_refused(tmp_path: Path) -> None:
    old = Identity.create(tmp_path / "old", "old", valid_from=LONG_AGO, valid_days=10)
    with pytest.raises(ConfigError, match=r"'old' expired on \d{4}-\d\d-\d\d; ask for a new card"):
        parse_card(card(old).text())


def test_a_roster_is_what_its_file_says(roster: Roster, bob: Identity, carol: Identity) -> None:
    roster.add(card(bob, 1), card(carol, 2))
    again = Roster.load(roster.path.parent)
    assert again.members == roster.members
    assert [one.name for one in again.by_number().values()] == ["bob", "carol"]
    assert again.identify(der(bob)) == "bob"
    assert again.identify(der(carol)) == "carol"


def test_strangers_are_refused(roster: Roster, bob: Identity, carol: Identity) -> None:
    roster.add(card(bob))
    for wrong, words in (
        (der(carol), "'carol' is not in the roster"),
        (b"", "read"),
        (None, "read"),
        (der(bob)[:-9], "read"),
    ):
        with pytest.raises(RefusedError, match=words) as caught:
            roster.identify(wrong)
        assert caught.value.reason == "certificate"


def test_damaged_certificates_raise_nothing_else(roster: Roster, bob: Identity) -> None:
    roster.add(card(bob))
    whole = der(bob)
    for place in range(len(whole)):
        for change in (0x01, 0x20, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= change
            with pytest.raises(RefusedError):
                roster.identify(bytes(damaged))
            body = base64.b64encode(damaged).decode()
            pem = f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"
            with pytest.raises(ConfigError):
                parse_card(card(bob).text().replace(bob.certificate_pem, pem), "bob.card")


def test_numbers_and_certificates_are_unique(roster: Roster, bob: Identity, carol: Identity) -> None:
    roster.add(card(bob, 1))
    before = roster.path.read_bytes()
    with pytest.raises(ConfigError, match="'bob' and 'carol' both have number 1"):
        roster.add(card(carol, 1))
    with pytest.raises(ConfigError, match="'bob' and 'twin' have the same certificate"):
        roster.add(card(bob, 2, name="twin"))
    assert roster.path.read_bytes() == before
    assert list(roster.members) == ["bob"]


def test_all_cards_or_none(roster: Roster, bob: Identity, carol: Identity) -> None:
    with pytest.raises(ConfigError, match="number 1"):
        roster.add(card(bob, 1), card(carol, 1))
    assert not roster.members
    assert not roster.path.exists()


def test_a_new_certificate_needs_consent(roster: Roster, bob: Identity) -> None:
    roster.add(card(bob))
    roster.add(card(bob, 5))  # a new number or address with the same certificate does not
    assert roster.members["bob"].number == 5
    rotated = Identity.load(bob.folder).rotate()
    with pytest.raises(ConfigError, match="--replace"):
        roster.add(card(rotated))
    roster.add(card(rotated), replace=True)
    assert roster.identify(der(rotated)) == "bob"
    with pytest.raises(RefusedError, match="that of 'bob' was replaced"):
        roster.identify(der(bob))


def test_a_removed_member_is_refused_until_trusted_again(roster: Roster, bob: Identity) -> None:
    roster.add(card(bob))
    roster.remove("bob")
    for one in (roster, Roster.load(roster.path.parent)):
        assert bob.certificate_pem not in one.anchors()
        with pytest.raises(RefusedError, match="that of 'bob' was removed"):
            one.identify(der(bob))
    roster.add(card(bob))
    assert roster.identify(der(bob)) == "bob"


def test_removing_offers_the_nearest_name(roster: Roster, bob: Identity) -> None:
    with pytest.raises(ConfigError, match="the roster is empty"):
        roster.remove("bob")
    roster.add(card(bob))
    with pytest.raises(ConfigError, match="did you mean bob"):
        roster.remove("bbo")


def test_an_authority_vouches_for_its_members_only(tmp_path: Path, roster: Roster, bob: Identity) -> None:
    authority = Authority.create(tmp_path / "ca", "our-ca")
    carol, eve = (Identity.create(tmp_path / name, name, authority=authority) for name in ("c", "eve"))
    roster.add(card_of_authority(authority), card(bob, 1), card(carol, 2))
    assert roster.identify(der(carol.rotate(authority=authority))) == "c"
    with pytest.raises(RefusedError, match="'eve' is not in the roster"):
        roster.identify(der(eve))
    # bob's card is self-signed: the authority cannot speak for him
    false = Identity.create(tmp_path / "false", "bob", authority=authority)
    with pytest.raises(RefusedError, match="not that of the roster"):
        roster.identify(der(false))


def test_a_removed_member_of_an_authority_stays_out(tmp_path: Path, roster: Roster) -> None:
    authority = Authority.create(tmp_path / "ca", "our-ca")
    carol = Identity.create(tmp_path / "c", "carol", authority=authority)
    rotated = Identity.load(tmp_path / "c").rotate(authority=authority)
    roster.add(card_of_authority(authority), card(carol))
    roster.remove("carol")
    for one, words in ((carol, "removed"), (rotated, "not in the roster")):
        with pytest.raises(RefusedError, match=words):
            roster.identify(der(one))


def test_a_replaced_certificate_of_an_authority_stays_out(tmp_path: Path, roster: Roster) -> None:
    """Its signature is still good, but its key may be in other hands."""
    authority = Authority.create(tmp_path / "ca", "our-ca")
    carol = Identity.create(tmp_path / "c", "carol", authority=authority)
    roster.add(card_of_authority(authority), card(carol))
    rotated = Identity.load(tmp_path / "c").rotate(authority=authority)
    assert roster.identify(der(carol)) == roster.identify(der(rotated)) == "carol"
    roster.add(card(rotated), replace=True)
    assert roster.identify(der(rotated)) == "carol"
    with pytest.raises(RefusedError, match="replaced"):
        roster.identify(der(carol))


def test_a_removed_or_expired_authority_vouches_for_nobody(tmp_path: Path, roster: Roster) -> None:
    authority = Authority.create(tmp_path / "ca", "our-ca")
    carol = Identity.create(tmp_path / "c", "carol", authority=authority)
    rotated = Identity.load(tmp_path / "c").rotate(authority=authority)
    roster.add(card_of_authority(authority), card(carol))
    roster.remove("our-ca")
    assert roster.identify(der(carol)) == "carol"  # known by its card
    with pytest.raises(RefusedError):
        roster.identify(der(rotated))


def test_cards_of_authorities(tmp_path: Path, roster: Roster, bob: Identity) -> None:
    authority = Authority.create(tmp_path / "ca", "our-ca")
    read = parse_card(card_of_authority(authority).text())
    assert isinstance(read, AuthorityCard)
    assert read.fingerprint == authority.fingerprint
    with pytest.raises(ConfigError, match="not that of an authority"):
        parse_card(AuthorityCard(name="bob", certificate=bob.certificate_pem).text())
    with pytest.raises(ConfigError, match="of an authority, not of a peer"):
        parse_card(Card(name="our-ca", number=1, address="a:1", certificate=authority.certificate_pem).text())
    roster.add(card(bob))
    with pytest.raises(ConfigError, match="cannot both be called 'bob'"):
        roster.add(card_of_authority(Authority.create(tmp_path / "ca2", "bob")))


def test_own_name_number_and_certificate_are_taken(bob: Identity, carol: Identity) -> None:
    own = card(bob, 1)
    with pytest.raises(ConfigError, match="both have number 1"):
        refuse_own(card(carol, 1), own)
    with pytest.raises(ConfigError, match="name of this peer itself"):
        refuse_own(card(carol, 2, name="bob"), own)
    refuse_own(card(carol, 2), own)


def test_changes_are_noticed(roster: Roster, bob: Identity) -> None:
    other = Roster.load(roster.path.parent)
    assert not roster.refresh()
    other.add(card(bob))
    assert roster.refresh()
    assert not roster.refresh()
    assert list(roster.members) == ["bob"]
    other.remove("bob")
    assert roster.refresh()
    with pytest.raises(RefusedError, match="removed"):
        roster.identify(der(bob))


def test_two_writers_do_not_lose_each_other(roster: Roster, bob: Identity, carol: Identity) -> None:
    other = Roster.load(roster.path.parent)
    roster.add(card(bob, 1))
    other.add(card(carol, 2))
    assert sorted(Roster.load(roster.path.parent).members) == ["bob", "carol"]


def test_a_damaged_file_is_reported_once_and_never_overwritten(roster: Roster, bob: Identity) -> None:
    roster.add(card(bob))
    roster.path.write_text("[[member]\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        roster.refresh()
    assert not roster.refresh()
    assert roster.identify(der(bob)) == "bob"
    with pytest.raises(ConfigError, match="not valid TOML"):
        roster.remove("bob")
    assert roster.path.read_text() == "[[member]\n"
    roster.path.unlink()
    with pytest.raises(ConfigError, match="is gone"):
        roster.refresh()
    assert roster.identify(der(bob)) == "bob"


def test_a_file_edited_by_hand_is_checked(roster: Roster, bob: Identity, carol: Identity) -> None:
    roster.add(card(bob, 1), card(carol, 2))
    text = roster.path.read_text()
    for old, new, words in (
        ("number = 2", "number = 1", "both have number 1"),
        ('name = "carol"', 'name = "bob"', "'carol'"),
        ("[[member]]", "[[memebr]]", "did you mean member"),
        ("[[member]]", "[member]", r"write \[\[member\]\]|not valid TOML"),
        ("address", "adress", "did you mean address"),
        (bob.fingerprint, carol.fingerprint, "changed"),
    ):
        roster.path.write_text(text.replace(old, new, 1))
        with pytest.raises(ConfigError, match=words):
            Roster.load(roster.path.parent)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupted_change_changes_nothing(
    roster: Roster, bob: Identity, carol: Identity, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    roster.add(card(bob, 1))
    before = roster.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, full)
        with pytest.raises(CoterieError, match="No space left"):
            roster.add(card(carol, 2))
    assert roster.path.read_bytes() == before
    assert [path.name for path in roster.path.parent.iterdir()] == ["roster.toml"]
    assert list(Roster.load(roster.path.parent).members) == ["bob"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = " + "[" * 50_000, "bob.card has 50,004 characters|nested too deeply"),
        ("x = " + "[" * 5_000, "nested too deeply"),
        ("#" * 100_000, "bob.card has 100,000 characters, and a card has at most 65,536"),
        ("", "fingerprint is missing"),
        ("fingerprint = 3", "name"),
    ],
)
def test_nested_huge_and_empty_cards_get_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_card(text, "bob.card")


@pytest.mark.parametrize("strange", ["\\u001b[2J", "\\u202e", "\\u0007"])
@pytest.mark.parametrize("key", ["name", "address", "fingerprint"])
def test_no_card_brings_control_characters(bob: Identity, strange: str, key: str) -> None:
    """Neither into the roster, nor onto the terminal that shows what is wrong."""
    lines = card(bob).text().splitlines()
    changed = [
        f'{key} = "{strange}{line.split(chr(34))[1]}"' if line.startswith(key) else line for line in lines
    ]
    assert changed != lines
    with pytest.raises(ConfigError) as error:
        parse_card("\n".join(changed), "bob.card")
    assert str(error.value).isprintable()


def test_a_card_that_was_cut_off_gets_a_sentence(bob: Identity) -> None:
    text = card(bob).text()
    for length in range(0, len(text) - 1, 7):
        with pytest.raises(ConfigError):
            parse_card(text[:length], "bob.card")
