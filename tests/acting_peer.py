"""A member of the roster that is no peer, over a real transport: for what a peer would never send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from real_peers import PORT, Swarm

from coterie.experiments.real_peers.folder import experiment_of
from coterie.experiments.setup.digest import experiment_digest
from coterie.peer.network.calling import TlsTransport
from coterie.peer.network.messages import Body, Head, Hello, Receipt, Whereabouts
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import Roster
from coterie.peer.trust.settings import load_settings


class Actor:
    """It answers hellos from where it claims to be, takes every parcel, and sends what it is told to."""

    def __init__(self, swarm: Swarm, number: int, folder: Path | None = None) -> None:
        self.folder = folder or swarm.place(number)
        self.name, self.number, self.hosts = Identity.load(self.folder).name, number, swarm.hosts
        self.digest = experiment_digest(experiment_of(load_settings(swarm.place(number))))
        self.round, self.finished = 0, False  # where it claims to be
        self.greeted = False  # somebody said hello
        self.received: dict[str, bytes] = {}  # the last parcel of each
        roster = Roster.load(self.folder)
        self.transport = TlsTransport(
            self.name,
            self.hosts[number],
            PORT,
            server_context=lambda: Identity.load(self.folder).server_context(roster),
            client_context=lambda: Identity.load(self.folder).client_context(roster),
            identify=roster.identify,
            spool=self.folder / "spool",
        )

    async def admit(self, caller: str, head: Head, size: int) -> None:
        pass

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        if isinstance(head, Hello):
            self.greeted = True
            return self.hello(), b""
        if isinstance(body, bytes):
            self.received[caller] = body
        else:
            body.unlink()
        return Receipt(sender=self.name), b""

    def hello(self, **changes: Any) -> Hello:
        address = f"{self.hosts[self.number]}:{PORT}"
        hello = Hello(
            sender=self.name,
            number=self.number,
            digest=self.digest,
            at=Whereabouts(address=address),
            round=self.round,
            finished=self.finished,
        )
        return hello.model_copy(update=changes)

    async def say(self, number: int, head: Head, body: bytes = b"", timeout: float = 30.0) -> Head:
        """To the peer of this number; its answer."""
        address = f"{self.hosts[number]}:{PORT}"
        answer, _ = await self.transport.request(f"peer-{number}", address, head, body, timeout=timeout)
        return answer
