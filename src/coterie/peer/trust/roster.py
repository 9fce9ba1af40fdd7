"""The roster: whom a peer trusts. A file of its folder, `roster.toml`, that a running peer reads again.

A member is known by the certificate of its card. If that certificate was signed by an authority of the
roster, then any other with the same name and signature will do, except those that were revoked: such a member
can rotate its key without new cards. A member with a self-signed certificate is known by that one alone, so
that no authority can speak for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import tomli_w
from cryptography import x509
from pydantic import BaseModel, ConfigDict

from coterie import toml_tables
from coterie.errors import ConfigError, RefusedError
from coterie.files import alone, write_atomically
from coterie.peer.trust import certificates
from coterie.peer.trust.cards import AuthorityCard, Card, card_from_table
from coterie.peer.trust.credentials import LOCK_FILE
from coterie.peer.trust.names import PeerName
from coterie.registry import nearest

ROSTER_FILE = "roster.toml"
_HEAD = "# Whom this peer trusts. Changed by `coterie peer trust` and `coterie peer distrust`.\n"
_SECTIONS = ("member", "authority", "revoked", "invited", "left")
_GRACE = 600.0  # seconds in which a key that its owner has replaced is still accepted
Stamp = tuple[int, int, int]


class Revoked(BaseModel):
    """A certificate that counts no more, though its authority's signature may still be good."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: PeerName
    fingerprint: str
    because: Literal["removed", "replaced"]


class Invited(BaseModel):
    """A member that came into the experiment later: nobody waits for it at the start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: PeerName


class Left(BaseModel):
    """A member that has said goodbye: nobody waits for it any more."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: PeerName
    round: int  # the first one without it


