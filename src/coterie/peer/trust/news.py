"""News that members sign and pass on: a new card of one's own, an invitation, a farewell.

Each statement is checked against the roster as it is. What is believed changes the roster, and is kept in
`news.json` of the peer's folder, so that who was away hears of it from anyone.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from coterie.errors import ConfigError, RefusedError
from coterie.files import alone, write_atomically
from coterie.peer.trust import certificates
from coterie.peer.trust.cards import Card, Number
from coterie.peer.trust.credentials import LOCK_FILE
from coterie.peer.trust.names import PeerName
from coterie.peer.trust.roster import Roster

NEWS_FILE = "news.json"
LARGEST_NEWS = 1 << 20  # bytes
_RENEWALS = 8  # of one member that are kept, so that who was away long can follow them
_MOST = 2000  # statements

Proof = Annotated[str, Field(max_length=4000, pattern=r"^[A-Za-z0-9+/=]+$")]
Sign: TypeAlias = Callable[[bytes], bytes]


class _Statement(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Renewal(_Statement):
    """A member's card is another one now: its key was rotated, or its address has changed."""

    kind: Literal["card"] = "card"
    card: Card
    serial: Annotated[int, Field(ge=0, le=2**53)]  # a later one counts more
    proof: Proof  # by the key that it had before

    @classmethod
    def signed(cls, card: Card, sign: Sign, serial: int | None = None) -> Renewal:
        serial = time.time_ns() // 1000 if serial is None else serial
        return cls(card=card, serial=serial, proof=_proof(sign, _of_card("card", card, str(serial))))

    def believed(self, roster: Roster) -> bool:
        """Whether the member signed it, with the key that the roster knows."""
        statement = _of_card("card", self.card, str(self.serial))
        return _is_by(roster, self.card.number, statement, self.proof)


class Invitation(_Statement):
    """Somebody may come into the experiment, because more than half of the members signed so."""

    kind: Literal["invitation"] = "invitation"
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of the experiment
    card: Card
    proofs: Annotated[dict[PeerName, Proof], Field(max_length=1000)] = Field(default_factory=dict)
    members: Annotated[tuple[Card, ...], Field(max_length=1000)] = ()  # for the one who is invited

    def with_proof(self, name: str, sign: Sign) -> Invitation:
        return self.model_copy(update={"proofs": {**self.proofs, name: _proof(sign, self.statement)}})

    @property
    def statement(self) -> bytes:
        return _of_card("invitation", self.card, self.digest)

    def signers(self, roster: Roster, own: Card) -> list[str]:
        """Members, this peer among them, who did sign it."""
        found = []
        for name, proof in self.proofs.items():
            if name == own.name:
                signer = certificates.signer(self.statement, base64.b64decode(proof))
                good = signer is not None and certificates.named(signer)[2] == own.fingerprint
            else:
                member = roster.members.get(name)
                good = member is not None and _is_by(roster, member.number, self.statement, proof)
            found += [name] if good else []
        return found


class Farewell(_Statement):
    """A member leaves: the first round without it."""

    kind: Literal["farewell"] = "farewell"
    name: PeerName
    number: Number
    round: Annotated[int, Field(ge=0, le=10**9)]
    proof: Proof

    @classmethod
    def signed(cls, card: Card, round: int, sign: Sign) -> Farewell:
        proof = _proof(sign, _farewell(card.name, card.number, round))
        return cls(name=card.name, number=card.number, round=round, proof=proof)

    def believed(self, roster: Roster) -> bool:
        statement = _farewell(self.name, self.number, self.round)
        member = roster.members.get(self.name)
        return (
            member is not None
            and member.number == self.number
            and _is_by(roster, self.number, statement, self.proof)
        )


Statement: TypeAlias = Annotated[Renewal | Invitation | Farewell, Field(discriminator="kind")]
_STATEMENTS: TypeAdapter[list[Statement]] = TypeAdapter(list[Statement])


def quorum(members: int) -> int:
    """More than half of so many members."""
    return members // 2 + 1


