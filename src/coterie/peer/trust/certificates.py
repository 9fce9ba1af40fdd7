"""X.509 certificates of peers: made, read, compared.

A peer's certificate has the peer's name as its common name and may not sign others, also when it is
self-signed: a member that others trust cannot vouch for anybody else.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.errors import ConfigError
from coterie.peer.trust.names import check_name

PEER_DAYS = 730
AUTHORITY_DAYS = 3650
_DER_LENGTH_BYTES = 2
_BACKDATED = timedelta(days=1)  # so that a new certificate is valid where the clock is late

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def now() -> datetime:
    return datetime.now(UTC)


def new_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def self_signed(
    key: PrivateKey, name: str, *, valid_days: float = PEER_DAYS, valid_from: datetime | None = None
) -> x509.Certificate:
    """A certificate for a peer's own key; valid_from: for certificates of the past or the future."""
    return issue(
        key.public_key(), name, issuer=name, issuer_key=key, valid_days=valid_days, valid_from=valid_from
    )


def issue(
    public: PublicKey,
    name: str,
    *,
    issuer: str,
    issuer_key: PrivateKey,
    valid_days: float,
    valid_from: datetime | None = None,
    not_after: datetime | None = None,
    authority: bool = False,
) -> x509.Certificate:
    """A certificate of `name` signed by `issuer`; authority: it may sign others, but no further authority."""
    start = valid_from or now() - _BACKDATED
    end = (valid_from or now()) + timedelta(days=valid_days)
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(_distinguished(name))
        .issuer_name(_distinguished(issuer))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(min(end, not_after) if not_after else end)
        .add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if not authority:
        both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def request_for(key: PrivateKey, name: str) -> str:
    """A PEM request that an authority can sign."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_distinguished(name))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def parse_certificate(pem: str, where: str) -> x509.Certificate:
    """Exactly one certificate."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
        readable = all(map(_is_readable, found))
    except Exception:  # the library has errors of many kinds for what strangers can send
        readable = False
    if not readable:
        raise ConfigError(f"{where}: the certificate is damaged or was changed")
    if len(found) != 1:
        raise ConfigError(f"{where}: one certificate was expected, not {len(found)}")
    return found[0]


@lru_cache(maxsize=256)  # asked again for every message
def named(der: bytes) -> tuple[x509.Certificate, str, str]:
    """The certificate of a TLS connection, its common name and fingerprint; raises ConfigError."""
    certificate = parse_der(der)
    return certificate, common_name(certificate), fingerprint(certificate)


def parse_der(der: bytes) -> x509.Certificate:
    """A certificate in binary form; raises ConfigError."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        _is_readable(certificate)
    except Exception:  # as above
        raise ConfigError("the certificate cannot be read") from None
    return certificate


def _is_readable(certificate: x509.Certificate) -> bool:
    """Read now what is otherwise read, and may fail, when it is first used."""
    parts = (certificate.subject, certificate.issuer, certificate.extensions, certificate.public_key())
    dates = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    return None not in (*parts, *dates)


def certificate_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def pair_pem(key: PrivateKey, certificate: x509.Certificate) -> bytes:
    """Key and certificate as one text, so that one rename replaces both."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate_pem(certificate).encode()


def parse_pair(content: bytes, path: Path) -> tuple[PrivateKey, x509.Certificate]:
    """The inverse of `pair_pem`; errors never quote the content."""

    def damaged(what: str) -> NoReturn:
        raise ConfigError(f"{path} {what}; restore it, or make a new identity in another folder")

    try:
        key = serialization.load_pem_private_key(content, None)
        certificate = x509.load_pem_x509_certificate(content)
    except (ValueError, TypeError):  # TypeError: the key is encrypted
        damaged("does not hold a readable private key and its certificate")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        damaged("holds a key that is not an elliptic-curve key")
    if certificate.public_key() != key.public_key():
        damaged("holds a certificate of another key")
    return key, certificate


def sign(key: PrivateKey, certificate: x509.Certificate, message: bytes) -> bytes:
    """The length of the certificate, the certificate, and an ECDSA signature of the message by its key."""
    der = certificate.public_bytes(serialization.Encoding.DER)
    return len(der).to_bytes(_DER_LENGTH_BYTES, "big") + der + key.sign(message, ec.ECDSA(hashes.SHA256()))


def signer(message: bytes, proof: bytes) -> bytes | None:
    """The certificate (DER) whose key made the proof for this message by `sign`; None if none did."""
    start = _DER_LENGTH_BYTES + int.from_bytes(proof[:_DER_LENGTH_BYTES], "big")
    der, signature = proof[_DER_LENGTH_BYTES:start], proof[start:]
    try:
        public = parse_der(der).public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return None
        public.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except (ConfigError, InvalidSignature):
        return None
    return der


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the whole certificate: AB:CD:..."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def common_name(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The only common name; raises ConfigError."""
    values = [str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(values) != 1:
        raise ConfigError(f"a certificate needs one common name, and this one has {len(values)}")
    return check_name(values[0], "common name")


@lru_cache(maxsize=256)
def is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def is_self_signed(certificate: x509.Certificate) -> bool:
    return is_signed_by(certificate, certificate)


def may_sign_others(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def wrong_dates(certificate: x509.Certificate, at: datetime | None = None) -> str:
    """Why a certificate is not valid now; empty if it is."""
    at = at or now()
    if at > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if at < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}"
    return ""


def days_left(certificate: x509.Certificate, at: datetime | None = None) -> int:
    """Whole days; negative once it has expired."""
    return (certificate.not_valid_after_utc - (at or now())).days


def _distinguished(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, check_name(name))])
