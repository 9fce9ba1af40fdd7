"""Earlier checkpoints: which are kept, the way back to one, and files that are not what was written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie.checkpoints import write_checkpoint
from coterie.errors import ConfigError, DamagedRunError
from coterie.peer.exchange.committed import FORMAT, committed_rounds, earlier_checkpoints, roll_back
from coterie.peer.exchange.journal import Journal, ParcelId


@dataclass(frozen=True)
class State:
    x: Tensor


def state(value: float) -> State:
    return State(torch.full((1, 2), value))


def after(rounds: int, folder: Path, earlier: int = 3) -> Journal:
    """A journal that committed so many rounds; the state after round r is r."""
    journal = Journal(folder, durable=False, earlier=earlier)
    journal.recover()
    for round in range(journal.round + 1, rounds + 1):
        journal.commit(state(float(round)), round, [], [])
    return journal


def found(folder: Path) -> tuple[int, float]:
    """What a new process finds: the rounds, and the state."""
    journal = Journal(folder, durable=False)
    journal.recover()
    return journal.round, float(journal.load(state(-1.0)).x[0, 0])


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    after(7, tmp_path)
    assert list(earlier_checkpoints(tmp_path)) == [4, 5, 6]
    assert found(tmp_path) == (7, 7.0)


def test_none_are_kept_if_none_are_wanted(tmp_path: Path) -> None:
    after(4, tmp_path)
    after(6, tmp_path, earlier=0)
    assert earlier_checkpoints(tmp_path) == {}


def test_back_and_forth(tmp_path: Path) -> None:
    after(7, tmp_path)
    roll_back(tmp_path, 5)
    assert found(tmp_path) == (5, 5.0)
    roll_back(tmp_path, 7)
    assert found(tmp_path) == (7, 7.0)


def test_what_was_undone_goes_with_the_next_rounds(tmp_path: Path) -> None:
    after(7, tmp_path)
    roll_back(tmp_path, 4)
    journal = after(4, tmp_path)
    journal.commit(state(50.0), 5, [], [])
    assert list(earlier_checkpoints(tmp_path)) == [4]
    assert found(tmp_path) == (5, 50.0)


def test_a_round_that_is_not_kept_changes_nothing(tmp_path: Path) -> None:
    after(7, tmp_path)
    with pytest.raises(ConfigError, match=r"no checkpoint after round 2 is kept in .*; there are: 4, 5, 6"):
        roll_back(tmp_path, 2)
    assert found(tmp_path) == (7, 7.0)


def test_shares_of_push_sum_go_back_only_for_everyone(tmp_path: Path) -> None:
    journal = after(3, tmp_path)
    taken = ParcelId(2, 3, 0)
    journal.keep(taken, b"share")
    journal.commit(state(4.0), 4, [taken], [])
    journal.begin(4)
    journal.keep(ParcelId(1, 4, 0), b"a share of a round that is played again")
    with pytest.raises(ConfigError, match="say --everyone"):
        roll_back(tmp_path, 3)
    assert found(tmp_path) == (4, 4.0)
    roll_back(tmp_path, 3, everyone=True)
    again = Journal(tmp_path, durable=False)
    again.recover()
    assert (again.round, again.begun(), again.kept(), again.ledger.taken) == (3, None, [], set())


NESTED = "[" * 100_000 + "]" * 100_000
NOTES = {"round": 3, "taken": [], "denied": [], "doubts": []}


@pytest.mark.parametrize(
    "notes",
    [
        "",
        NESTED,
        "[]",
        "7",
        json.dumps({"round": 3}),
        json.dumps({**NOTES, "round": "3"}),
        json.dumps({**NOTES, "round": -1}),
        json.dumps({**NOTES, "taken": [[1, 2]]}),
        json.dumps({**NOTES, "doubts": [5]}),
        json.dumps({**NOTES, "denied": {"a": 1}}),
    ],
)
def test_a_checkpoint_with_strange_notes_gets_a_sentence(tmp_path: Path, notes: str) -> None:
    path = tmp_path / "checkpoint.safetensors"
    write_checkpoint(path, {"x": torch.zeros(1)}, {"format": FORMAT, "notes": notes})
    with pytest.raises(DamagedRunError, match="is not a checkpoint that a peer wrote"):
        Journal(tmp_path).recover()
    with pytest.raises(DamagedRunError):
        committed_rounds(path)


@pytest.mark.parametrize("head", [NESTED, "7", "[]", "null", '{"__metadata__": 3}', '{"x": 4}'])
def test_a_checkpoint_with_a_strange_head_gets_a_sentence(tmp_path: Path, head: str) -> None:
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head.encode())
    with pytest.raises(DamagedRunError):
        committed_rounds(path)


@pytest.mark.parametrize("cut", [0, 4, 8, 60, -1])
def test_a_checkpoint_that_was_cut_off_gets_a_sentence(tmp_path: Path, cut: int) -> None:
    after(2, tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DamagedRunError):
        Journal(tmp_path).recover()


@pytest.mark.parametrize("text", ["", "{", NESTED, "[]", "7", '{"round": "7"}', '{"round": -1}', '{"x": 1}'])
def test_a_strange_begun_file_gets_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "begun.json").write_text(text)
    journal = Journal(tmp_path)
    journal.recover()
    with pytest.raises(DamagedRunError, match=r"begun.json is not what was written"):
        journal.begun()


def test_a_strange_file_name_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "in-x.safetensors").write_text("")
    with pytest.raises(DamagedRunError, match="is no file of a peer's state"):
        Journal(tmp_path).recover()
