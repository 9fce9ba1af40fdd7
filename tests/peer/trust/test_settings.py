"""`peer.toml`: defaults, paths, and what is said about mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import ConfigError
from coterie.peer.trust.names import can_be_dialled, split_address
from coterie.peer.trust.settings import PeerSettings, load_settings, settings_from, settings_text

ALICE = {"name": "alice", "number": 0}


def test_defaults() -> None:
    settings = PeerSettings(**ALICE)
    assert settings.listen == settings.address == "127.0.0.1:7400"
    assert (settings.data, settings.mode, settings.metrics) == ("share", "synchronous", "127.0.0.1:0")
    assert (settings.deadline, settings.join_seconds, settings.staleness) == (60, 120, 5)
    assert (settings.memory, settings.heartbeat, settings.suspect_after) == (128, 1, 4)


def test_others_dial_where_it_listens_unless_told() -> None:
    assert PeerSettings(**ALICE, listen="10.0.0.1:9000").address == "10.0.0.1:9000"
    told = PeerSettings(**ALICE, listen="0.0.0.0:9000", address="alice.example.org:9000")
    assert told.address == "alice.example.org:9000"


def test_paths_start_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "peer.toml").write_text(
        'name = "alice"\nnumber = 0\nexperiment = "../shared/e.toml"\ndata = "mine.py:load"\n'
    )
    settings = load_settings(tmp_path)
    assert settings.experiment == str(tmp_path.parent / "shared" / "e.toml")
    assert settings.data == str(tmp_path / "mine.py:load")
    absolute = settings_from({**ALICE, "data": "/data/mine.npz"}, tmp_path)
    assert absolute.data == "/data/mine.npz"
    assert settings_from(ALICE, tmp_path).data == "share"


def test_the_written_file_says_the_same(tmp_path: Path) -> None:
    settings = PeerSettings(**ALICE, data='a "quoted" \\ name.csv', mode="free", deadline=2.5)
    text = settings_text(settings)
    assert PeerSettings(**tomllib.loads(text)) == settings
    assert all(f"\n{name} = " in text for name in PeerSettings.model_fields)
    assert text.count("\n# ") == len(PeerSettings.model_fields)
    assert 'address = ""' in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nmber": 1}, "unknown key 'nmber'; did you mean number"),
        ({"name": "a b"}, "name: a name has"),
        ({"number": -1}, "number"),
        ({"number": "0"}, "number"),
        ({"listen": "7400"}, "listen: an address is host:port"),
        ({"listen": "::1:7400"}, "listen: an address is host:port"),
        ({"listen": ":7400"}, "listen: an address is host:port"),
        ({"listen": "localhost:0"}, "from 1 to 65535"),
        ({"listen": "localhost:70000"}, "from 1 to 65535"),
        ({"listen": "0.0.0.0:7400"}, r"others cannot dial 0\.0\.0\.0:7400; set address"),
        ({"address": "[::]:7400"}, "others cannot dial"),
        ({"address": "nowhere"}, "address: an address is host:port"),
        ({"data": "shared"}, "did you mean share"),
        ({"data": "mine.xlsx"}, "a file of a known kind"),
        ({"mode": "async"}, "mode: .*'synchronous' or 'free'"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": float("nan")}, "deadline"),
        ({"deadline": float("inf")}, "deadline"),
        ({"join_seconds": -1}, "join_seconds"),
        ({"metrics": "0.0.0.0:9100"}, "this machine only"),
        ({"metrics": "example.org:9100"}, "this machine only"),
        ({"metrics": "9100"}, "host:port"),
        ({"staleness": -1}, "staleness"),
        ({"memory": 0}, "memory"),
        ({"heartbeat": 5}, r"suspect_after \(4.0 s\) must be longer than heartbeat \(5.0 s\)"),
    ],
)
def test_mistakes_name_the_file_and_the_key(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        settings_from({**ALICE, **change}, tmp_path, "here/peer.toml")
    assert str(caught.value).startswith("here/peer.toml: ")


@pytest.mark.parametrize("metrics", ["", "127.0.0.1:0", "localhost:9100", "[::1]:9100", "127.9.9.9:1"])
def test_metrics_on_loopback(metrics: str) -> None:
    assert PeerSettings(**ALICE, metrics=metrics).metrics == metrics


def test_missing_and_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a peer's folder: it has no peer\.toml"):
        load_settings(tmp_path)
    (tmp_path / "peer.toml").write_text("name = \n")
    with pytest.raises(ConfigError, match=r"peer\.toml is not valid TOML"):
        load_settings(tmp_path)
    (tmp_path / "peer.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not text"):
        load_settings(tmp_path)
    (tmp_path / "peer.toml").write_text("number = 0\n")
    with pytest.raises(ConfigError, match="name is missing"):
        load_settings(tmp_path)


def test_addresses_are_split() -> None:
    assert split_address("example.org:1") == ("example.org", 1)
    assert split_address("[::1]:7400") == ("::1", 7400)
    assert can_be_dialled("127.0.0.1:1")
    assert not can_be_dialled("[::]:1")


def test_a_peer_may_listen_nowhere(tmp_path: Path) -> None:
    settings = settings_from({"name": "alice", "number": 0, "listen": ""}, tmp_path)
    assert settings.address == "outgoing"
    again = settings_from(tomllib.loads(settings_text(settings)), tmp_path)
    assert (again.listen, again.address) == ("", "outgoing")
    with pytest.raises(ConfigError, match="nobody listens at h:1: set listen, or leave out address"):
        settings_from({"name": "alice", "number": 0, "listen": "", "address": "h:1"}, tmp_path)
