"""Messages between peers over mutual TLS.

Plain asyncio and the standard library's `ssl` rather than gRPC: gRPC for Python does not report failed
handshakes, which must be refused with a reason and counted, and does not let a receiver decide about a
message before its body is read. The throughput is that of a bare TLS socket (benchmarks/transport.py).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from coterie.peer.network.calling import Caller
from coterie.peer.network.frames import Limits
from coterie.peer.network.messages import Head
from coterie.peer.network.serving import Identify, Refused, Server
from coterie.peer.network.transport import Handler

__all__ = ["Limits", "TlsTransport"]


class TlsTransport:
    """A `Transport` that listens too.

    name:            ours, the sender of refusals
    host, port:      where to listen; port 0 lets the system choose
    server_context, client_context: called for every connection, so that a changed roster or a renewed
                     certificate needs no restart; TLS 1.3 and certificates on both sides are enforced here
    identify:        from a certificate (DER) to the name of its peer; raises RefusedError for strangers
    spool:           a folder of our own for large bodies
    refused:         told of every refusal by this side: its reason, and the peer's name or address
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        server_context: Callable[[], ssl.SSLContext],
        client_context: Callable[[], ssl.SSLContext],
        identify: Identify,
        spool: Path,
        limits: Limits | None = None,
        refused: Refused = lambda reason, who: None,
    ) -> None:
        limits = limits or Limits()
        self.host, self.port = host, port
        self._server = Server(name, server_context, identify, limits, spool, refused)
        self._caller = Caller(client_context, identify, limits, refused)

    async def start(self, handler: Handler) -> None:
        """Listen; `port` is then the one that the system chose. PeerError when that is impossible."""
        self.port = await self._server.start(self.host, self.port, handler)

    async def stop(self) -> None:
        """Close all connections, within seconds. The transport can be started again."""
        self._caller.close()
        await self._server.stop()

    async def request(
        self, to: str, address: str, head: Head, body: bytes = b"", *, timeout: float
    ) -> tuple[Head, bytes]:
        """See `Transport.request`. RefusedError "certificate" also when `to` is not who answers there."""
        return await self._caller.request(to, address, head, body, timeout)
