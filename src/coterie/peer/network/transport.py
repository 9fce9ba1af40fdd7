"""What a peer needs of a network: requests to other peers, and a handler for theirs.

`tls` implements it with mutual TLS; tests implement it in memory, with faults drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol, TypeAlias

from coterie.peer.network.messages import Head

Body: TypeAlias = "bytes | Path"
"""A received body: in memory, or in a file of its own when it is large. Whoever takes it removes the file."""


class Handler(Protocol):
    """What a peer does with the messages of others. Errors other than `RefusedError` are bugs."""

    def admit(self, caller: str, head: Head, size: int) -> Awaitable[None] | None:
        """Decide about a message before its body is read. None: there is a use for it now; else wait.

        caller: the name that belongs to the certificate of the connection. size: bytes of the body.
        Raises RefusedError, at once or after the wait.
        """

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        """Take an admitted message, without waiting; returns the answer. Raises RefusedError."""


class Transport(Protocol):
    async def request(
        self, to: str, address: str, head: Head, body: bytes = b"", *, timeout: float
    ) -> tuple[Head, bytes]:
        """Send a message and wait for its answer.

        Raises UnreachableError when there is no answer within the timeout, and then it is unknown whether
        the message was taken; RefusedError when the other side answers with a refusal, and then it was not.
        """
