"""Who a peer is: the private key and certificate in `identity.pem` of its folder."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path
from typing import Protocol

from cryptography import x509

from coterie.errors import ConfigError
from coterie.files import SECRET, read_secret, write_atomically
from coterie.peer.trust import certificates
from coterie.peer.trust.certificates import PEER_DAYS, PrivateKey
from coterie.peer.trust.credentials import Credentials

IDENTITY_FILE = "identity.pem"
NEXT_FILE = "identity-next.pem"
"""A new key that the others are told of before it is used."""


class Trust(Protocol):
    """Whose certificates are trusted; a `Roster`."""

    def anchors(self) -> str:
        """PEM certificates of members and authorities."""


class Signer(Protocol):
    """Signs requests; an `Authority`."""

    def sign(self, request: str, *, replace: bool = False) -> str:
        """The PEM certificate for a PEM request."""


class Identity(Credentials):
    """The key and certificate of a peer's folder."""

    FILE, OWNER = IDENTITY_FILE, "a peer"

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
        return cls(folder, certificate, key)._written()

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
        return Identity(self.folder, certificate, key)._replacing()

    def prepare(self, *, valid_days: float = PEER_DAYS) -> Identity:
        """A new key and certificate beside the present ones, which stay in use until the others know."""
        key, certificate = _new_pair(self.name, None, valid_days, None)
        write_atomically(self.folder / NEXT_FILE, certificates.pair_pem(key, certificate), mode=SECRET)
        return Identity(self.folder, certificate, key)

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
        return Identity(self.folder, certificate, self._key)._replacing()

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
        read_secret(self.path)  # refuses a file that others can read
        try:
            context.load_cert_chain(self.path)
        except ssl.SSLError as error:
            raise ConfigError(f"{self.path} cannot be used for TLS: {error.reason}") from None
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
