"""`coterie peer`: who a real peer is, and whom it trusts. None of this needs PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from coterie.cli.problems import note
from coterie.errors import ConfigError
from coterie.peer.trust.authority import Authority
from coterie.peer.trust.cards import LARGEST_CARD, AuthorityCard, Card, card_of, parse_card
from coterie.peer.trust.certificates import days_left, wrong_dates
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.news import News, Renewal
from coterie.peer.trust.roster import Roster, refuse_own
from coterie.peer.trust.settings import load_settings
from coterie.reporting.tables import show
from coterie.toml_tables import read_text

_SOON = 30  # days before a certificate expires at which its owner is told

Folder = Annotated[Path, typer.Option("--dir", help="The peer's folder.", metavar="DIR")]
AuthorityFolder = Annotated[
    Path | None,
    typer.Option(
        "--ca", help="Folder of an authority that signs the certificate.", metavar="DIR", show_default=False
    ),
]


def card(folder: Folder = Path()) -> None:
    """Print what others need to trust this peer; nothing in it is secret."""
    typer.echo(_own_card(folder).text(), nl=False)


def trust(
    cards: Annotated[
        list[Path], typer.Argument(metavar="CARD...", help="Cards of others.", show_default=False)
    ],
    folder: Folder = Path(),
    replace: Annotated[
        bool, typer.Option("--replace", help="Also if a name has another certificate already.")
    ] = False,
) -> None:
    """Add peers, or an authority, to the roster. Compare the fingerprints with their owners."""
    own, roster = _own_card(folder), _roster(folder)
    added: list[Card | AuthorityCard] = []
    for path in cards:
        one = parse_card(read_text(path, LARGEST_CARD), str(path))
        if one.fingerprint == own.fingerprint and one.name == own.name:
            note(f"note: {path} is this peer's own card, and is left out")
            continue
        if isinstance(one, Card):
            refuse_own(one, own)
        added.append(one)
    roster.add(*added, replace=replace)
    for one in added:
        kind = f"number {one.number}, {one.address}" if isinstance(one, Card) else "authority"
        typer.echo(f"{one.name} ({kind}) is trusted")
        typer.echo(f"  {one.fingerprint}")
    if added:
        typer.echo(
            "Compare each fingerprint with its owner by another way than the card came, such as a call."
        )


def distrust(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name in the roster.", show_default=False)],
    folder: Folder = Path(),
) -> None:
    """Remove a peer, or an authority, from the roster; a running peer notices it."""
    _roster(folder).remove(name)
    typer.echo(f"{name} is removed; its certificate is refused from now on")


def show_roster(folder: Folder = Path()) -> None:
    """Show whom this peer trusts, and until when."""
    roster = _roster(folder)
    if not roster.members and not roster.authorities:
        typer.echo("The roster is empty. Add a card with: coterie peer trust CARD")
        return
    show(_roster_table(roster))
    _note_own_expiry(folder)


def rotate(
    folder: Folder = Path(),
    ca: AuthorityFolder = None,
    self_signed: Annotated[
        bool, typer.Option("--self-signed", help="Although the present one is signed by an authority.")
    ] = False,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Without telling the others first: they need the new card.")
    ] = False,
) -> None:
    """Make a new key and certificate in place of the present ones."""
    identity = Identity.load(folder)
    if not identity.self_signed and ca is None and not self_signed:
        raise ConfigError(
            "the present certificate is signed by an authority; name its folder with --ca, or say "
            "--self-signed"
        )
    if ca is not None and self_signed:
        raise ConfigError("--ca and --self-signed exclude each other")
    if ca is None and identity.self_signed and not at_once and _roster(folder).members:
        _announce_next(folder, identity)
        return
    identity = identity.rotate(authority=authority_in(ca))
    typer.echo(f"{identity.name} has a new key and certificate, {_until(identity.certificate)}")
    typer.echo(f"  {identity.fingerprint}")
    if ca is None:
        typer.echo("Send your new card to all others; they add it with `coterie peer trust CARD --replace`.")


def _announce_next(folder: Path, identity: Identity) -> None:
    """The present key signs the new card; it is used until the others know."""
    settings, roster = load_settings(folder), _roster(folder)
    own, following = card_of(identity, settings), identity.prepare()
    renewal = Renewal.signed(card_of(following, settings), identity.sign)
    News(folder, roster, lambda: own, "").merge([renewal])
    typer.echo(f"{identity.name} has a new key and certificate, {_until(following.certificate)}")
    typer.echo(f"  {following.fingerprint}")
    typer.echo("The running peer tells the others, and uses it when all who are there know.")


def request(folder: Folder = Path()) -> None:
    """Print a request for a certificate, to be signed with `coterie ca sign`."""
    typer.echo(Identity.load(folder).request(), nl=False)


def install(
    certificate: Annotated[
        Path, typer.Argument(metavar="FILE", help="The signed certificate.", show_default=False)
    ],
    folder: Folder = Path(),
) -> None:
    """Use the certificate that an authority signed for this peer's key."""
    identity = Identity.load(folder).install(read_text(certificate), str(certificate))
    typer.echo(f"{identity.name} has a new certificate, {_until(identity.certificate)}")
    typer.echo(f"  {identity.fingerprint}")


def authority_in(folder: Path | None) -> Authority | None:
    """The authority that `--ca` names."""
    return None if folder is None else Authority.load(folder)


def _own_card(folder: Path) -> Card:
    return card_of(Identity.load(folder), load_settings(folder))


def _roster(folder: Path) -> Roster:
    load_settings(folder)  # refuses a folder that is not a peer's
    return Roster.load(folder)


def _roster_table(roster: Roster) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for header in ("name", "number", "address", "fingerprint", "valid until", "days left"):
        table.add_column(header, overflow="fold")
    half = 16 * 3  # characters: on one line, a fingerprint would leave no room for the rest
    members = [(card, str(card.number), card.address) for card in roster.by_number().values()]
    for one, number, address in [
        *members,
        *((card, "", "authority") for card in roster.authorities.values()),
    ]:
        left = wrong_dates(one.x509).partition(" on ")[0] or str(days_left(one.x509))
        shown = f"{one.fingerprint[:half]}\n{one.fingerprint[half:]}"
        until = f"{one.x509.not_valid_after_utc:%Y-%m-%d}"
        table.add_row(*map(Text, (one.name, number, address, shown, until, left)))
    return table


def _note_own_expiry(folder: Path) -> None:
    left = days_left(Identity.load(folder).certificate)
    if left < _SOON:
        note(f"note: this peer's own certificate is valid for {left} days; renew it: coterie peer rotate")


def _until(certificate: Any) -> str:
    return f"valid until {certificate.not_valid_after_utc:%Y-%m-%d}"