class Roster:
    """Members, authorities, revoked certificates and who has left, as the file says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: Mapping[str, Card] = {}
        self.authorities: Mapping[str, AuthorityCard] = {}
        self.revoked: Mapping[str, Revoked] = {}  # by fingerprint
        self.invited: frozenset[str] = frozenset()
        self.left: Mapping[str, Left] = {}
        self._replaced: dict[str, tuple[Card, float]] = {}  # by fingerprint, and until when it will do
        self._stamp: Stamp | None = None

    @classmethod
    def load(cls, folder: Path) -> Roster:
        """The roster of a peer's folder; empty if there is no file."""
        roster = cls(folder / ROSTER_FILE)
        roster.refresh()
        return roster

    def refresh(self) -> bool:
        """Read the file again if it changed; says whether it did.

        A file that cannot be read raises ConfigError once, and what was read before holds on.
        """
        stamp = self._stamp_of_file()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        if stamp is None:
            raise ConfigError(f"{self.path} is gone; the roster read before holds on")
        self._read()
        return True

    def add(self, *cards: Card | AuthorityCard, replace: bool = False, invited: bool = False) -> None:
        """Trust cards, all or none. replace: also when a name has another certificate already.

        invited: members have signed that these come later.
        """
        with self._changing():
            members, authorities = dict(self.members), dict(self.authorities)
            revoked = dict(self.revoked)
            for card in cards:
                kept: dict[str, Any] = members if isinstance(card, Card) else authorities
                other: dict[str, Any] = authorities if isinstance(card, Card) else members
                if card.name in other:
                    raise ConfigError(f"a peer and an authority cannot both be called {card.name!r}")
                old = kept.get(card.name)
                if old is not None and old.fingerprint != card.fingerprint:
                    _refuse_change(old, card, replace)
                    revoked[old.fingerprint] = _revocation(old, "replaced")
                revoked.pop(card.fingerprint, None)  # whoever trusts it again means it
                kept[card.name] = card
            _refuse_duplicates(members)
            self.invited |= {card.name for card in cards if invited}
            self._write(members, authorities, revoked)

    def renew(self, card: Card) -> None:
        """A member's own new card, which it signed; for some minutes its old certificate will do, too."""
        old = self.members[card.name]
        if old.fingerprint != card.fingerprint:
            self._replaced[old.fingerprint] = old, time.monotonic() + _GRACE
        self.add(card, replace=True)

    def farewell(self, name: str, round: int) -> None:
        """A member has left: the first round without it."""
        with self._changing():
            left = {**self.left, name: Left(name=name, round=round)}
            self._write(self.members, self.authorities, self.revoked, left)

    def remove(self, name: str) -> None:
        """Trust a member, or an authority, no more."""
        with self._changing():
            members, authorities = dict(self.members), dict(self.authorities)
            card = members.pop(name, None) or authorities.pop(name, None)
            if card is None:
                known = [*members, *authorities]
                hint = nearest(name, known) if known else "the roster is empty"
                raise ConfigError(f"the roster has no {name!r}; {hint}")
            revoked = {**self.revoked, card.fingerprint: _revocation(card, "removed")}
            self._write(members, authorities, revoked)

    def identify(self, der: bytes | None) -> str:
        """The member that a certificate belongs to; raises RefusedError("certificate", ...)."""
        try:
            certificate, name, print_ = certificates.named(der or b"")
        except ConfigError:
            raise RefusedError("certificate", "it cannot be read, or has no valid common name") from None
        if print_ in self._accepted_still():
            return name
        if print_ in self.revoked:
            revoked = self.revoked[print_]
            raise RefusedError("certificate", f"that of {revoked.name!r} was {revoked.because}")
        problem = certificates.wrong_dates(certificate)
        if problem:
            raise RefusedError("certificate", f"that of {name!r} {problem}")
        card = self.members.get(name)
        if card is None:
            raise RefusedError("certificate", f"{name!r} is not in the roster")
        if card.fingerprint != print_ and not self._vouched(certificate, card):
            raise RefusedError(
                "certificate",
                f"this one of {name!r} is not that of the roster: {print_}; is there a new card?",
            )
        return name

    def verify(self, number: int, message: bytes, proof: bytes) -> bool:
        """Whether `Identity.sign` of the member with this number made the proof for this message."""
        card = self.by_number().get(number)
        try:
            return card is not None and self.identify(certificates.signer(message, proof)) == card.name
        except RefusedError:
            return False

    def anchors(self) -> str:
        """What TLS trusts: the certificates of all members and authorities, as PEM."""
        known = [*self.members.values(), *self.authorities.values(), *self._accepted_still().values()]
        return "".join(card.certificate for card in known)

    def _accepted_still(self) -> dict[str, Card]:
        now = time.monotonic()
        return {
            print_: card
            for print_, (card, until) in self._replaced.items()
            if now < until and card.name in self.members
        }

    def by_number(self) -> dict[int, Card]:
        return {card.number: card for card in sorted(self.members.values(), key=lambda card: card.number)}

    def _vouched(self, certificate: x509.Certificate, card: Card) -> bool:
        """Whether one valid authority signed both the certificate and the member's card."""
        return not certificates.may_sign_others(certificate) and any(
            certificates.is_signed_by(certificate, authority.x509)
            and certificates.is_signed_by(card.x509, authority.x509)
            for authority in self.authorities.values()
            if not certificates.wrong_dates(authority.x509)
        )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Only one process at a time reads the file and writes it anew.

        Not `refresh`: a file that cannot be read must not be overwritten with what was read before.
        """
        with alone(self.path.with_name(LOCK_FILE), wait=True):
            if self.path.exists():
                self._read()
            yield

    def _stamp_of_file(self) -> Stamp | None:
        try:
            facts = self.path.stat()
        except OSError:
            return None
        return facts.st_mtime_ns, facts.st_size, facts.st_ino

    def _read(self) -> None:
        where = str(self.path)
        table = toml_tables.load_toml(self.path)
        for key in table:
            if key not in _SECTIONS:
                raise ConfigError(f"{where}: unknown section {key!r}; {nearest(key, _SECTIONS)}")
        members: dict[str, Card] = {}
        authorities: dict[str, AuthorityCard] = {}
        for entry in [*_entries(table, "member", where), *_entries(table, "authority", where)]:
            card = card_from_table(entry, f"{where}, {entry.get('name', 'an entry without a name')}")
            kept: dict[str, Any] = members if isinstance(card, Card) else authorities
            if card.name in members or card.name in authorities:
                raise ConfigError(f"{where}: {card.name!r} is there twice")
            kept[card.name] = card
        _refuse_duplicates(members)
        revoked = [toml_tables.validate(Revoked, e, where) for e in _entries(table, "revoked", where)]
        left = [toml_tables.validate(Left, e, where) for e in _entries(table, "left", where)]
        self.members, self.authorities = members, authorities
        self.revoked = {entry.fingerprint: entry for entry in revoked}
        self.left = {entry.name: entry for entry in left}
        invited = [toml_tables.validate(Invited, e, where) for e in _entries(table, "invited", where)]
        self.invited = frozenset(entry.name for entry in invited)

    def _write(
        self,
        members: Mapping[str, Card],
        authorities: Mapping[str, AuthorityCard],
        revoked: Mapping[str, Revoked],
        left: Mapping[str, Left] | None = None,
    ) -> None:
        left = {name: entry for name, entry in (left or self.left).items() if name in members}
        self.invited &= members.keys()
        write_atomically(self.path, roster_text(members, authorities, revoked, left, self.invited).encode())
        self.members, self.authorities, self.revoked, self.left = members, authorities, revoked, left
        self._stamp = self._stamp_of_file()


def roster_text(
    members: Mapping[str, Card] | None = None,
    authorities: Mapping[str, AuthorityCard] | None = None,
    revoked: Mapping[str, Revoked] | None = None,
    left: Mapping[str, Left] | None = None,
    invited: Iterable[str] = (),
) -> str:
    table = {
        "member": [card.table() for card in (members or {}).values()],
        "authority": [card.table() for card in (authorities or {}).values()],
        "revoked": [entry.model_dump() for entry in (revoked or {}).values()],
        "invited": [{"name": name} for name in sorted(invited)],
        "left": [entry.model_dump() for entry in (left or {}).values()],
    }
    filled = {section: entries for section, entries in table.items() if entries}
    return _HEAD + tomli_w.dumps(filled, multiline_strings=True)


def refuse_own(card: Card, own: Card) -> None:
    """A card of another peer must not claim this peer's name, number or key."""
    if card.name == own.name:
        raise ConfigError(f"{card.name!r} is the name of this peer itself")
    if card.number == own.number:
        raise ConfigError(
            f"{card.name!r} and this peer both have number {card.number}; each needs one of its own"
        )
    if card.fingerprint == own.fingerprint:
        raise ConfigError(f"{card.name!r} has the certificate of this peer itself")


def _entries(table: Mapping[str, Any], section: str, where: str) -> list[dict[str, Any]]:
    entries = table.get(section, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{where}: {section!r} is a list of tables: write [[{section}]]")
    return entries


def _refuse_change(old: Card | AuthorityCard, new: Card | AuthorityCard, replace: bool) -> None:
    if not replace:
        raise ConfigError(
            f"{new.name!r} has another certificate in the roster ({old.fingerprint}); if the new one "
            f"({new.fingerprint}) is really theirs, say --replace"
        )


def _refuse_duplicates(members: Mapping[str, Card]) -> None:
    numbers: dict[int, str] = {}
    prints: dict[str, str] = {}
    for card in members.values():
        if card.number in numbers:
            raise ConfigError(
                f"{numbers[card.number]!r} and {card.name!r} both have number {card.number}; "
                "each needs one of its own"
            )
        if card.fingerprint in prints:
            raise ConfigError(f"{prints[card.fingerprint]!r} and {card.name!r} have the same certificate")
        numbers[card.number], prints[card.fingerprint] = card.name, card.name


def _revocation(card: Card | AuthorityCard, because: Literal["removed", "replaced"]) -> Revoked:
    return Revoked(name=card.name, fingerprint=card.fingerprint, because=because)
