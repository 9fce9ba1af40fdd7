"""A peer's window: its `pages` over plain HTTP; asking it, and whether it runs.

It is for this machine: a caller comes from loopback, and names this machine as whom it asks. Others must show
a token, if there is one. The window may be asked anything, so everything is bounded: the request, the time,
the number of connections. It shows and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http.client
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from coterie.errors import ConfigError, CoterieError, PeerError, UnreachableError
from coterie.files import alone, make_private_folder, read_secret, somebody_has, write_atomically
from coterie.peer.trust.names import is_loopback, split_address
from coterie.peer.watch.standing import Standing

MONITOR_FILE = "monitor.json"
_LOCK_FILE = "lock"
_LONGEST_REQUEST = 8192  # bytes of request line and headers
_SECONDS = 2.0  # for one request and its answer
_CONNECTIONS = 16
_SHORTEST_TOKEN = 16  # characters
_TEXT = "text/plain; charset=utf-8"

_log = logging.getLogger("coterie.peer")


@contextlib.contextmanager
def running(state: Path, whose: str) -> Iterator[None]:
    """Only one process runs with a peer's state; PeerError when another does."""
    make_private_folder(state)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone(state / _LOCK_FILE, wait=False))
        except BlockingIOError:
            raise PeerError(f"{whose} is running already, with the state in {state}") from None
        yield


def is_running(state: Path) -> bool:
    """Whether a process runs with a peer's state."""
    return somebody_has(state / _LOCK_FILE)


def read_token(path: Path) -> str:
    """The first line of a token's file, which nobody else may read; ConfigError if it is no good token."""
    token = read_secret(path).decode("latin-1").strip().partition("\n")[0].strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(f"{path}: a token has at least {_SHORTEST_TOKEN} printable characters")
    return token


class Page(NamedTuple):
    kind: str
    text: Callable[[], str]


class _Refused(Exception):
    """A request that gets another answer than a page."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Monitor:
    """Answers GET requests for its pages. `file` tells others on this machine where, while it runs.

    token: what callers from elsewhere must show, read for every request; None: there are none.
    """

    def __init__(
        self,
        address: str,
        pages: Mapping[str, Page],
        file: Path,
        token: Callable[[], str] | None = None,
    ) -> None:
        self._host, self.port = split_address(address)
        self._token = token
        self._pages, self._file = pages, file
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; `port` is then the one that the system chose. PeerError when that is impossible."""
        try:
            self._server = await asyncio.start_server(
                self._connected, self._host, self.port, limit=_LONGEST_REQUEST
            )
        except OSError as error:
            raise PeerError(
                f"cannot serve metrics on {self._host}:{self.port}: {error.strerror or error}; "
                "set another port in peer.toml, or 0 for any"
            ) from None
        host, self.port = self._server.sockets[0].getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # where this machine finds it
        content = json.dumps({"host": host, "port": self.port, "process": os.getpid()})
        write_atomically(self._file, content.encode(), durable=False)

    async def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._answering) >= _CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, and the end."""
        try:
            async with asyncio.timeout(_SECONDS):
                await self._answer(reader, writer)
        except TimeoutError:
            writer.write(_answer(HTTPStatus.REQUEST_TIMEOUT))
        except (OSError, asyncio.IncompleteReadError):
            pass  # who asked is gone
        finally:
            writer.close()
            # A client that does not read its answer must not hold the connection.
            asyncio.get_running_loop().call_later(_SECONDS, writer.transport.abort)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path, headers = await _requested(reader)
            self._check(headers, str((writer.get_extra_info("peername") or ("",))[0]))
            writer.write(self._page(path))
        except _Refused as refused:
            writer.write(_answer(refused.status))
        await writer.drain()

    def _check(self, headers: Mapping[str, list[str]], source: str) -> None:
        """Whether a caller may see the pages."""
        shown = [value.removeprefix("Bearer ").encode() for value in headers.get("authorization", ())]
        if self._token is not None and len(shown) == 1:
            try:
                wanted = self._token().encode()
            except CoterieError as error:
                _log.warning("%s", error)
                raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR) from None
            if hmac.compare_digest(shown[0], wanted):
                return
        if not is_loopback(source):
            raise _Refused(HTTPStatus.UNAUTHORIZED)
        if not all(map(_is_this_machine, headers.get("host", ()))):
            raise _Refused(HTTPStatus.MISDIRECTED_REQUEST)

    def _page(self, path: str) -> bytes:
        page = self._pages.get(path)
        if page is None:
            raise _Refused(HTTPStatus.NOT_FOUND)
        try:
            return _answer(HTTPStatus.OK, page.kind, page.text())
        except Exception:
            _log.exception("%s cannot be shown", path)
            raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR) from None


def ask_standing(state: Path, timeout: float = _SECONDS) -> Standing:
    """How the peer stands that runs with this state folder; UnreachableError when none says so."""
    try:
        where = json.loads((state / MONITOR_FILE).read_bytes())
        # Not urllib, which would send it to the proxy of the environment.
        connection = http.client.HTTPConnection(where["host"], where["port"], timeout=timeout)
        with contextlib.closing(connection):
            connection.request("GET", "/status")
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise UnreachableError(f"it answered {answer.status} {answer.reason}")
            return Standing.model_validate_json(answer.read())
    except FileNotFoundError:
        raise UnreachableError("it is starting or ending, or its peer.toml says metrics = ''") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException) as error:
        raise UnreachableError(f"asking it failed: {error}") from None


async def _requested(reader: asyncio.StreamReader) -> tuple[str, dict[str, list[str]]]:
    """The path, and all headers by their names in small letters."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Refused(HTTPStatus.BAD_REQUEST)
    if words[0] != "GET":
        raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED)
    headers: dict[str, list[str]] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), []).append(value.strip())
    return words[1].partition("?")[0], headers


def _is_this_machine(host: str) -> bool:
    """A web page can make its own name point here, and read our pages; it cannot make up the name."""
    name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)


def _answer(status: HTTPStatus, kind: str = _TEXT, text: str | None = None) -> bytes:
    body = (f"{status.phrase}\n" if text is None else text).encode()
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}"]
    lines += [f"Content-Length: {len(body)}", "Cache-Control: no-store", "Connection: close"]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
