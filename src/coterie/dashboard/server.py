"""The server of the page: answers questions about runs and peers, and says when something changes.

It changes nothing. Only names that were found are opened. The Host header is checked, since a web page can
make its own name point here; beyond loopback, a token is asked for as well.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from coterie.dashboard.peers import standings
from coterie.errors import ConfigError, CoterieError
from coterie.peer.trust.names import is_loopback
from coterie.reporting.page.explained import of_algorithm
from coterie.reporting.page.found import FoundRuns
from coterie.reporting.page.html import asset, page
from coterie.reporting.page.listed import WRONG

_SECONDS = 1.0  # between two looks at the folders
_RARELY = 5  # times as long as a look takes
_AT_ONCE = 300  # folders read in one look, so that the first answers come soon
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # noqa: E501
_COOKIE = "coterie_token"
_KINDS = {"js": "text/javascript", "css": "text/css"}


def require_packages() -> None:
    """Say how to get what is missing."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the dashboard needs {' and '.join(missing)}, which this Python does not have: "
            "pip install 'coterie[dashboard]'"
        )


class Dashboard:
    """One page on a folder of runs and on real peers."""

    def __init__(
        self, root: Path, peers: Sequence[Path] = (), host: str = "127.0.0.1", port: int = 0
    ) -> None:
        require_packages()
        self.runs, self._peers, self._host = FoundRuns(root), list(peers), host
        self.token = "" if is_loopback(host) else secrets.token_urlsafe(24)
        self._changes: list[list[str]] = []  # the names that changed, look by look
        self._end = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen()  # at once: who comes before the server has started waits for it
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; try --port 0"
            ) from None
        self.port = self._socket.getsockname()[1]
        uvicorn = importlib.import_module("uvicorn")
        options = {
            "log_level": "warning",
            "access_log": False,
            "timeout_graceful_shutdown": 1,
            "lifespan": "off",
        }
        self._server = uvicorn.Server(uvicorn.Config(self._app(), **options))
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._serving: threading.Thread | None = None

    @property
    def url(self) -> str:
        name = socket.gethostname() if self._host in ("0.0.0.0", "::") else self._host
        name = f"[{name}]" if ":" in name else name
        view = "#/peers" if self._peers and not self.runs.root.is_dir() else ""
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "") + view

    def serve(self) -> None:
        """Until Ctrl-C."""
        self._looking.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.stop()

    def start(self) -> None:
        """Serve beside whatever else this process does."""
        self._looking.start()
        self._serving = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._serving.start()

    def stop(self) -> None:
        self._end.set()
        self._server.should_exit = True
        if self._serving is not None:
            self._serving.join(5)
        self._socket.close()

    def _look(self) -> None:
        while not self._end.is_set():
            begun = time.monotonic()
            changed = self.runs.look(_AT_ONCE)
            if changed or self._peers:
                self._changes.append(changed)
            if len(changed) < _AT_ONCE:  # of many folders a look takes long: they are looked at less often
                self._end.wait(max(_SECONDS, _RARELY * (time.monotonic() - begun)))

    def _app(self) -> Any:
        routing = importlib.import_module("starlette.routing")
        responses = importlib.import_module("starlette.responses")
        applications = importlib.import_module("starlette.applications")

        def endpoint(name: str) -> Callable[[Any], Any]:
            def respond(request: Any) -> Any:
                status, found = self.answer(name, request.query_params)
                return responses.JSONResponse(found, status)

            return respond

        def start(request: Any) -> Any:
            return responses.HTMLResponse(page())

        def files(request: Any) -> Any:
            name = request.path_params["name"]
            kind = _KINDS.get(name.rpartition(".")[2])
            content = asset(name) if kind else None
            if content is None:
                return responses.PlainTextResponse("not found", 404)
            return responses.Response(content, media_type=kind)

        def events(request: Any) -> Any:
            return responses.StreamingResponse(self._events(), media_type="text/event-stream")

        routes = [routing.Route("/", start), routing.Route("/assets/{name}", files)]
        routes += [routing.Route(f"/api/{name}", endpoint(name)) for name in self._questions]
        routes.append(routing.Route("/api/events", events))
        return _Guard(applications.Starlette(routes=routes), self)

    def answer(self, name: str, query: Mapping[str, str]) -> tuple[int, Any]:
        """What the page asks for, with the status of the answer; whatever is wrong gets a sentence."""
        try:
            return 200, self._questions[name](query)
        except CoterieError as error:
            return 404, {"error": str(error)}
        except WRONG as error:
            said = f"{type(error).__name__}: {str(error)[:300]}"
            return 404, {"error": f"this run's files, or the question, make no sense: {said}"}

    @property
    def _questions(self) -> dict[str, Callable[[Mapping[str, str]], Any]]:
        runs = self.runs
        return {
            "runs": lambda q: runs.table(),
            "run": lambda q: runs.one(q["id"]),
            "links": lambda q: runs.links(q["id"], q["kind"], int(q["round"])),
            "peer": lambda q: runs.peer(q["id"], int(q["place"])),
            "compare": lambda q: runs.compare(_unpacked(q["ids"]), q.get("part", "")),
            "explain": lambda q: {"lines": of_algorithm(runs.run(q["id"]).run.algorithm)},
            "peers": lambda q: standings(self._peers),
        }

    async def _events(self) -> AsyncIterator[str]:
        """A line whenever something changed."""
        seen = len(self._changes)
        yield ": here\n\n"
        while not self._end.is_set() and not self._server.should_exit:
            await asyncio.sleep(0.25)
            if new := self._changes[seen:]:
                seen += len(new)
                ids = list(dict.fromkeys(name for names in new for name in names))
                yield f"data: {json.dumps({'ids': ids, 'peers': bool(self._peers)})}\n\n"

    def allows(self, host: str) -> bool:
        """Whether a request means this server, whatever its name points to."""
        name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
        if is_loopback(name) or name in (self._host, socket.gethostname(), socket.getfqdn()):
            return True
        try:  # a name could have been made to point here; an address could not
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return bool(self.token)


def _unpacked(text: str) -> list[str]:
    """The names in a list with commas, as page.js packs them."""
    return [unquote(name) for name in text.split(",") if name]


class _Guard:
    """Refuses what is not asked with GET, by another name, or without the token."""

    def __init__(self, app: Any, board: Dashboard) -> None:
        self._app, self._board = app, board

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        responses = importlib.import_module("starlette.responses")
        requests = importlib.import_module("starlette.requests")
        request, token = requests.Request(scope), self._board.token
        given = request.query_params.get("token") or request.cookies.get(_COOKIE, "")
        if scope["method"] not in ("GET", "HEAD"):
            await responses.PlainTextResponse("only GET is answered", 405)(scope, receive, send)
        elif not self._board.allows(request.headers.get("host", "")):
            await responses.PlainTextResponse("this server has another name", 421)(scope, receive, send)
        elif token and not secrets.compare_digest(given.encode(), token.encode()):
            await responses.PlainTextResponse("the token is missing or wrong", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, self._with_headers(send, token))

    @staticmethod
    def _with_headers(send: Any, token: str) -> Any:
        extra = [(b"content-security-policy", _POLICY.encode()), (b"x-content-type-options", b"nosniff"),
                 (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer")]  # fmt: skip
        if token:
            extra.append((b"set-cookie", f"{_COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/".encode()))

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        return sending
