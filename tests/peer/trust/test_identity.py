"""Keys and certificates: who can read them, how they are replaced, and whom the TLS contexts let in."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.errors import ConfigError, RefusedError, RunFolderError
from coterie.peer.trust import certificates
from coterie.peer.trust.authority import Authority
from coterie.peer.trust.cards import Card, card_of_authority
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import Roster

LONG_AGO = datetime.now(UTC) - timedelta(days=1000)
LATER = datetime.now(UTC) + timedelta(days=10)


def card(identity: Identity, number: int = 1) -> Card:
    return Card(
        name=identity.name,
        number=number,
        address=f"127.0.0.1:{7400 + number}",
        certificate=identity.certificate_pem,
    )


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[bytes, bytes]:
    """The certificates that the server and the client saw; raises what either side raised."""
    near, far = socket.socketpair()
    near.settimeout(10)
    far.settimeout(10)
    seen: dict[str, bytes] = {}
    problems: list[BaseException] = []

    def run(side: str, plain: socket.socket, context: ssl.SSLContext) -> None:
        try:
            with context.wrap_socket(plain, server_side=side == "server") as secure:
                # With TLS 1.3 a client learns of its refusal only when it reads.
                secure.sendall(b"!") if side == "server" else secure.recv(1)
                secure.recv(1) if side == "server" else secure.sendall(b"!")
                assert secure.version() == "TLSv1.3"
                assert not secure.session_reused
                seen[side] = secure.getpeercert(binary_form=True) or b""
        except (OSError, AssertionError) as problem:
            problems.append(problem)
        finally:
            plain.close()

    thread = threading.Thread(target=run, args=("server", far, server))
    thread.start()
    run("client", near, client)
    thread.join()
    refusals = [problem for problem in problems if isinstance(problem, ssl.SSLCertVerificationError)]
    if problems:
        raise (refusals or problems)[0]
    return seen["server"], seen["client"]


@pytest.fixture
def alice(tmp_path: Path) -> Identity:
    return Identity.create(tmp_path / "alice", "alice")


@pytest.fixture
def bob(tmp_path: Path) -> Identity:
    return Identity.create(tmp_path / "bob", "bob")


def roster_with(folder: Path, *identities: Identity) -> Roster:
    roster = Roster.load(folder)
    roster.add(*(card(identity, number) for number, identity in enumerate(identities, start=1)))
    return roster


def test_only_the_owner_can_read_the_key(alice: Identity) -> None:
    assert stat.S_IMODE(alice.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((alice.folder / "identity.pem").stat().st_mode) == 0o600
    again = alice.rotate()
    assert stat.S_IMODE((again.folder / "identity.pem").stat().st_mode) == 0o600


def test_a_wide_umask_does_not_open_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        identity = Identity.create(tmp_path / "a", "alice").rotate()
    finally:
        os.umask(before)
    assert stat.S_IMODE((identity.folder / "identity.pem").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_refused(alice: Identity, mode: int) -> None:
    path = alice.folder / "identity.pem"
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"chmod 600 {path}"):
        Identity.load(alice.folder)
    with pytest.raises(ConfigError, match="chmod 600"):
        alice.server_context(Roster.load(alice.folder))


def test_the_certificate_is_what_peers_expect(alice: Identity) -> None:
    certificate = alice.certificate
    assert certificates.common_name(certificate) == "alice"
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca
    assert 729 <= certificates.days_left(certificate) <= 730
    assert len(alice.fingerprint) == 32 * 3 - 1
    assert Identity.load(alice.folder).fingerprint == alice.fingerprint


def test_an_existing_identity_is_not_overwritten(alice: Identity) -> None:
    before = (alice.folder / "identity.pem").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        Identity.create(alice.folder, "alice")
    assert (alice.folder / "identity.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["", "a b", "../a", "-a", "a" * 65, "a\n", "ä"])
def test_a_name_that_is_none_makes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="a name has"):
        Identity.create(tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


def test_rotation_replaces_key_and_certificate(alice: Identity) -> None:
    rotated = alice.rotate()
    assert rotated.name == "alice"
    assert rotated.fingerprint != alice.fingerprint
    assert rotated.certificate.public_key() != alice.certificate.public_key()
    assert Identity.load(alice.folder).fingerprint == rotated.fingerprint
    assert [path.name for path in alice.folder.iterdir()] == ["identity.pem"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupted_rotation_changes_nothing(
    alice: Identity, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before = (alice.folder / "identity.pem").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    for problem, error in ((full, RunFolderError), (stopped, KeyboardInterrupt)):
        with monkeypatch.context() as patch:
            patch.setattr(os, moment, problem)
            with pytest.raises(error):
                alice.rotate()
        assert (alice.folder / "identity.pem").read_bytes() == before
        assert [path.name for path in alice.folder.iterdir()] == ["identity.pem"]


def test_an_interrupted_creation_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stopped)
        with pytest.raises(KeyboardInterrupt):
            Identity.create(tmp_path / "a", "alice")
    assert not list((tmp_path / "a").iterdir())


def test_the_key_is_shown_nowhere(
    alice: Identity, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    content = (alice.folder / "identity.pem").read_text()
    private = content.partition("-----END PRIVATE KEY-----")[0]
    number = alice._key.private_numbers().private_value
    lines = [line for line in private.splitlines() if line and not line.startswith("-----")]
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "identity.pem").write_text(private[:-20])
    (damaged / "identity.pem").chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        Identity.load(damaged)
    authority = Authority.create(tmp_path / "ca", "our-ca")
    shown = [repr(alice), str(alice), f"{alice}", repr(authority), str(caught.value), repr(caught.value)]
    shown += [alice.request(), alice.certificate_pem, card(alice).text(), caplog.text, *capfd.readouterr()]
    everything = "\n".join(shown)
    assert "PRIVATE" not in everything
    assert str(number) not in everything
    assert not any(line in everything for line in lines)
    assert not any(f"{number:x}"[:16] in text for text in shown)


def test_damaged_and_mixed_up_files_are_refused(alice: Identity, bob: Identity) -> None:
    path = alice.folder / "identity.pem"
    own, other = path.read_text(), (bob.folder / "identity.pem").read_text()
    key, _, certificate = own.partition("-----BEGIN CERTIFICATE")
    for content, words in (
        (own[: len(own) // 3], "does not hold a readable private key"),
        (key, "does not hold a readable private key"),
        (key + "-----BEGIN CERTIFICATE" + other.partition("-----BEGIN CERTIFICATE")[2], "of another key"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match=words):
            Identity.load(alice.folder)
    encrypted = alice._key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    path.write_bytes(encrypted + b"-----BEGIN CERTIFICATE" + certificate.encode())
    with pytest.raises(ConfigError, match="readable private key"):
        Identity.load(alice.folder)
    with pytest.raises(ConfigError, match=r"has no identity\.pem"):
        Identity.load(alice.folder.parent)


def test_members_meet(alice: Identity, bob: Identity) -> None:
    at_alice, at_bob = roster_with(alice.folder, bob), roster_with(bob.folder, alice)
    caller, called = handshake(bob.client_context(at_bob), alice.server_context(at_alice))
    assert at_alice.identify(caller) == "bob"
    assert at_bob.identify(called) == "alice"


def test_a_stranger_is_refused_on_both_sides(alice: Identity, bob: Identity) -> None:
    knows_bob, knows_nobody = roster_with(alice.folder, bob), Roster.load(bob.folder)
    with pytest.raises(ssl.SSLCertVerificationError):  # bob does not know alice
        handshake(bob.client_context(knows_nobody), alice.server_context(knows_bob))
    with pytest.raises(ssl.SSLCertVerificationError):  # alice, called by bob, does not know him
        handshake(alice.client_context(knows_bob), bob.server_context(knows_nobody))


def test_a_caller_without_a_certificate_is_refused(alice: Identity, bob: Identity) -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(cadata=alice.certificate_pem)
    with pytest.raises(OSError, match=r"(?i)certificate"):
        handshake(bare, alice.server_context(roster_with(alice.folder, bob)))


def test_old_tls_is_refused(alice: Identity, bob: Identity) -> None:
    client = bob.client_context(roster_with(bob.folder, alice))
    client.minimum_version = ssl.TLSVersion.TLSv1_2
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError, match=r"(?i)version|protocol"):
        handshake(client, alice.server_context(roster_with(alice.folder, bob)))


def test_a_name_does_not_make_a_member(alice: Identity, bob: Identity, tmp_path: Path) -> None:
    """A self-signed certificate with bob's name, but not bob's key."""
    false = Identity.create(tmp_path / "false", "bob")
    at_alice = roster_with(alice.folder, bob)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(false.client_context(roster_with(false.folder, alice)), alice.server_context(at_alice))
    with pytest.raises(RefusedError, match="not that of the roster"):
        at_alice.identify(false.certificate.public_bytes(serialization.Encoding.DER))


@pytest.mark.parametrize(("start", "days"), [(LONG_AGO, 10), (LATER, 10)])
def test_a_certificate_out_of_its_time_is_refused(
    alice: Identity, tmp_path: Path, start: datetime, days: int
) -> None:
    old = Identity.create(tmp_path / "old", "old", valid_from=start, valid_days=days)
    at_alice, at_old = roster_with(alice.folder, old), roster_with(old.folder, alice)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(old.client_context(at_old), alice.server_context(at_alice))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(alice.client_context(at_alice), old.server_context(at_old))
    with pytest.raises(RefusedError, match=r"expired on|not valid before"):
        at_alice.identify(old.certificate.public_bytes(serialization.Encoding.DER))


def test_a_member_cannot_vouch_for_others(alice: Identity, bob: Identity, tmp_path: Path) -> None:
    """Bob is trusted, and signs a certificate in which somebody is called carol."""
    key = certificates.new_key()
    forged = certificates.issue(key.public_key(), "carol", issuer="bob", issuer_key=bob._key, valid_days=10)
    folder = tmp_path / "carol"
    folder.mkdir()
    (folder / "identity.pem").touch(0o600)
    (folder / "identity.pem").write_bytes(
        certificates.pair_pem(key, forged) + bob.certificate_pem.encode()  # with the whole chain
    )
    carol, real = Identity.load(folder), Identity.create(tmp_path / "real", "carol")
    at_alice = roster_with(alice.folder, bob, real)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(carol.client_context(roster_with(folder, alice)), alice.server_context(at_alice))
    with pytest.raises(RefusedError, match="not that of the roster"):
        at_alice.identify(forged.public_bytes(serialization.Encoding.DER))


def test_members_of_an_authority_meet_and_rotate_without_new_cards(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "our-ca")
    one, two = (Identity.create(tmp_path / name, name, authority=authority) for name in ("one", "two"))
    at_one, at_two = roster_with(one.folder, two), roster_with(two.folder, one)
    for roster in (at_one, at_two):
        roster.add(card_of_authority(authority))
    server = one.server_context(at_one)
    assert at_one.identify(handshake(two.client_context(at_two), server)[0]) == "two"
    rotated = two.rotate(authority=authority)
    assert not rotated.self_signed
    assert at_one.identify(handshake(rotated.client_context(at_two), server)[0]) == "two"


def test_the_wrong_authority_is_refused(tmp_path: Path) -> None:
    """Same name of the authority, same name of the peer, another key."""
    right, wrong = (Authority.create(tmp_path / name, "our-ca") for name in ("right", "wrong"))
    one, two = (Identity.create(tmp_path / name, name, authority=right) for name in ("one", "two"))
    false = Identity.create(tmp_path / "false", "two", authority=wrong)
    at_one = roster_with(one.folder, two)
    at_one.add(card_of_authority(right))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(false.client_context(roster_with(false.folder, one)), one.server_context(at_one))
    with pytest.raises(RefusedError, match="not that of the roster"):
        at_one.identify(false.certificate.public_bytes(serialization.Encoding.DER))


def test_a_pinned_member_needs_no_authority(alice: Identity, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "our-ca")
    two = Identity.create(tmp_path / "two", "two", authority=authority)
    at_alice = roster_with(alice.folder, two)
    caller, _ = handshake(two.client_context(roster_with(two.folder, alice)), alice.server_context(at_alice))
    assert at_alice.identify(caller) == "two"


def test_contexts_in_use_follow_the_roster_and_the_key(
    alice: Identity, bob: Identity, tmp_path: Path
) -> None:
    at_alice, at_bob = Roster.load(alice.folder), roster_with(bob.folder, alice)
    server, client = alice.server_context(at_alice), bob.client_context(at_bob)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client, server)
    Roster.load(alice.folder).add(card(bob))  # by another process
    assert at_alice.refresh()
    alice.update_context(server, at_alice)
    assert at_alice.identify(handshake(client, server)[0]) == "bob"

    rotated = bob.rotate()
    bob.update_context(client, at_bob)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client, server)
    Roster.load(alice.folder).add(card(rotated), replace=True)
    assert at_alice.refresh()
    alice.update_context(server, at_alice)
    assert at_alice.identify(handshake(client, server)[0]) == "bob"

    Roster.load(alice.folder).remove("bob")
    assert at_alice.refresh()
    with pytest.raises(RefusedError, match="removed"):  # what OpenSSL still lets in
        at_alice.identify(handshake(client, server)[0])
