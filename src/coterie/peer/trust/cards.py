"""Cards: what a peer, or an authority, gives to others so that they can trust it. A short text for a mail.

A card holds nothing secret. But whoever receives it should compare the fingerprint over another channel:
a card that was exchanged on its way is consistent in itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w
from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field

from coterie import toml_tables
from coterie.errors import ConfigError, printable
from coterie.peer.trust import certificates
from coterie.peer.trust.names import PeerName, Reach

if TYPE_CHECKING:
    from coterie.peer.trust.authority import Authority
    from coterie.peer.trust.identity import Identity
    from coterie.peer.trust.settings import PeerSettings

Number = Annotated[int, Field(ge=0, le=10**6, strict=True)]
LARGEST_CARD = 64 << 10  # bytes; a certificate of two thousand and a few words


class _Certified(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: PeerName
    certificate: str = Field(description="PEM", max_length=20_000)

    @cached_property
    def x509(self) -> x509.Certificate:
        return certificates.parse_certificate(self.certificate, f"card of {self.name}")

    @cached_property
    def fingerprint(self) -> str:
        return certificates.fingerprint(self.x509)

    def check(self, where: str) -> None:
        """Whether name and certificate belong together; raises ConfigError."""
        try:
            common = certificates.common_name(self.x509)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if common != self.name:
            raise ConfigError(
                f"{where}: the card says {self.name!r}, but its certificate is that of {common!r}"
            )
        if self.x509.issuer == self.x509.subject and not certificates.is_self_signed(self.x509):
            raise ConfigError(f"{where}: the certificate was changed: its signature does not fit")

    def check_dates(self, where: str) -> None:
        problem = certificates.wrong_dates(self.x509)
        if problem:
            raise ConfigError(f"{where}: the certificate of {self.name!r} {problem}; ask for a new card")

    def table(self) -> dict[str, Any]:
        """As it is written in a card and in a roster; the fingerprint shows what was altered by hand."""
        table = self.model_dump()
        table["certificate"] = certificates.certificate_pem(self.x509)
        table["fingerprint"] = self.fingerprint
        return dict(sorted(table.items(), key=lambda item: item[0] == "certificate"))


class Card(_Certified):
    """A peer: its name, its place in the experiment, where it is reached, and its certificate."""

    number: Number
    address: Reach

    def check(self, where: str) -> None:
        super().check(where)
        if certificates.may_sign_others(self.x509):
            raise ConfigError(f"{where}: this is the certificate of an authority, not of a peer")

    def text(self) -> str:
        head = f"# Card of the Coterie peer {self.name}. To trust it: coterie peer trust THIS-FILE\n"
        return head + tomli_w.dumps(self.table(), multiline_strings=True)


class AuthorityCard(_Certified):
    """An authority whose signature the peers trust."""

    kind: Literal["authority"] = "authority"

    def check(self, where: str) -> None:
        super().check(where)
        if not certificates.may_sign_others(self.x509) or not certificates.is_self_signed(self.x509):
            raise ConfigError(f"{where}: the certificate is not that of an authority")

    def text(self) -> str:
        head = f"# Card of the Coterie authority {self.name}. To trust it: coterie peer trust THIS-FILE\n"
        return head + tomli_w.dumps(self.table(), multiline_strings=True)


def card_of(identity: Identity, settings: PeerSettings) -> Card:
    """The card that a peer gives to others."""
    if identity.name != settings.name:
        raise ConfigError(
            f"peer.toml says name = {settings.name!r}, but the certificate is that of {identity.name!r}"
        )
    return Card(
        name=identity.name,
        number=settings.number,
        address=settings.address,
        certificate=identity.certificate_pem,
    )


def card_of_authority(authority: Authority) -> AuthorityCard:
    return AuthorityCard(name=authority.name, certificate=authority.certificate_pem)


def parse_card(text: str, where: str = "card") -> Card | AuthorityCard:
    """A card that can be trusted from now on: intact, of the name that it says, not expired."""
    if len(text) > LARGEST_CARD:
        raise ConfigError(f"{where} has {len(text):,} characters, and a card has at most {LARGEST_CARD:,}")
    card = card_from_table(toml_tables.parse(text, where), where)
    card.check_dates(where)
    return card


def card_from_table(table: dict[str, Any], where: str) -> Card | AuthorityCard:
    """A card out of its table, whatever its dates: those of a roster may expire there."""
    table = dict(table)
    printed = table.pop("fingerprint", None)
    if printed is None:
        raise ConfigError(f"{where}: fingerprint is missing; is this the whole card?")
    kind: type[Card] | type[AuthorityCard] = AuthorityCard if "kind" in table else Card
    card = toml_tables.validate(kind, table, where)
    certificates.parse_certificate(card.certificate, where)  # so that an error says where
    if not isinstance(printed, str) or card.fingerprint.lower() != printed.strip().lower():
        raise ConfigError(
            f"{where}: the certificate was changed: its fingerprint is {card.fingerprint}, not "
            f"{printable(str(printed), 200)}"
        )
    card.check(where)
    return card
