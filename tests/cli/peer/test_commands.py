"""`coterie peer` and `coterie ca`: identity, cards and roster, from the command line."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from coterie.peer.trust.cards import Card, parse_card
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import Roster
from coterie.peer.trust.settings import load_settings

Command = Callable[..., Any]
LONG_AGO = datetime.now(UTC) - timedelta(days=1000)


def made(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def succeeds(done: Any) -> str:
    assert done.exit_code == 0, done.stderr
    assert "PRIVATE KEY" not in done.output
    return str(done.stdout)


@pytest.fixture
def two(coterie: Command, folder: Path) -> Path:
    """alice and bob, and their cards."""
    for number, name in enumerate(("alice", "bob")):
        succeeds(coterie("peer", "init", name, "--number", str(number)))
        (folder / f"{name}.card").write_text(succeeds(coterie("peer", "card", "--dir", name)))
    return folder


def test_a_new_peer_has_all_it_needs(coterie: Command, folder: Path) -> None:
    text = succeeds(coterie("peer", "init", "alice"))
    assert "coterie peer card --dir alice > alice.card" in text
    assert "coterie peer run --dir alice" in text
    home = folder / "alice"
    assert made(home) == {"identity.pem", "peer.toml", "roster.toml", "experiment.toml"}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "identity.pem").stat().st_mode) == 0o600
    settings = load_settings(home)
    assert (settings.name, settings.number, settings.address) == ("alice", 0, "127.0.0.1:7400")
    assert settings.experiment == str(home / "experiment.toml")
    assert succeeds(coterie("peer", "roster", "--dir", "alice")).startswith("The roster is empty")


def test_the_example_experiment_can_be_simulated(coterie: Command) -> None:
    succeeds(coterie("peer", "init", "alice"))
    done = coterie("run", "--config", "alice/experiment.toml", "--rounds", "1", "--quiet", "--no-plots")
    assert done.exit_code == 0, done.stderr


def test_everything_can_be_said_at_once(coterie: Command, folder: Path) -> None:
    (folder / "e.toml").write_text('algorithm = "d-psgd"\npeers = 4\n')
    (folder / "mine.csv").write_text("a,label\n1,0\n")
    options = [
        "--dir",
        "deep/a",
        "--number",
        "3",
        "--listen",
        "0.0.0.0:9000",
        "--address",
        "a.example.org:9001",
    ]
    done = coterie("peer", "init", "alice", *options, "--experiment", "e.toml", "--data", "mine.csv")
    succeeds(done)
    assert not done.stderr
    settings = load_settings(folder / "deep" / "a")
    assert (settings.listen, settings.address) == ("0.0.0.0:9000", "a.example.org:9001")
    assert settings.experiment == str(folder / "e.toml")
    assert settings.data == str(folder / "mine.csv")
    assert not (folder / "deep" / "a" / "experiment.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["peer", "init", "a b"], "a name has"),
        (["peer", "init", "../a"], "a name has"),
        (["peer", "init", "a", "--dir", "."], "not the current folder"),
        (["peer", "init", "a", "--number", "3"], "example experiment has 3 peers"),
        (["peer", "init", "a", "--listen", "7400"], "host:port"),
        (["peer", "init", "a", "--listen", "0.0.0.0:7400"], "set address"),
        (["peer", "init", "a", "--data", "shar"], "did you mean share"),
        (["peer", "init", "a", "--experiment", "missing.toml"], "missing.toml"),
        (["peer", "init", "a", "--ca", "missing"], "not an authority's folder"),
        (["peer", "card"], "not a peer's folder"),
        (["peer", "card", "--dir", "missing"], "missing is not a peer's folder"),
        (["peer", "trust", "a.card"], "not a peer's folder"),
        (["peer", "distrust", "bob"], "not a peer's folder"),
        (["peer", "roster"], "not a peer's folder"),
        (["peer", "rotate"], "not a peer's folder"),
        (["peer", "request"], "not a peer's folder"),
        (["ca", "sign", "missing", "a.csr"], "not an authority's folder"),
        (["ca", "card", "missing"], "not an authority's folder"),
        (["ca", "init", "a b"], "the authority's name 'a b'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    coterie: Command, folder: Path, arguments: list[str], words: str
) -> None:
    done = coterie(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert done.stdout == ""
    assert not list(folder.iterdir())


def test_an_experiment_with_a_mistake_makes_no_peer(coterie: Command, folder: Path) -> None:
    for text, words in (
        ('algorithm = "d-psdg"\n', "did you mean d-psgd"),
        ('algorithm = "d-psgd"\npeers = 2\n', "the peers of e.toml are 0 to 1"),
        ('algorithm = "fedavg"\npeers = 1\n', "0 to 0, or 1 for the hub"),
    ):
        (folder / "e.toml").write_text(text)
        done = coterie("peer", "init", "a", "--number", "2", "--experiment", "e.toml")
        assert done.exit_code == 2
        assert words in done.stderr
        assert made(folder) == {"e.toml"}


def test_an_existing_folder_is_not_touched(coterie: Command, folder: Path) -> None:
    (folder / "alice").mkdir()
    (folder / "alice" / "notes.txt").write_text("mine")
    done = coterie("peer", "init", "alice")
    assert done.exit_code == 2
    assert "alice exists already" in done.stderr
    assert made(folder) == {"alice", "alice/notes.txt"}
    succeeds(coterie("ca", "init", "our-ca"))
    assert coterie("ca", "init", "our-ca").exit_code == 2


@pytest.mark.parametrize("moment", ["coterie.peer.trust.identity.Identity.create", "os.rename"])
def test_an_interrupted_init_leaves_nothing(
    coterie: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(moment, full)
        done = coterie("peer", "init", "alice")
    assert done.exit_code == 2
    assert "No space left" in done.stderr
    assert not list(folder.iterdir())
    succeeds(coterie("peer", "init", "alice"))


def test_cards_are_exchanged(coterie: Command, two: Path) -> None:
    text = succeeds(coterie("peer", "trust", "bob.card", "--dir", "alice"))
    bob = parse_card((two / "bob.card").read_text())
    assert isinstance(bob, Card)
    assert bob.fingerprint in text
    assert Roster.load(two / "alice").members == {"bob": bob}
    shown = succeeds(coterie("peer", "roster", "--dir", "alice"))
    assert all(word in shown for word in ("bob", "127.0.0.1:7401", bob.fingerprint[:48], "729"))
    assert "bob is removed" in succeeds(coterie("peer", "distrust", "bob", "--dir", "alice"))
    assert not Roster.load(two / "alice").members


def test_all_cards_at_once_with_ones_own_among_them(coterie: Command, two: Path) -> None:
    done = coterie("peer", "trust", "alice.card", "bob.card", "--dir", "alice")
    succeeds(done)
    assert "own card" in done.stderr
    assert list(Roster.load(two / "alice").members) == ["bob"]


def test_cards_that_are_refused(coterie: Command, two: Path) -> None:
    succeeds(coterie("peer", "init", "carol", "--number", "1"))
    (two / "carol.card").write_text(succeeds(coterie("peer", "card", "--dir", "carol")))
    succeeds(coterie("peer", "init", "zero", "--number", "0"))
    (two / "zero.card").write_text(succeeds(coterie("peer", "card", "--dir", "zero")))
    old = Identity.create(two / "old", "old", valid_from=LONG_AGO, valid_days=5)
    expired = Card(name="old", number=2, address="a:1", certificate=old.certificate_pem)
    (two / "old.card").write_text(expired.text())
    (two / "eve.card").write_text((two / "bob.card").read_text().replace('"bob"', '"eve"'))
    before = (two / "alice" / "roster.toml").read_bytes()
    for cards, words in (
        (["bob.card", "carol.card"], "'bob' and 'carol' both have number 1"),
        (["bob.card", "zero.card"], "this peer both have number 0"),
        (["bob.card", "old.card"], "expired on"),
        (["bob.card", "eve.card"], "but its certificate is that of 'bob'"),
        (["bob.card", "missing.card"], "cannot read missing.card"),
        (["alice/identity.pem"], "not valid TOML"),
    ):
        done = coterie("peer", "trust", *cards, "--dir", "alice")
        assert done.exit_code == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert "PRIVATE" not in done.stderr
        assert (two / "alice" / "roster.toml").read_bytes() == before


def test_the_nearest_name_is_offered(coterie: Command, two: Path) -> None:
    succeeds(coterie("peer", "trust", "bob.card", "--dir", "alice"))
    done = coterie("peer", "distrust", "bobb", "--dir", "alice")
    assert done.exit_code == 2
    assert "did you mean bob?" in done.stderr


def test_rotation(coterie: Command, two: Path) -> None:
    succeeds(coterie("peer", "trust", "bob.card", "--dir", "alice"))
    assert "--replace" in succeeds(coterie("peer", "rotate", "--dir", "bob"))
    (two / "bob.card").write_text(succeeds(coterie("peer", "card", "--dir", "bob")))
    refused = coterie("peer", "trust", "bob.card", "--dir", "alice")
    assert refused.exit_code == 2
    assert "--replace" in refused.stderr
    succeeds(coterie("peer", "trust", "bob.card", "--replace", "--dir", "alice"))
    assert Roster.load(two / "alice").members["bob"] == parse_card((two / "bob.card").read_text())


def test_a_key_that_others_can_read(coterie: Command, two: Path) -> None:
    (two / "alice" / "identity.pem").chmod(0o644)
    done = coterie("peer", "card", "--dir", "alice")
    assert done.exit_code == 2
    assert "chmod 600 alice/identity.pem" in done.stderr


def test_a_name_that_is_not_that_of_the_certificate(coterie: Command, two: Path) -> None:
    settings = two / "alice" / "peer.toml"
    settings.write_text(settings.read_text().replace('"alice"', '"alicia"'))
    done = coterie("peer", "card", "--dir", "alice")
    assert done.exit_code == 2
    assert "'alicia', but the certificate is that of 'alice'" in done.stderr


def test_a_certificate_that_expires_soon_is_noted(coterie: Command, two: Path) -> None:
    succeeds(coterie("peer", "trust", "bob.card", "--dir", "alice"))
    Identity.load(two / "alice").rotate(valid_days=10)
    assert "valid for 9 days" in coterie("peer", "roster", "--dir", "alice").stderr


def test_peers_of_an_authority(coterie: Command, folder: Path) -> None:
    assert "our-ca" in succeeds(coterie("ca", "init", "our-ca"))
    succeeds(coterie("peer", "init", "one", "--ca", "our-ca"))
    assert list(Roster.load(folder / "one").authorities) == ["our-ca"]
    assert not Identity.load(folder / "one").self_signed
    refused = coterie("peer", "rotate", "--dir", "one")
    assert refused.exit_code == 2
    assert "--ca" in refused.stderr
    succeeds(coterie("peer", "rotate", "--dir", "one", "--ca", "our-ca"))
    assert not Identity.load(folder / "one").self_signed
    again = coterie("peer", "init", "other", "--dir", "other", "--number", "1", "--ca", "our-ca")
    succeeds(again)
    taken = coterie("peer", "init", "one", "--dir", "twin", "--ca", "our-ca")
    assert taken.exit_code == 2
    assert "has a certificate of this authority already" in taken.stderr
    assert not (folder / "twin").exists()


def test_a_request_travels_to_the_authority_and_back(coterie: Command, two: Path) -> None:
    succeeds(coterie("ca", "init", "our-ca"))
    (two / "bob.csr").write_text(succeeds(coterie("peer", "request", "--dir", "bob")))
    (two / "bad.csr").write_text("nonsense")
    bad = coterie("ca", "sign", "our-ca", "bad.csr")
    assert bad.exit_code == 2
    assert "bad.csr: this is not a certificate request" in bad.stderr
    assert "bob.crt" in succeeds(coterie("ca", "sign", "our-ca", "bob.csr"))
    assert "exists already" in coterie("ca", "sign", "our-ca", "bob.csr").stderr
    wrong = coterie("peer", "install", "bob.crt", "--dir", "alice")
    assert wrong.exit_code == 2
    assert "another key" in wrong.stderr
    succeeds(coterie("peer", "install", "bob.crt", "--dir", "bob"))
    assert not Identity.load(two / "bob").self_signed
    (two / "ca.card").write_text(succeeds(coterie("ca", "card", "our-ca")))
    succeeds(coterie("peer", "trust", "ca.card", "--dir", "alice"))
    assert "authority" in succeeds(coterie("peer", "roster", "--dir", "alice"))
    succeeds(coterie("peer", "distrust", "our-ca", "--dir", "alice"))
    assert not Roster.load(two / "alice").authorities


def test_wrong_usage(coterie: Command, folder: Path) -> None:
    for arguments in (["peer", "initt"], ["peer", "init"], ["peer", "trust"], ["ca", "sgin"], ["ca", "init"]):
        done = coterie(*arguments)
        assert done.exit_code == 2
        assert "Traceback" not in done.stderr
        assert not list(folder.iterdir())


def test_none_of_it_imports_pytorch(two: Path) -> None:
    script = """
import sys
from coterie.cli import app
for line in sys.stdin.read().splitlines():
    try:
        app(line.split(), prog_name="coterie", standalone_mode=True)
    except SystemExit as end:
        assert end.code == (1 if "status" in line else 0), line  # it does not run
assert "torch" not in sys.modules
"""
    lines = [
        "peer init carol --number 2",
        "peer card --dir carol",
        "peer status --dir carol",
        "peer trust bob.card --dir alice",
        "peer roster --dir alice",
        "peer distrust bob --dir alice",
        "peer rotate --dir carol",
        "ca init our-ca",
        "ca card our-ca",
    ]
    done = subprocess.run(
        [sys.executable, "-c", script],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