class News:
    """Statements of one experiment that this peer believes and passes on. roster: which they change."""

    def __init__(self, folder: Path, roster: Roster, own: Callable[[], Card], digest: str) -> None:
        self.path, self.roster, self.own, self.experiment = folder / NEWS_FILE, roster, own, digest
        self._items: list[Statement] = []
        self._stamp: tuple[int, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if a command has changed it."""
        try:
            facts = self.path.stat()
            stamp = facts.st_mtime_ns, facts.st_ino
            if stamp != self._stamp:
                self._items, self._stamp = parse_news(self.path.read_bytes(), str(self.path)), stamp
        except FileNotFoundError:
            self._items, self._stamp = [], None

    @property
    def digest(self) -> str:
        """Equal for peers who have the same news; empty: there are none."""
        text = "\n".join(sorted(item.model_dump_json(exclude={"members"}) for item in self._items))
        return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""

    def text(self) -> bytes:
        return _STATEMENTS.dump_json(self._items)

    def renewals(self, name: str) -> list[Renewal]:
        """Of a member, the oldest first."""
        found = [item for item in self._items if isinstance(item, Renewal) and item.card.name == name]
        return sorted(found, key=lambda item: item.serial)

    def merge(self, statements: Iterable[Statement]) -> list[str]:
        """Take in what is new and believed; a sentence about each."""
        said = []
        with alone(self.path.with_name(LOCK_FILE + ".news"), wait=True):
            self.refresh()
            before = len(self._items)
            for item in sorted(statements, key=_order):
                if item not in self._items and (sentence := self._take(item)) is not None:
                    self._items.append(item)
                    said += [sentence] if sentence else []
            if len(self._items) != before:
                self._shorten()
                write_atomically(self.path, self.text())
                facts = self.path.stat()
                self._stamp = facts.st_mtime_ns, facts.st_ino
        return said

    def _take(self, item: Statement) -> str | None:
        """Change the roster; what to say of it, or None if it is not believed."""
        if isinstance(item, Renewal):
            return self._renewed(item)
        if isinstance(item, Invitation):
            return self._invited(item)
        if item.name == self.own().name:
            return ""
        if not item.believed(self.roster):
            return None
        self.roster.farewell(item.name, item.round)
        return f"{item.name} leaves after round {item.round}"

    def _renewed(self, item: Renewal) -> str | None:
        name = item.card.name
        if name == self.own().name:
            return ""
        known = self.roster.members.get(name)
        if known is None or known.number != item.card.number or not _sound(item.card):
            return None
        if any(other.serial >= item.serial for other in self.renewals(name)) or not item.believed(
            self.roster
        ):
            return None
        if known.fingerprint == item.card.fingerprint and known.address == item.card.address:
            return ""
        self.roster.renew(item.card)
        if known.fingerprint != item.card.fingerprint:
            return f"{name} has a new key: {item.card.fingerprint}"
        return f"{name} is now at {item.card.address}"

    def _invited(self, item: Invitation) -> str | None:
        card, own = item.card, self.own()
        if card.name == own.name:
            return ""
        known = self.roster.members.get(card.name)
        if known is not None:
            return "" if known.fingerprint == card.fingerprint else None
        enough = quorum(len(self.roster.members) + 1)
        signers = item.signers(self.roster, own)
        if item.digest != self.experiment or len(signers) < enough or not _sound(card):
            return None
        if card.fingerprint in self.roster.revoked or card.number == own.number:
            return None
        try:
            self.roster.add(card, invited=True)
        except ConfigError:  # its number or key is that of another member
            return None
        return f"{card.name} (number {card.number}) is invited by {', '.join(sorted(signers))}"

    def _shorten(self) -> None:
        old = {
            id(item)
            for name in {item.card.name for item in self._items if isinstance(item, Renewal)}
            for item in self.renewals(name)[:-_RENEWALS]
        }
        self._items = [item for item in self._items if id(item) not in old][-_MOST:]


def parse_news(raw: bytes, where: str = "news") -> list[Statement]:
    """Statements in their proper form, whether or not they are to be believed; raises ConfigError."""
    if len(raw) > LARGEST_NEWS:
        raise ConfigError(f"{where}: {len(raw):,} bytes of news, and at most {LARGEST_NEWS:,} are read")
    try:
        return _STATEMENTS.validate_json(raw or b"[]")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ConfigError(f"{where}: this is no news of Coterie peers: {first['msg']}") from None


def parse_invitation(raw: bytes, where: str) -> Invitation:
    """An invitation's file; raises ConfigError."""
    try:
        found = Invitation.model_validate_json(raw)
    except ValidationError:
        raise ConfigError(f"{where} is neither a card nor an invitation") from None
    for card in (found.card, *found.members):
        card.check(where)
    return found


def _order(item: Statement) -> tuple[int, int]:
    """Who is invited comes before what it says itself; its cards, in their order, before its farewell."""
    if isinstance(item, Invitation):
        return 0, 0
    return (1, item.serial) if isinstance(item, Renewal) else (2, item.round)


def _sound(card: Card) -> bool:
    try:
        card.check(card.name)
    except ConfigError:
        return False
    return not certificates.wrong_dates(card.x509)


def _of_card(kind: str, card: Card, rest: str) -> bytes:
    parts = (f"coterie {kind}", card.name, str(card.number), card.address, card.fingerprint, rest)
    return "\n".join(parts).encode()


def _farewell(name: str, number: int, round: int) -> bytes:
    return f"coterie farewell\n{name}\n{number}\n{round}".encode()


def _proof(sign: Sign, statement: bytes) -> str:
    return base64.b64encode(sign(statement)).decode()


def _is_by(roster: Roster, number: int, statement: bytes, proof: str) -> bool:
    try:
        return roster.verify(number, statement, base64.b64decode(proof, validate=True))
    except (ValueError, RefusedError):
        return False
