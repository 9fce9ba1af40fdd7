"""Names that take long to look up: neither training nor members with an IP address wait for them."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from real_peers import experiment

from coterie.cli.swarm.folders import make_folders
from coterie.experiments.real_peers.joining import join
from coterie.peer.network.lookup import Names
from coterie.peer.trust.roster import Roster, roster_text
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
                    ((found, place),) = await Names().places(address)
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
        asyncio.run(Names().places(address))
    numeric = socket.AI_NUMERICHOST
    assert asked == [("192.0.2.1", numeric), ("2001:db8::1", numeric), ("localhost", 0)]


def test_one_name_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats ask for it again and again: a name that takes long must not use up the threads."""
    asked: list[str] = []
    answered = threading.Event()

    def lookup(host: str, port: Any, **settings: Any) -> Any:
        asked.append(host)
        assert answered.wait(30) or host == "quick"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", int(port)))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)

    async def main() -> None:
        names = Names()
        for _ in range(200):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(names.places("slow:7"), 0.001)
        answered.set()
        assert await names.places("slow:7") == [(socket.AF_INET, ("192.0.2.1", 7))]

    asyncio.run(main())
    assert asked == ["slow"]


def test_three_absent_members_whose_names_are_not_answered_slow_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of five members are there. The names of the others are looked up for as long as these two learn."""
    folders = make_folders(
        tmp_path, experiment(peers=5, rounds=6), [f"peer-{n}" for n in range(5)], "synchronous"
    )
    done = threading.Event()
    waiting: list[str] = []
    plain = socket.getaddrinfo

    def lookup(host: Any, port: Any, *rest: Any, **settings: Any) -> Any:
        if not str(host).startswith("absent"):
            return plain(host, port, *rest, **settings)
        waiting.append(host)
        done.wait(60)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    for folder in folders[:2]:
        roster = folder / "roster.toml"
        cards = Roster.load(folder).members.values()
        away = {c.name: c.model_copy(update={"address": f"absent{c.number}:7400"}) for c in cards}
        here = {c.name: c for c in cards if c.number < 2}
        roster.write_text(roster_text({**away, **here}))
        settings = folder / "peer.toml"
        text = settings.read_text()
        settings.write_text(re.sub(r"join_seconds = .*", "join_seconds = 2.0", text))
    joinings = [join(folder) for folder in folders[:2]]

    async def learn() -> None:
        try:
            await asyncio.gather(*(joining.take_part() for joining in joinings))
            assert not done.is_set()
        finally:
            done.set()

    asyncio.run(learn())
    assert {"absent2", "absent3", "absent4"} <= set(waiting)
    assert len(waiting) <= 2 * 3, "each name once, for each of the two"
    for joining in joinings:
        assert joining.peer.journal.round == 6
        assert joining.peer.metrics.bytes_in["peer-0"] + joining.peer.metrics.bytes_in["peer-1"] > 0


def test_a_peer_has_one_training_thread() -> None:
    async def main() -> set[str]:
        work = own_thread()
        return {await work(lambda: threading.current_thread().name) for _ in range(5)}

    (name,) = asyncio.run(main())
    assert name.startswith("training")
