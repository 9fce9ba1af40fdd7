"""The small private authority: what it signs, and what it refuses to."""

from __future__ import annotations

import csv
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coterie.errors import ConfigError
from coterie.peer.trust import certificates
from coterie.peer.trust.authority import Authority
from coterie.peer.trust.identity import Identity

LONG_AGO = datetime.now(UTC) - timedelta(days=1000)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "our-ca")


@pytest.fixture
def alice(tmp_path: Path) -> Identity:
    return Identity.create(tmp_path / "alice", "alice")


def test_its_key_is_its_own(authority: Authority) -> None:
    assert stat.S_IMODE(authority.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((authority.folder / "authority.pem").stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="exists already"):
        Authority.create(authority.folder, "our-ca")
    assert Authority.load(authority.folder).fingerprint == authority.fingerprint
    (authority.folder / "authority.pem").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Authority.load(authority.folder)


def test_its_certificate_may_sign_peers_but_no_authorities(authority: Authority) -> None:
    extensions = authority.certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature


def test_a_request_becomes_a_certificate(authority: Authority, alice: Identity) -> None:
    installed = alice.install(authority.sign(alice.request()))
    assert installed.name == "alice"
    assert not installed.self_signed
    assert certificates.is_signed_by(installed.certificate, authority.certificate)
    assert not certificates.may_sign_others(installed.certificate)
    assert installed.certificate.public_key() == alice.certificate.public_key()
    assert Identity.load(alice.folder).fingerprint == installed.fingerprint


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path, alice: Identity) -> None:
    authority = Authority.create(tmp_path / "ca", "our-ca", valid_days=20)
    signed = certificates.parse_certificate(authority.sign(alice.request()), "signed")
    assert signed.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_an_expired_authority_signs_nothing(tmp_path: Path, alice: Identity) -> None:
    authority = Authority.create(tmp_path / "ca", "our-ca", valid_days=20, valid_from=LONG_AGO)
    with pytest.raises(ConfigError, match="expired on"):
        authority.sign(alice.request())


def test_serial_numbers_are_random_and_listed(authority: Authority, alice: Identity) -> None:
    serials = {
        certificates.parse_certificate(authority.sign(alice.request(), replace=True), "").serial_number
        for _ in range(5)
    }
    assert len(serials) == 5
    assert min(serials).bit_length() > 100
    with open(authority.folder / "issued.csv", newline="") as file:
        listed = list(csv.DictReader(file))
    assert {int(entry["serial"], 16) for entry in listed} == serials
    assert {entry["name"] for entry in listed} == {"alice"}


def test_names_and_keys_are_not_given_twice(authority: Authority, alice: Identity, tmp_path: Path) -> None:
    authority.sign(alice.request())
    other = Identity.create(tmp_path / "other", "alice")
    with pytest.raises(ConfigError, match="--replace"):
        authority.sign(other.request())
    authority.sign(other.request(), replace=True)
    borrowed = certificates.request_for(alice._key, "mallory")
    with pytest.raises(ConfigError, match="is that of 'alice'"):
        authority.sign(borrowed, replace=True)


def _request(key: ec.EllipticCurvePrivateKey, *names: str) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    built = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM).decode()


def test_bad_requests_are_refused(authority: Authority, alice: Identity) -> None:
    key = certificates.new_key()
    raw = bytearray(x509.load_pem_x509_csr(alice.request().encode()).public_bytes(serialization.Encoding.DER))
    raw[-2] ^= 1
    changed = x509.load_der_x509_csr(bytes(raw)).public_bytes(serialization.Encoding.PEM).decode()
    for request, words in (
        ("nonsense", "not a certificate request"),
        (alice.certificate_pem, "not a certificate request"),
        (changed, "signature does not fit"),
        (_request(key), "one common name"),
        (_request(key, "alice", "bob"), "one common name"),
        (_request(key, "../alice"), "a name has"),
        (_request(ec.generate_private_key(ec.SECP384R1()), "alice"), "P-256"),
    ):
        with pytest.raises(ConfigError, match=words):
            authority.sign(request)
    assert not (authority.folder / "issued.csv").exists()


def test_wishes_in_a_request_are_ignored(authority: Authority) -> None:
    """A request that asks to be an authority becomes a peer's certificate."""
    key = certificates.new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mallory")])
    wish = x509.CertificateSigningRequestBuilder().subject_name(subject)
    wish = wish.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    request = wish.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    assert not certificates.may_sign_others(certificates.parse_certificate(authority.sign(request), ""))


def test_a_peer_is_no_authority(alice: Identity, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no authority\.pem"):
        Authority.load(alice.folder)
    (alice.folder / "identity.pem").rename(alice.folder / "authority.pem")
    with pytest.raises(ConfigError, match="may not sign others"):
        Authority.load(alice.folder)


def test_only_a_fitting_certificate_is_installed(
    authority: Authority, alice: Identity, tmp_path: Path
) -> None:
    bob = Identity.create(tmp_path / "bob", "bob")
    renamed = certificates.self_signed(alice._key, "mallory")
    old = certificates.self_signed(alice._key, "alice", valid_days=1, valid_from=LONG_AGO)
    before = (alice.folder / "identity.pem").read_bytes()
    for pem, words in (
        (authority.sign(bob.request()), "another key"),
        (certificates.certificate_pem(renamed), "'mallory', not 'alice'"),
        (certificates.certificate_pem(old), "expired on"),
        ("nonsense", "damaged"),
    ):
        with pytest.raises(ConfigError, match=words):
            alice.install(pem)
    assert (alice.folder / "identity.pem").read_bytes() == before
