"""A peer's journal: what is on disk after a commit, and what a new process makes of it after a crash."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie.errors import DamagedRunError, RefusedError, RunFolderError
from coterie.peer.exchange.committed import committed_rounds
from coterie.peer.exchange.journal import Holdings, Journal, ParcelId

FROM_2 = ParcelId(2, 5, 0)  # of peer 2, for exchange 0 of round 5
FROM_3 = ParcelId(3, 5, 1)


@dataclass(frozen=True)
class State:
    x: Tensor


FRESH = State(torch.zeros(1, 2))
LEARNED = State(torch.tensor([[1.5, -2.0]]))


def restarted(journal: Journal) -> Journal:
    """As a new process finds the folder."""
    again = Journal(journal.folder, durable=False)
    again.recover()
    return again


def files(journal: Journal) -> list[str]:
    return sorted(path.name for path in journal.folder.iterdir())


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "state", durable=False)
    made.recover()
    return made


def test_a_new_folder_has_nothing(journal: Journal) -> None:
    assert (journal.round, journal.begun(), journal.kept(), journal.doubts) == (0, None, [], set())
    assert journal.load(FRESH) is FRESH


def test_a_committed_state_is_found_again(journal: Journal) -> None:
    journal.commit(LEARNED, 6, [FROM_2], [FROM_3])
    again = restarted(journal)
    assert (again.round, again.ledger.taken, again.doubts) == (6, {FROM_2}, {FROM_3})
    assert torch.equal(again.load(FRESH).x, LEARNED.x)
    assert committed_rounds(again.checkpoint) == 6


def test_where_the_checkpoint_is_shows_without_its_tensors(journal: Journal) -> None:
    """So that a peer can say how far it is before it has trained anything."""
    journal.commit(LEARNED, 6, [], [])
    other = State(torch.zeros(1, 3))
    again = restarted(journal)
    assert again.round == 6
    with pytest.raises(DamagedRunError, match=r"'x' is missing or has another shape; a new experiment needs"):
        again.load(other)


def test_a_damaged_checkpoint_is_an_error_at_once(journal: Journal) -> None:
    journal.commit(LEARNED, 6, [], [])
    journal.checkpoint.write_bytes(journal.checkpoint.read_bytes()[:-1])
    with pytest.raises(DamagedRunError, match="not a readable checkpoint"):
        restarted(journal)


def test_a_round_that_had_begun_is_known_until_it_is_committed(journal: Journal) -> None:
    journal.commit(LEARNED, 5, [], [])
    journal.begin(7)  # rounds 5 and 6 were played by the others
    assert restarted(journal).begun() == 7
    journal.commit(LEARNED, 8, [], [])
    assert restarted(journal).begun() is None


def test_a_mark_that_outlived_its_commit_says_nothing(journal: Journal) -> None:
    """A kill between the checkpoint and the removal of the mark."""
    journal.begin(7)
    mark = (journal.folder / "begun.json").read_bytes()
    journal.commit(LEARNED, 8, [], [])
    (journal.folder / "begun.json").write_bytes(mark)
    assert restarted(journal).begun() is None


def test_a_kept_parcel_stays_until_a_commit_holds_it(journal: Journal) -> None:
    journal.keep(FROM_2, b"two")
    journal.keep(FROM_3, b"three")
    again = restarted(journal)
    assert again.kept() == [FROM_2, FROM_3]
    assert again.kept_body(FROM_3) == b"three"
    again.commit(LEARNED, 6, [FROM_2], [])
    assert again.kept() == [FROM_3]


def test_what_a_kill_after_the_checkpoint_left_is_cleared(journal: Journal) -> None:
    journal.commit(LEARNED, 6, [FROM_2], [])
    (journal.folder / "in-5-0-2.safetensors").write_bytes(b"two")  # it is in the state already
    (journal.folder / "doubt-5-0-1.safetensors").write_bytes(b"one")  # of a round that was not committed
    (journal.folder / ".checkpoint.safetensors.ab12.tmp").write_bytes(b"half")
    assert files(restarted(journal)) == ["checkpoint.safetensors"]


def test_a_denied_parcel_is_denied_for_good(journal: Journal) -> None:
    journal.deny(FROM_2)
    assert restarted(journal).ledger.denied == {FROM_2}
    journal.commit(LEARNED, 6, [], [])
    assert files(journal) == ["checkpoint.safetensors"]
    assert restarted(journal).ledger.denied == {FROM_2}


def test_loading_the_state_forgets_nothing_that_recovery_found(journal: Journal) -> None:
    """Neither a denial that no checkpoint holds yet, nor what happened between the two."""
    journal.commit(LEARNED, 5, [], [])
    journal.deny(FROM_2)
    again = restarted(journal)
    again.deny(FROM_3)
    assert torch.equal(again.load(FRESH).x, LEARNED.x)
    assert again.ledger.denied == {FROM_2, FROM_3}


def test_findings_are_remembered_for_a_thousand_rounds(journal: Journal) -> None:
    journal.deny(FROM_3)
    journal.commit(LEARNED, 1005, [FROM_2], [])
    assert (journal.ledger.taken, journal.ledger.denied) == ({FROM_2}, {FROM_3})
    journal.commit(LEARNED, 1006, [], [])
    assert (journal.ledger.taken, journal.ledger.denied) == (set(), set())


def test_doubts_of_a_commit_keep_their_bodies(journal: Journal) -> None:
    journal.doubt(FROM_2, b"mine")
    journal.doubt(FROM_3, b"settled meanwhile")
    journal.commit(LEARNED, 6, [], [FROM_2])
    again = restarted(journal)
    assert again.doubts == {FROM_2}
    assert again.doubted(FROM_2) == b"mine"
    assert files(again) == ["checkpoint.safetensors", "doubt-5-0-2.safetensors"]


def test_secrets_of_a_peer_are_its_own(journal: Journal) -> None:
    journal.keep(FROM_2, b"two")
    journal.commit(LEARNED, 6, [], [])
    assert {path.stat().st_mode & 0o777 for path in journal.folder.iterdir()} == {0o600}


def test_reading_changes_nothing_on_disk(journal: Journal) -> None:
    journal.commit(LEARNED, 6, [], [])
    (journal.folder / ".half.tmp").write_bytes(b"being written by a running peer")
    before = files(journal)
    assert torch.equal(Journal(journal.folder).read(replace(FRESH)).x, LEARNED.x)
    assert files(journal) == before


# --- holdings ------------------------------------------------------------------------------------


def test_what_is_kept_is_owned_also_after_a_crash_and_after_a_commit(journal: Journal) -> None:
    holdings = Holdings(journal)
    assert not holdings.owns(FROM_2)
    holdings.keep(FROM_2, b"two")
    after_crash = Holdings(restarted(journal))
    for each in (holdings, after_crash):
        assert each.owns(FROM_2)
        assert each.finding(FROM_2) is True
        assert (each.unused(), each.body(FROM_2)) == ([FROM_2], b"two")
    journal.commit(LEARNED, 6, [FROM_2], [])
    holdings.committed([FROM_2])
    assert holdings.owns(FROM_2)
    assert holdings.unused() == []


def test_a_no_is_written_down_before_it_is_said(journal: Journal) -> None:
    holdings = Holdings(journal)
    assert not holdings.denied(FROM_2)
    assert holdings.finding(FROM_2) is False
    assert holdings.denied(FROM_2)
    assert Holdings(restarted(journal)).denied(FROM_2)


def test_what_cannot_be_written_is_never_owned(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    holdings = Holdings(journal)

    def full(*_: object, **__: object) -> None:
        raise RunFolderError("no space left")

    monkeypatch.setattr("coterie.peer.exchange.journal.write_atomically", full)
    with pytest.raises(RunFolderError):
        holdings.keep(FROM_2, b"two")
    assert not holdings.owns(FROM_2)
    assert holdings.denied(FROM_2)


def test_a_flood_of_inquiries_is_bounded_and_expires(journal: Journal) -> None:
    holdings = Holdings(journal)

    def ask(count: int, round: int, member: int = 2) -> int:
        """How many of so many inquiries about parcels that never came got an answer."""
        answered = 0
        for slot in range(count):
            with contextlib.suppress(RefusedError):
                holdings.finding(ParcelId(member, round, slot))
                answered += 1
        return answered

    assert ask(1000, round=0) == 32
    assert ask(1000, round=1) == 0, "in this peer's round, whatever round they are about"
    assert ask(5, round=0) == 5, "what was answered is answered again"
    assert ask(5, round=1, member=3) == 5, "the other members' inquiries are their own"
    assert len(list(journal.folder.glob("no-*"))) == 32 + 5
    for round in range(1, 60):
        journal.commit(LEARNED, round, [], [])
        holdings.committed([])
        ask(1000, round=round)
    assert sum(parcel.number == 2 for parcel in journal.ledger.denied) == 1000
    journal.commit(LEARNED, 1100, [], [])
    holdings.committed([])
    assert not journal.ledger.denied, "it was long ago"
    assert ask(1000, round=1100) == 32
