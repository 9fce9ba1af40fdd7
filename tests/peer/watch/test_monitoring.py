"""A peer's window on its machine: HTTP by raw sockets, and whether a peer runs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from peers_in_memory import Size, World

from coterie.errors import PeerError, UnreachableError
from coterie.peer.watch import monitoring
from coterie.peer.watch.monitoring import Monitor, Page, ask_standing, is_running, running
from coterie.peer.watch.pages import pages_of
from coterie.peer.watch.standing import Standing, standing_of
from coterie.testing import run_virtually

HELLO = {"/hello": Page("text/plain", lambda: "hello")}
GET = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"


def serving(
    task: Callable[[Monitor], Awaitable[None]], file: Path, pages: Mapping[str, Page] = HELLO
) -> None:
    """Do something with a monitor that listens."""

    async def main() -> None:
        monitor = Monitor("127.0.0.1:0", pages, file)
        await monitor.start()
        try:
            await asyncio.wait_for(task(monitor), 30)
        finally:
            await monitor.stop()

    asyncio.run(main())


def ask(port: int, request: bytes) -> bytes:
    """Everything that comes back; b"" also for a connection that is cut."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        try:
            sock.sendall(request)
            return b"".join(iter(lambda: sock.recv(65536), b""))
        except ConnectionError:
            return b""


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_page_is_answered_and_announced_in_a_file(tmp_path: Path) -> None:
    async def task(monitor: Monitor) -> None:
        assert json.loads(file.read_bytes())["port"] == monitor.port
        head, _, body = (await asyncio.to_thread(ask, monitor.port, GET)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length: 5\r\nCache-Control: no-store\r\nConnection: close" in head
        assert body == b"hello"
        query = GET.replace(b"/hello", b"/hello?x=1")
        assert status_of(await asyncio.to_thread(ask, monitor.port, query)) == 200

    file = tmp_path / "monitor.json"
    serving(task, file)
    assert not file.exists()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"GET http://a/hello HTTP/1.1\r\n\r\n", 404),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"HEAD /hello HTTP/1.1\r\n\r\n", 405),
        (b"GET /hello\r\n\r\n", 400),
        (b"GET /hello HTTP/2\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\xff\xfe\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
    ],
)
def test_other_requests_get_their_status(request_: bytes, status: int, tmp_path: Path) -> None:
    def fails() -> str:
        raise ValueError("no page")

    async def task(monitor: Monitor) -> None:
        answer = await asyncio.to_thread(ask, monitor.port, request_)
        assert status_of(answer) == status
        assert (b"Allow: GET" in answer) == (status == 405)
        assert status_of(await asyncio.to_thread(ask, monitor.port, GET)) == 200

    serving(task, tmp_path / "monitor.json", {**HELLO, "/broken": Page("text/plain", fails)})


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_a_request_of_more_than_8_kib_is_refused(end: bytes, tmp_path: Path) -> None:
    async def task(monitor: Monitor) -> None:
        large = b"GET /hello HTTP/1.1\r\nX: " + b"x" * 9000 + end
        answer = await asyncio.to_thread(ask, monitor.port, large)
        assert not answer or status_of(answer) == 431  # cut, if the refusal came while it was sent
        endless = await asyncio.to_thread(ask, monitor.port, b"x" * 10_000_000)
        assert not endless or status_of(endless) == 431
        assert status_of(await asyncio.to_thread(ask, monitor.port, GET)) == 200

    serving(task, tmp_path / "monitor.json")


def test_a_slow_request_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "_SECONDS", 0.3)

    async def task(monitor: Monitor) -> None:
        answer = await asyncio.to_thread(ask, monitor.port, GET[:-2])
        assert status_of(answer) == 408

    serving(task, tmp_path / "monitor.json")


def test_idle_connections_are_few_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "_SECONDS", 1.0)

    async def task(monitor: Monitor) -> None:
        idle = [socket.create_connection(("127.0.0.1", monitor.port)) for _ in range(16)]
        try:
            await asyncio.sleep(0.1)
            assert await asyncio.to_thread(ask, monitor.port, GET) == b""
            while not await asyncio.to_thread(ask, monitor.port, GET):
                await asyncio.sleep(0.1)
        finally:
            for sock in idle:
                sock.close()

    serving(task, tmp_path / "monitor.json")


def test_a_port_that_is_taken_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    async def task(monitor: Monitor) -> None:
        other = Monitor(f"127.0.0.1:{monitor.port}", HELLO, tmp_path / "other.json")
        with pytest.raises(PeerError, match=f"cannot serve metrics on 127.0.0.1:{monitor.port}"):
            await other.start()
        await other.stop()

    serving(task, tmp_path / "monitor.json")


def test_the_standing_can_be_asked_for(tmp_path: Path) -> None:
    world = World("d-psgd", tmp_path / "world", Size(peers=2, rounds=1))

    async def play() -> Standing:
        await world.play()
        return standing_of(world.peers_by_number[0])

    expected = run_virtually(play())

    async def task(monitor: Monitor) -> None:
        assert await asyncio.to_thread(ask_standing, tmp_path) == expected

    pages = {"/status": Page("application/json", expected.model_dump_json)}
    assert set(pages_of(world.peers_by_number[0])) == {"/metrics", "/health", "/status"}
    serving(task, tmp_path / "monitor.json", pages)
    with pytest.raises(UnreachableError, match="starting"):
        ask_standing(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"host": "127.0.0.1", "port": 1}', '{"host": 3, "port": "x"}']
)
def test_a_stale_or_damaged_file_is_no_more_than_that(content: str, tmp_path: Path) -> None:
    (tmp_path / "monitor.json").write_text(content)
    with pytest.raises(UnreachableError):
        ask_standing(tmp_path)


def test_one_process_runs_with_a_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert not is_running(state)
    with running(state, "alice"):
        assert is_running(state)
        with pytest.raises(PeerError, match="alice is running already"), running(state, "alice"):
            pass
    assert not is_running(state)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9464", 200),
        ("127.0.0.2", 200),
        ("[::1]:9464", 200),
        ("LocalHost:9464", 200),
        ("evil.example:9464", 421),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("192.0.2.1:9464", 421),
        ("", 421),
        ("127.0.0.1\r\nHost: evil.example", 421),
    ],
)
def test_a_web_page_cannot_ask_under_its_own_name(host: str, status: int, tmp_path: Path) -> None:
    """Its name may point to this machine: only the Host header tells it from somebody here."""

    async def task(monitor: Monitor) -> None:
        request = f"GET /hello HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        assert status_of(await asyncio.to_thread(ask, monitor.port, request)) == status

    serving(task, tmp_path / "monitor.json")
