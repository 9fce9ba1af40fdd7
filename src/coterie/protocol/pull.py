"""Sub-protocols: parts of a round that several algorithms share, used with `yield from`."""

from __future__ import annotations

from collections.abc import Generator

from coterie.protocol.exchange import Exchange, Links
from coterie.protocol.inbox import Inbox
from coterie.protocol.trees import Tree


def pull(payload: Tree, wanted: Links, *, sealed: bool = False) -> Generator[Exchange, Inbox, Inbox]:
    """Ask the wanted nodes for their payload, and answer those who ask for ours."""
    asked = yield Exchange({}, to=wanted)
    answers = yield Exchange(payload, to=asked.links, sealed=sealed, expect=wanted)
    return answers
