"""TLS contexts of a peer, kept until its certificate or its roster changes: making one costs milliseconds."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from coterie.peer.trust.identity import IDENTITY_FILE, Identity, Trust

_Version = tuple[object, ...]


class Contexts:
    """`server` and `client` are asked for every connection, and see a rotated certificate or a new member."""

    def __init__(self, folder: Path, roster: Trust) -> None:
        self._folder, self._roster = folder, roster
        self._kept: dict[str, tuple[_Version, ssl.SSLContext]] = {}

    def server(self) -> ssl.SSLContext:
        return self._current("server", lambda identity: identity.server_context(self._roster))

    def client(self) -> ssl.SSLContext:
        return self._current("client", lambda identity: identity.client_context(self._roster))

    def _current(self, side: str, make: Callable[[Identity], ssl.SSLContext]) -> ssl.SSLContext:
        version = self._version()
        kept = self._kept.get(side)
        if kept is None or kept[0] != version:
            kept = self._kept[side] = version, make(Identity.load(self._folder))
        return kept[1]

    def _version(self) -> _Version:
        """The mode too: a key that others can read is refused."""
        try:
            facts = (self._folder / IDENTITY_FILE).stat()
        except OSError:
            return ()  # never kept: loading it says what is wrong
        return facts.st_mtime_ns, facts.st_size, facts.st_ino, facts.st_mode, self._roster.anchors()
