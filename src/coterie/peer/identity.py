"""Who a peer is: a private key and a certificate, in one file of its folder that only its owner reads.

Key and certificate share the file `identity.pem`, so that one rename replaces both. The key never leaves that
file and this process, and appears in no message, log or `repr`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from cryptography import x509

from coterie.errors import ConfigError
from coterie.peer import certificates
from coterie.peer.certificates import PEER_DAYS, PrivateKey
from coterie.peer.files import SECRET, make_private_folder, read_secret, replace_secret, write_new

IDENTITY_FILE = "identity.pem"


class Trust(Protocol):
    """Whose certificates are trusted; a `Roster`."""

    def anchors(self) -> str:
        """PEM certificates of members and authorities."""


class Signer(Protocol):
    """Signs requests; an `Authority`."""

    def sign(self, request: str, *, replace: bool = False) -> str:
        """The PEM certificate for a PEM request."""


@dataclass(frozen=True, eq=False, repr=False)
class Identity:
    """The key and certificate of a peer's folder."""

    folder: Path
    certificate: x509.Certificate
    _key: PrivateKey = field(repr=False)

    @classmethod
    def create(
        cls,
        folder: Path,
        name: str,
        *,
        authority: Signer | None = None,
        valid_days: float = PEER_DAYS,
        valid_from: datetime | None = None,
    ) -> Identity:
        """A new key, and a certificate that it or an authority signs; an existing one is never touched."""
        if (folder / IDENTITY_FILE).exists():
            raise ConfigError(f"{folder / IDENTITY_FILE} exists already; a new key is made by rotating it")
        key, certificate = _new_pair(name, authority, valid_days, valid_from)
        make_private_folder(folder)
        write_new(folder / IDENTITY_FILE, certificates.pair_pem(key, certificate), SECRET)
        return cls(folder, certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Identity:
        path = folder / IDENTITY_FILE
        if not path.is_file():
            raise ConfigError(f"{folder} is not a peer's folder: it has no {IDENTITY_FILE}")
        key, certificate = certificates.parse_pair(read_secret(path), path)
        certificates.common_name(certificate)
        return cls(folder, certificate, key)

    @property
    def name(self) -> str:
        return certificates.common_name(self.certificate)

    @property
    def fingerprint(self) -> str:
        return certificates.fingerprint(self.certificate)

    @property
    def certificate_pem(self) -> str:
        return certificates.certificate_pem(self.certificate)

    @property
    def self_signed(self) -> bool:
        return certificates.is_self_signed(self.certificate)

    def rotate(
        self,
        *,
        authority: Signer | None = None,
        valid_days: float = PEER_DAYS,
        valid_from: datetime | None = None,
    ) -> Identity:
        """A new key and certificate in place of the old ones, which stay until both are written."""
        key, certificate = _new_pair(self.name, authority, valid_days, valid_from, replace=True)
        return self._store(key, certificate)

    def request(self) -> str:
        """A PEM request for a certificate of this key, to be signed by an authority."""
        return certificates.request_for(self._key, self.name)

    def install(self, pem: str, where: str = "certificate") -> Identity:
        """Put the certificate that an authority signed for this key in place of the present one."""
        certificate = certificates.parse_certificate(pem, where)
        if certificate.public_key() != self._key.public_key():
            raise ConfigError(f"{where} is for another key; have a new request signed")
        if certificates.common_name(certificate) != self.name:
            raise ConfigError(f"{where} is for {certificates.common_name(certificate)!r}, not {self.name!r}")
        problem = certificates.wrong_dates(certificate)
        if problem:
            raise ConfigError(f"{where} {problem}; have a new request signed")
        return self._store(self._key, certificate)

    def sign(self, message: bytes) -> bytes:
        """A proof for `Roster.verify` that this peer wrote a message. TLS signs nothing that looks like one.

        It holds the certificate too: members of an authority may show one that is newer than their card.
        """
        return certificates.sign(self._key, self.certificate, message)

    def server_context(self, roster: Trust) -> ssl.SSLContext:
        """For connections that others make: they must show a certificate that the roster trusts."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER, roster)
        context.num_tickets = 0  # every connection shows its certificate again; no session is resumed
        return context

    def client_context(self, roster: Trust) -> ssl.SSLContext:
        """For connections to others. The certificate counts, not the host: `Roster.identify` reads it."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, roster)

    def update_context(self, context: ssl.SSLContext, roster: Trust) -> None:
        """Let a context in use know a changed roster and a rotated certificate, for its next connections.

        OpenSSL can add trust but not take it away: who was removed is refused by `Roster.identify`.
        """
        path = self.folder / IDENTITY_FILE
        read_secret(path)  # refuses a file that others can read
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise ConfigError(f"{path} cannot be used for TLS: {error.reason}") from None
        anchors = roster.anchors()
        if anchors:
            context.load_verify_locations(cadata=anchors)

    def _context(self, protocol: int, roster: Trust) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        # A member's certificate is trusted by itself, also when its authority is not.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.options |= ssl.OP_NO_TICKET
        self.update_context(context, roster)
        return context

    def _store(self, key: PrivateKey, certificate: x509.Certificate) -> Identity:
        replace_secret(self.folder / IDENTITY_FILE, certificates.pair_pem(key, certificate))
        return Identity(self.folder, certificate, key)

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, {self.fingerprint})"


def _new_pair(
    name: str,
    authority: Signer | None,
    valid_days: float,
    valid_from: datetime | None,
    replace: bool = False,
) -> tuple[PrivateKey, x509.Certificate]:
    key = certificates.new_key()
    if authority is None:
        return key, certificates.self_signed(key, name, valid_days=valid_days, valid_from=valid_from)
    signed = authority.sign(certificates.request_for(key, name), replace=replace)
    return key, certificates.parse_certificate(signed, "authority")
