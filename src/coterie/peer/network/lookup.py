"""Where hosts are: names are looked up without delaying anybody else."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

_LOOKUPS = 64  # threads that look up names, at most


class Names:
    """Where hosts are. Names may take long to look up: each name has one thread at a time, and none of theirs
    does anything else. An IP address is not looked up.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="names")
        self._running: dict[str, asyncio.Future[Any]] = {}

    async def places(self, address: str) -> list[tuple[socket.AddressFamily, Any]]:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            if _is_literal(host):
                found = _lookup(host, port, socket.AI_NUMERICHOST)
            else:
                found = await self._looked_up(host, port)
        except (UnicodeError, OverflowError) as error:
            raise OSError(f"not an address: {error}") from error
        return list(dict.fromkeys((entry[0], entry[4]) for entry in found))

    async def _looked_up(self, host: str, port: str) -> Any:
        """Whoever asks for a name that is being looked up already gets the same answer."""
        key = f"{host}:{port}"
        running = self._running.get(key)
        if running is None or running.done():
            task = partial(_lookup, host, port, 0)
            running = asyncio.get_running_loop().run_in_executor(self._threads, task)
            running.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may ask
            self._running[key] = running
        return await asyncio.shield(running)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _lookup(host: str, port: str, flags: int) -> Any:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
