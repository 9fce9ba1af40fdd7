"""Parcels in doubt: parked, asked about, forgotten or given back, such that the total never changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scripted_transport import ScriptedTransport, hello, membership_of_0, roster

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.exchange.doubts import Doubts
from coterie.peer.exchange.journal import Journal, ParcelId
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Finding, Inquiry, encode_tree, shape_of
from coterie.protocol import Tree
from coterie.testing import run_virtually

TO_1, TO_2 = ParcelId(1, 5, 0), ParcelId(2, 5, 0)


def tree(value: float) -> Tree:
    return {"x": torch.tensor([[value, -value]])}


LIKE = shape_of(tree(0.0))


def first(given: Callable[[], Tree] | None) -> float:
    assert given is not None
    return float(given()["x"][0, 0])  # type: ignore[index, arg-type]


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport()


@pytest.fixture
def doubts(transport: ScriptedTransport, tmp_path: Path) -> Doubts:
    journal = Journal(tmp_path / "state", durable=False)
    journal.recover()
    membership = membership_of_0(transport, [1, 2], Signal())
    made = Doubts("peer-0", journal, membership, transport, membership.metrics)
    made.park(TO_1, encode_tree(tree(10.0)))
    made.park(TO_2, encode_tree(tree(200.0)))
    return made


def settle(doubts: Doubts, alive: tuple[int, ...] = (1, 2)) -> None:
    async def main() -> None:
        for number in alive:
            doubts.membership.heard(hello(number), roster([number])[number])
        await doubts.settle(timeout=3.0)

    run_virtually(main())


def finding(number: int, taken: bool | None) -> Finding:
    return Finding(sender=f"peer-{number}", taken=taken)


def test_what_was_taken_is_forgotten_and_what_was_not_comes_back_once(
    doubts: Doubts, transport: ScriptedTransport
) -> None:
    transport.script |= {"peer-1": [finding(1, True)], "peer-2": [finding(2, False)]}
    settle(doubts)
    assert [asked.head for asked in transport.asked] == [Inquiry(sender="peer-0", round=5, slot=0)] * 2
    assert (doubts.pending, doubts.returned, doubts.open) == (set(), {TO_2}, {TO_2})
    assert first(doubts.give_back(0, LIKE, tree(3.0), lost=0)) == 200.0
    assert doubts.open == set()
    assert doubts.give_back(0, LIKE, tree(3.0), lost=0) is None


def test_what_is_certainly_lost_comes_back_at_once_with_what_was_in_doubt(
    doubts: Doubts, transport: ScriptedTransport
) -> None:
    transport.script |= {"peer-1": [finding(1, False)], "peer-2": [finding(2, False)]}
    settle(doubts)
    assert first(doubts.give_back(0, LIKE, tree(3.0), lost=2)) == 2 * 3.0 + 10.0 + 200.0
    assert doubts.metrics.shares_in_doubt == 2
    assert doubts.metrics.shares_returned == 4


def test_a_parcel_comes_back_in_its_own_exchange(doubts: Doubts, transport: ScriptedTransport) -> None:
    transport.script |= {"peer-1": [finding(1, False)], "peer-2": [finding(2, True)]}
    settle(doubts)
    assert doubts.give_back(1, LIKE, tree(3.0), lost=0) is None
    assert first(doubts.give_back(0, LIKE, tree(3.0), lost=0)) == 10.0


@pytest.mark.parametrize("error", [UnreachableError("gone"), RefusedError("disk", "full")])
def test_without_an_answer_the_doubt_stays(
    error: UnreachableError | RefusedError, doubts: Doubts, transport: ScriptedTransport
) -> None:
    transport.script |= {"peer-1": [error], "peer-2": [finding(2, True)]}
    settle(doubts)
    assert doubts.pending == {TO_1}
    transport.script["peer-1"] = [finding(1, False)]
    settle(doubts)
    assert (doubts.pending, doubts.returned) == (set(), {TO_1})


def test_only_the_living_are_asked(doubts: Doubts, transport: ScriptedTransport) -> None:
    transport.script |= {"peer-2": [finding(2, True)]}
    settle(doubts, alive=(2,))
    assert [asked.to for asked in transport.asked] == ["peer-2"]
    assert doubts.pending == {TO_1}


def test_a_receiver_that_no_longer_knows_is_counted(
    doubts: Doubts, transport: ScriptedTransport, caplog: pytest.LogCaptureFixture
) -> None:
    transport.script |= {"peer-1": [finding(1, None)], "peer-2": [finding(2, True)]}
    settle(doubts)
    assert doubts.open == set()
    assert doubts.metrics.shares_forgotten == 1
    assert "peer 1 no longer knows whether it took a share of round 5" in caplog.text


def test_committed_doubts_survive_a_crash(doubts: Doubts, transport: ScriptedTransport) -> None:
    doubts.journal.commit({"x": torch.zeros(1)}, 6, [], doubts.open)
    journal = Journal(doubts.journal.folder, durable=False)
    journal.recover()
    again = Doubts("peer-0", journal, doubts.membership, transport, doubts.metrics)
    assert again.pending == {TO_1, TO_2}
    transport.script |= {"peer-1": [finding(1, False)], "peer-2": [finding(2, True)]}
    settle(again)
    assert first(again.give_back(0, LIKE, tree(0.0), lost=0)) == 10.0
