"""The image of a peer, its probes from outside, and secrets that a platform mounts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie.cli import app
from coterie.errors import ConfigError
from coterie.files import read_secret
from coterie.peer.trust.settings import settings_from
from coterie.peer.watch.monitoring import Monitor, Page, read_token

ROOT = Path(__file__).parents[3]
TOKEN = "0123456789abcdef"


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each instruction, with continued lines joined and comments left out."""
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()
    ]


def test_the_image_runs_without_rights_and_copies_what_exists() -> None:
    found = instructions()
    known = [
        "FROM",
        "COPY",
        "RUN",
        "ENV",
        "USER",
        "WORKDIR",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ]
    assert {word for word, _ in found} <= set(known)
    last_stage = found[max(n for n, (word, _) in enumerate(found) if word == "FROM") :]
    (user,) = [rest for word, rest in last_stage if word == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number, so that platforms see that it is not root"
    assert [word for word, _ in last_stage].index("USER") < [word for word, _ in last_stage].index(
        "ENTRYPOINT"
    )
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from"):
            for path in rest.split()[:-1]:
                assert (ROOT / path).exists(), path
    assert not [rest for word, rest in last_stage if word == "RUN" and "pip" in rest]


def test_its_commands_exist() -> None:
    for word, rest in instructions():
        if word in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest)
    commands = [
        json.loads(rest[rest.index("[") :]) for word, rest in instructions() if word in ("CMD", "HEALTHCHECK")
    ]
    for command in commands:
        words = [part for part in command if part != "coterie"]
        assert CliRunner().invoke(app, [*words[:2], "--help"]).exit_code == 0


def test_the_peers_folder_is_the_volume_everywhere() -> None:
    """Of the image, its health check and the page; and the user without rights may write there."""
    found = dict(instructions())
    page = (ROOT / "docs" / "containers.md").read_text()
    folders = re.findall(r"--dir[\s\",]+(/[\w/]*)", found["CMD"] + found["HEALTHCHECK"] + page)
    assert len(folders) >= 5
    assert set(folders) == {found["VOLUME"]} == {found["WORKDIR"]}
    user, group = found["USER"].split(":")
    made = next(rest for word, rest in instructions() if word == "RUN" and rest.endswith(found["VOLUME"]))
    assert f"install --directory --owner {user} --group {group}" in made


async def asked(port: int, host: str, *headers: str) -> int:
    reader, writer = await asyncio.open_connection(host, port, local_addr=(host, 0))
    writer.write("\r\n".join(["GET /health HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


def test_who_comes_from_elsewhere_shows_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere: an address that does not count as this machine."""
    monkeypatch.setattr("coterie.peer.watch.monitoring.is_loopback", lambda host: host == "127.0.0.1")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    pages = {"/health": Page("application/json", lambda: "{}")}

    async def scenario() -> None:
        monitor = Monitor("0.0.0.0:0", pages, tmp_path / "monitor.json", lambda: read_token(file))
        await monitor.start()
        try:
            good = f"Authorization: Bearer {TOKEN}"
            assert await asked(monitor.port, "127.0.0.1") == 200
            assert await asked(monitor.port, "127.0.0.2") == 401
            assert await asked(monitor.port, "127.0.0.2", good) == 200
            assert await asked(monitor.port, "127.0.0.2", good[:-1] + "0") == 401
            assert await asked(monitor.port, "127.0.0.2", good, good) == 401
            assert json.loads((tmp_path / "monitor.json").read_text())["host"] == "127.0.0.1"
            file.write_text("another token, later\n")
            assert await asked(monitor.port, "127.0.0.2", good) == 401
            file.unlink()
            assert await asked(monitor.port, "127.0.0.2", good) == 500
        finally:
            await monitor.stop()

    asyncio.run(scenario())


def test_settings_ask_for_a_token(tmp_path: Path) -> None:
    table: dict[str, Any] = {"name": "alice", "number": 0, "metrics": "0.0.0.0:9464"}
    with pytest.raises(ConfigError, match="metrics_token"):
        settings_from(table, tmp_path)
    settings = settings_from({**table, "metrics_token": "token"}, tmp_path)
    assert settings.metrics_token == str(tmp_path / "token")


@pytest.mark.parametrize("text", ["", "short", "x" * 15 + "\n", "0123456789\x07abcdef"])
def test_a_token_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(ConfigError, match="at least 16 printable characters"):
        read_token(tmp_path / "token")


@pytest.mark.parametrize(
    ("mode", "owner", "group", "good"),
    [
        (0o440, 0, 10001, True),
        (0o640, 0, 10001, True),
        (0o660, 0, 10001, False),
        (0o444, 0, 10001, False),
        (0o440, 0, 99, False),
        (0o440, 10001, 10001, False),
    ],
)
def test_a_secret_that_the_platform_mounts(
    mode: int, owner: int, group: int, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As user 10001 of group 10001 sees it."""
    path = tmp_path / "identity.pem"
    path.write_bytes(b"key")
    facts = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, owner, group, 3, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda descriptor: facts)
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    monkeypatch.setattr(os, "getegid", lambda: 10001)
    monkeypatch.setattr(os, "getgroups", lambda: [10001])
    if good:
        assert read_secret(path) == b"key"
    else:
        with pytest.raises(ConfigError, match="others can read it"):
            read_secret(path)
