"""Names that take long to look up: neither training nor members with an IP address wait for them."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from coterie.peer.network.calling import _places
from coterie.peer.turn import own_thread


async def occupy(threads: list[asyncio.Future[bool]], until: threading.Event) -> None:
    """All threads that asyncio has for looking up names wait for something."""
    loop = asyncio.get_running_loop()
    threads += [loop.run_in_executor(None, until.wait, 30) for _ in range(64)]
    await asyncio.sleep(0.05)


def test_neither_training_nor_ip_addresses_wait_for_names() -> None:
    async def main() -> None:
        done, waiting = threading.Event(), list[asyncio.Future[bool]]()
        await occupy(waiting, done)
        try:
            async with asyncio.timeout(20):
                assert await own_thread()(lambda: 7) == 7
                for address, family in (("127.0.0.1:7400", socket.AF_INET), ("[::1]:7400", socket.AF_INET6)):
                    ((found, place),) = await _places(address)
                    assert (found, place[1]) == (family, 7400)
        finally:
            done.set()
            await asyncio.gather(*waiting)

    asyncio.run(main())


def test_only_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    plain = socket.getaddrinfo

    def lookup(host: str, port: Any, **settings: Any) -> Any:
        asked.append((host, settings["flags"]))
        return plain(host, port, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    for address in ("192.0.2.1:1", "[2001:db8::1]:1", "localhost:1"):
        asyncio.run(_places(address))
    numeric = socket.AI_NUMERICHOST
    assert asked == [("192.0.2.1", numeric), ("2001:db8::1", numeric), ("localhost", 0)]


def test_a_peer_has_one_training_thread() -> None:
    async def main() -> set[str]:
        work = own_thread()
        return {await work(lambda: threading.current_thread().name) for _ in range(5)}

    (name,) = asyncio.run(main())
    assert name.startswith("training")
