"""`coterie peer invite`, `accept` and `leave`: who comes into a running experiment, and who goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.peer.cards import Folder
from coterie.cli.problems import note
from coterie.errors import ConfigError
from coterie.experiments.real_peers.folder import INVITATION_FILE, LEAVE_FILE, LEFT_FILE, experiment_of
from coterie.experiments.setup.digest import experiment_digest
from coterie.experiments.setup.schema import Experiment
from coterie.files import write_atomically
from coterie.peer.trust.cards import LARGEST_CARD, Card, card_of, parse_card
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.news import LARGEST_NEWS, Invitation, News, parse_invitation, quorum
from coterie.peer.trust.roster import Roster, refuse_own
from coterie.peer.trust.settings import load_settings
from coterie.peer.watch.monitoring import is_running
from coterie.toml_tables import read_text


def invite(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A card, or an invitation to sign, too.", show_default=False),
    ],
    folder: Folder = Path(),
) -> None:
    """Sign that somebody may come into the experiment; print the invitation. It needs more than half."""
    settings, identity, roster = load_settings(folder), Identity.load(folder), Roster.load(folder)
    own, experiment = card_of(identity, settings), experiment_of(settings)
    digest = experiment_digest(experiment)
    invitation = _invitation(file, digest)
    card = invitation.card
    refuse_own(card, own)
    _check_place(card, roster, experiment)
    known = {one.name: one for one in (*invitation.members, *roster.members.values(), own)}
    known.pop(card.name, None)
    signed = invitation.with_proof(own.name, identity.sign)
    signed = signed.model_copy(update={"members": tuple(known.values())})
    typer.echo(signed.model_dump_json(indent=1))
    staying = roster.members.keys() - roster.left.keys() - {card.name}
    signers, enough = signed.signers(roster, own), quorum(len(staying) + 1)
    note(f"{card.name} (number {card.number}, {card.address}) is invited by {', '.join(signers)}")
    note(f"  {card.fingerprint}")
    if len(signers) < enough:
        note(f"{enough} members must sign; the next one does it with: coterie peer invite THIS-FILE")
        return
    News(folder, roster, lambda: own, digest).merge([signed.model_copy(update={"members": ()})])
    note(f"That is enough. Send the file to {card.name}, who says: coterie peer accept THIS-FILE")


def accept(
    file: Annotated[
        Path, typer.Argument(metavar="INVITATION", help="The file that members signed.", show_default=False)
    ],
    folder: Folder = Path(),
) -> None:
    """Come into the experiment of those who signed an invitation; then `coterie peer run`."""
    settings, identity, roster = load_settings(folder), Identity.load(folder), Roster.load(folder)
    own, invitation = card_of(identity, settings), parse_invitation(_read(file), str(file))
    if invitation.card != own:
        raise ConfigError(f"{file} invites {invitation.card.name!r} with another card than this peer's now")
    if invitation.digest != experiment_digest(experiment_of(settings)):
        raise ConfigError(f"{file} is for another experiment than {settings.experiment}; ask for its file")
    members = [card for card in invitation.members if card.name != own.name]
    theirs = Roster(roster.path)
    theirs.members = {card.name: card for card in members}
    signers = invitation.signers(theirs, own)
    if len(signers) < quorum(len(members)):
        raise ConfigError(
            f"{file} is signed by {len(signers)} of {len(members)} members, and {quorum(len(members))} must"
        )
    roster.add(*members)
    write_atomically(folder / INVITATION_FILE, _read(file))
    for card in members:
        typer.echo(f"{card.name} (number {card.number}, {card.address}) is trusted")
        typer.echo(f"  {card.fingerprint}")
    typer.echo(
        f"Compare the fingerprint of {' or '.join(sorted(signers))} with its owner, such as by a call."
    )
    typer.echo(f"Then learn with them: coterie peer run --dir {folder}")


def leave(folder: Folder = Path()) -> None:
    """Leave the experiment before its end: hand over what the others need, say goodbye, and stop."""
    name, state = load_settings(folder).name, folder / "state"
    if (state / LEFT_FILE).exists():
        typer.echo(f"{name} has left after round {(state / LEFT_FILE).read_text().strip()}")
        return
    state.mkdir(exist_ok=True)
    write_atomically(state / LEAVE_FILE, b"")
    if is_running(state):
        typer.echo(f"{name} tells the others, takes part in its last round, and stops by itself")
    else:
        typer.echo(f"{name} does not run; it says goodbye with: coterie peer run --dir {folder}")


def _invitation(file: Path, digest: str) -> Invitation:
    raw = _read(file)
    if not raw.lstrip().startswith(b"{"):
        card = parse_card(read_text(file, LARGEST_CARD), str(file))
        if not isinstance(card, Card):
            raise ConfigError(f"{file} is the card of an authority; only peers are invited")
        return Invitation(digest=digest, card=card)
    found = parse_invitation(raw, str(file))
    if found.digest != digest:
        raise ConfigError(f"{file} is for another experiment than that of this peer")
    return found


def _check_place(card: Card, roster: Roster, experiment: Experiment) -> None:
    if card.number >= experiment.peers:
        raise ConfigError(
            f"{card.name!r} has number {card.number}, and the experiment has places 0 to "
            f"{experiment.peers - 1} for peers: `peers` is the largest number of them"
        )
    holder = roster.by_number().get(card.number)
    if holder is not None and holder.name != card.name:
        raise ConfigError(f"number {card.number} is that of {holder.name!r}; a new member needs a free one")


def _read(file: Path) -> bytes:
    return read_text(file, LARGEST_NEWS).encode()
