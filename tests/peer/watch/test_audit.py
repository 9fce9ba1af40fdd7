"""The audit of a peer: lines that hang together, and what became of every parcel."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie.cli import app
from coterie.cli.swarm.folders import make_folders
from coterie.errors import RefusedError, RunFolderError
from coterie.experiments.real_peers.joining import join
from coterie.peer.network.messages import Parcel
from coterie.peer.watch.audit import AUDIT_FILE, Audit, events, verify
from coterie.peer.watch.witness import Witness


def written(path: Path, count: int = 5) -> Audit:
    audit = Audit(path)
    audit.open()
    for number in range(count):
        audit.write("sent", round=number, peer="bob", digest="ab" * 32, bytes=7)
    return audit


def test_each_hash_is_of_the_line_and_of_the_hash_before(tmp_path: Path) -> None:
    """Worked out here from the words of the module."""
    audit = written(tmp_path / "a")
    before = hashlib.sha256(b"coterie audit 1").hexdigest()
    for text in (tmp_path / "a").read_text().splitlines():
        line = json.loads(text)
        said = line.pop("hash")
        canonical = json.dumps(line, sort_keys=True, separators=(",", ":"))
        before = hashlib.sha256(f"{before}\n{canonical}".encode()).hexdigest()
        assert said == before
    assert verify(tmp_path / "a").hash == audit.last == before
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    audit.close()


@pytest.mark.parametrize("damage", ["changed", "removed", "inserted", "swapped", "nested", "first gone"])
def test_whatever_is_done_to_a_line_is_found(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    written(path).close()
    lines = path.read_text().splitlines(keepends=True)
    if damage == "changed":
        lines[2] = lines[2].replace('"bob"', '"eve"')
    elif damage == "removed":
        del lines[2]
    elif damage == "inserted":
        lines.insert(2, lines[1])
    elif damage == "swapped":
        lines[1], lines[2] = lines[2], lines[1]
    elif damage == "nested":
        lines[2] = "[" * 100_000 + "\n"
    else:
        del lines[0]
    path.write_text("".join(lines))
    found = verify(path)
    assert found.problem
    assert found.lines <= 2


def test_a_line_that_a_crash_cut_off_is_mended_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a"
    written(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert not verify(path).problem
    assert (verify(path).lines, verify(path).cut) == (4, len(whole.splitlines(keepends=True)[4]) - 9)
    written(path, 1).close()
    found = verify(path)
    assert not found.problem
    assert found.events == {"sent": 5, "mended": 1}


def test_events_that_a_full_disk_swallows_leave_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    audit, write = written(tmp_path / "a", 1), os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:20]))
    for _ in range(3):
        audit.write("sent", peer="bob")
    monkeypatch.undo()
    audit.write("sent", peer="carol")
    audit.close()
    found = verify(tmp_path / "a")
    assert not found.problem
    assert found.events == {"sent": 2, "gap": 1}
    assert [line["reason"] for line in events(tmp_path / "a") if line["event"] == "gap"] == [
        "3 events could not be written"
    ]
    assert caplog.text.count("what happens now will be missing there") == 1


def test_a_file_that_cannot_be_read_or_written_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot read"):
        verify(tmp_path / "none")
    with pytest.raises(RunFolderError, match="cannot write"):
        Audit(tmp_path).open()


def test_a_member_cannot_fill_the_disk_with_what_is_refused(tmp_path: Path) -> None:
    audit = written(tmp_path / "a", 0)
    witness = Witness(None, audit, str)  # type: ignore[arg-type]

    class Refusing:
        def admit(self, caller: str, head: Any, size: int) -> None:
            raise RefusedError("stale", "too old")

    handler = witness.before(Refusing())  # type: ignore[arg-type]
    for number in range(500):
        with pytest.raises(RefusedError):
            handler.admit("mallory", Parcel(sender="mallory", round=number, slot=0), 10)
    audit.close()
    assert verify(tmp_path / "a").events == {"refused": 20}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three real peers after two sealed rounds."""
    table = {"algorithm": "gossip-fedavg", "model": "mlr", "topology": "full", "peers": 4, "rounds": 2}
    folder = tmp_path_factory.mktemp("audited")
    made = make_folders(folder, table, ["anna", "bob", "carol", "dora"], "synchronous")

    async def learn() -> None:
        await asyncio.gather(*(join(place).take_part() for place in made))

    asyncio.run(learn())
    return made


def test_what_one_peer_sent_the_other_received(tmp_path: Path) -> None:
    table = {"algorithm": "d-psgd", "model": "mlr", "topology": "full", "peers": 2, "rounds": 3}
    pair = make_folders(tmp_path, table, ["anna", "bob"], "synchronous")

    async def learn() -> None:
        await asyncio.gather(*(join(place).take_part() for place in pair))

    asyncio.run(learn())
    anna, bob = (list(events(place / AUDIT_FILE)) for place in pair)
    for one, other, name in ((anna, bob, "anna"), (bob, anna, "bob")):
        sent = {(line["round"], line["digest"]) for line in one if line["event"] == "sent"}
        received = {
            (line["round"], line["digest"])
            for line in other
            if line["event"] == "received" and line["peer"] == name
        }
        assert sent == received
        assert [round for round, _ in sorted(sent)] == [0, 1, 2]
        assert [line["event"] for line in (one[0], one[-1])] == ["started", "finished"]


def test_a_sealed_sum_is_in_the_audit_with_its_group(places: list[Path]) -> None:
    lines = [line for line in events(places[0] / AUDIT_FILE) if line.get("group")]
    assert {line["event"] for line in lines} >= {"sent", "received"}
    assert all(set(line["group"]) <= {"anna", "bob", "carol", "dora"} for line in lines)
    assert any("mask" in line["reason"] and line["digest"] for line in lines)


def test_the_command(places: list[Path]) -> None:
    folder = ["--dir", str(places[0])]
    done = CliRunner().invoke(app, ["peer", "audit", *folder, "--peer", "bob", "--round", "1"])
    assert done.exit_code == 0, done.output
    assert "hang together" in done.output
    assert " bob " in done.output
    hash = done.output.split()[-1]
    as_json = CliRunner().invoke(app, ["peer", "audit", *folder, "--json", "--noted", hash])
    assert as_json.exit_code == 0
    assert json.loads(as_json.stdout)["whole"] is True
    wrong = CliRunner().invoke(app, ["peer", "audit", *folder, "--noted", "0" * 64])
    assert wrong.exit_code == 1
    path = places[0] / AUDIT_FILE
    path.write_bytes(path.read_bytes().replace(b'"carol"', b'"karol"', 1))
    changed = CliRunner().invoke(app, ["peer", "audit", *folder])
    assert changed.exit_code == 1
