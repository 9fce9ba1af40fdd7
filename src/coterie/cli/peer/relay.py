"""`coterie relay`: where two peers meet that can only dial out. Needs no PyTorch."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated

import typer

from coterie.cli.interruption import ended_like_interrupted
from coterie.cli.problems import note
from coterie.errors import ConfigError
from coterie.peer.network.relay import Relay, RelayLimits
from coterie.peer.trust.names import split_address, valid_address


def relay(
    listen: Annotated[str, typer.Option(help="Where it listens.", metavar="HOST:PORT")] = "0.0.0.0:7500",
    rate: Annotated[
        float, typer.Option(min=0.001, help="MB per second of each direction of a call, at most.")
    ] = 10.0,
    connections: Annotated[int, typer.Option(min=2, help="Connections at a time, at most.")] = 1000,
) -> None:
    """Forward TLS between peers that can only dial out. It sees sizes only, and stores nothing."""
    try:
        host, port = split_address(valid_address(listen, lowest_port=0))
    except ValueError as error:
        raise ConfigError(f"--listen {listen}: {error}") from None
    limits = RelayLimits(rate=rate * 1e6, connections=connections)
    with ended_like_interrupted():
        asyncio.run(_serve(Relay(limits), host, port))


async def _serve(relay: Relay, host: str, port: int) -> None:
    stopped = asyncio.Event()
    if sys.platform != "win32":
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    chosen = await relay.start(host, port)
    note(f"relaying on {host}:{chosen}; an address through it is relay/THIS-HOST:{chosen}/TOKEN")
    try:
        await stopped.wait()
    finally:
        await relay.stop()
        counts = relay.counts
        note(f"{counts['calls']} calls, {counts['bytes']} bytes, {counts['refused']} refused")
