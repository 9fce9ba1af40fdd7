"""A real peer's notices: its own card and farewell, invitations, and when to use a new key."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path

from coterie.errors import RunFolderError
from coterie.experiments.real_peers.folder import INVITATION_FILE, LEAVE_FILE, LEFT_FILE
from coterie.files import write_atomically
from coterie.peer.process import Peer
from coterie.peer.trust.cards import Card
from coterie.peer.trust.identity import NEXT_FILE, Identity
from coterie.peer.trust.news import Farewell, News, Renewal, parse_news
from coterie.peer.trust.roster import Roster

_log = logging.getLogger("coterie.peer")
_CARD_FILE = "card"  # this peer's own, as others have it


def wants_to_leave(state: Path) -> bool:
    """Whether `coterie peer leave` was said."""
    return (state / LEAVE_FILE).exists()


def is_invited(folder: Path) -> bool:
    """Whether this peer came by an invitation, to an experiment that others may have begun."""
    return (folder / INVITATION_FILE).exists()


def say_farewell(peer: Peer, folder: Path) -> None:
    """It has left: whoever starts it again is told so."""
    write_atomically(folder / "state" / LEFT_FILE, f"{peer.journal.round}\n".encode())


class Notices(News):
    """The news of a peer that runs: a `Bulletin`."""

    def __init__(self, folder: Path, roster: Roster, own: Callable[[], Card], digest: str) -> None:
        super().__init__(folder, roster, own, digest)
        self._folder = folder
        self._tell_own_card()

    def _tell_own_card(self) -> None:
        """If it is another than when this peer last ran. The first card is given by hand."""
        kept, said = self._folder / "state" / _CARD_FILE, self.renewals(self.own().name)
        text = self.own().text().encode()
        if (self._folder / NEXT_FILE).exists() or (kept.exists() and kept.read_bytes() == text):
            return
        if kept.exists() and not (said and said[-1].card == self.own()):
            self.merge([Renewal.signed(self.own(), Identity.load(self._folder).sign)])
        write_atomically(kept, text)

    @property
    def digest(self) -> str:
        self.refresh()
        return super().digest

    def read(self, text: bytes) -> None:
        for sentence in self.merge(parse_news(text)):
            _log.warning("%s", sentence)

    def leave(self, round: int) -> None:
        """Sign this peer's own farewell: the first round without it."""
        self.merge([Farewell.signed(self.own(), round, Identity.load(self._folder).sign)])

    def told(self, members: Collection[str], everyone: Collection[str]) -> None:
        """A new key is used as soon as all who are there know of it."""
        path = self._folder / NEXT_FILE
        if not everyone or set(members) != set(everyone) or not path.exists():
            return
        try:
            os.replace(path, Identity.load(self._folder).path)
        except OSError as error:
            raise RunFolderError(f"cannot use {path}: {error.strerror}") from None
        _log.warning("%s have the new key, which is used from now on", ", ".join(sorted(members)))
