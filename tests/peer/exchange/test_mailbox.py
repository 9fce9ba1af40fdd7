"""Mailboxes, message by message: what is taken now, what waits, what is refused, what an exchange gets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
import torch

from coterie.errors import RefusedError
from coterie.peer.exchange.journal import Holdings, Journal, ParcelId
from coterie.peer.exchange.mailbox import Delivered, FreeMailbox, StepMailbox, Wanted
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Parcel, encode_tree, shape_of
from coterie.protocol import Inbox, Tree
from coterie.testing import run_virtually

Box = StepMailbox | FreeMailbox


def tree(value: float) -> Tree:
    return {"w": torch.full((1, 2), float(value))}


def body(value: float) -> bytes:
    return encode_tree(tree(value))


def wanted(*, conserved: bool = False) -> Wanted:
    return Wanted(shape_of(tree(0.0)), len(body(0.0)), conserved)


def parcel(round: int, slot: int = 0, *, empty: bool = False) -> Parcel:
    return Parcel(sender="x", round=round, slot=slot, empty=empty)


def value(item: Delivered) -> float:
    """What an inbox makes of it."""
    total = Inbox([item.messages(wanted())], 1).sum()
    return float(total["w"][0, 0])  # type: ignore[index, arg-type]


def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "state", durable=False)
    made.recover()
    return made


@pytest.fixture
def step(tmp_path: Path) -> StepMailbox:
    return StepMailbox(Holdings(journal(tmp_path)), Signal(), patience=10.0)


@pytest.fixture
def free(tmp_path: Path) -> FreeMailbox:
    return FreeMailbox(Holdings(journal(tmp_path)), Signal(), patience=10.0, staleness=2)


def send(box: Box, number: int, head: Parcel, content: bytes = b"") -> bool:
    """As a transport does: admitted at once, then taken."""
    assert box.admit(number, head, len(content)) is None
    return box.take(number, head, content)


def is_refused(box: Box, number: int, head: Parcel, content: bytes = b"") -> str:
    with pytest.raises(RefusedError) as error:
        send(box, number, head, content)
    return error.value.reason


# --- in step -------------------------------------------------------------------------------------


def test_an_open_exchange_takes_each_senders_parcel_once(step: StepMailbox) -> None:
    step.open(Position(3, 0), wanted())
    assert step.silent({1, 2, 5}) == {1, 2, 5}
    assert send(step, 5, parcel(3), body(5.0)) is True
    assert send(step, 1, parcel(3), body(1.0)) is True
    assert send(step, 1, parcel(3), body(7.0)) is False  # a copy, whatever it holds
    assert send(step, 2, parcel(3, empty=True)) is True
    assert step.silent({1, 2, 4, 5}) == {4}
    items = step.close(None, once=True)
    assert [(item.parcel.number, value(item)) for item in items] == [(1, 1.0), (5, 5.0)]
    assert step.at == Position(3, 1)
    assert not any(step.keeps(item) for item in items)


def test_what_is_over_is_refused(step: StepMailbox) -> None:
    step.open(Position(3, 1), wanted())
    assert is_refused(step, 1, parcel(2, 1), body(1.0)) == "stale"
    assert is_refused(step, 1, parcel(3, 0), body(1.0)) == "stale"
    step.close(None, once=True)
    assert is_refused(step, 1, parcel(3, 1), body(1.0)) == "stale"


def test_a_parcel_is_bounded_by_ones_own(step: StepMailbox) -> None:
    step.open(Position(0, 0), wanted())
    size = len(body(0.0))
    assert step.admit(1, parcel(0), size + 4096) is None
    with pytest.raises(RefusedError, match=f"{size + 4097} bytes where the payload has {size}"):
        step.admit(1, parcel(0), size + 4097)


def test_another_shape_is_refused_and_can_be_mended(step: StepMailbox) -> None:
    step.open(Position(0, 0), wanted())
    other = encode_tree({"w": torch.zeros(1, 3)})
    assert is_refused(step, 1, parcel(0), other) == "shape"
    assert step.silent({1}) == {1}
    assert send(step, 1, parcel(0), body(1.0)) is True


async def later(seconds: float, box: Box, at: Position) -> None:
    await asyncio.sleep(seconds)
    box.open(at, wanted())


async def admitted_at(admission: Awaitable[None] | None) -> float:
    assert admission is not None, "it must wait"
    await admission
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("head", [parcel(4, 0), parcel(3, 1)], ids=["next round", "next exchange"])
def test_what_is_early_waits_until_its_exchange_opens(head: Parcel, step: StepMailbox) -> None:
    step.open(Position(3, 0), wanted())

    async def main() -> float:
        opening = asyncio.create_task(later(6.0, step, Position(head.round, head.slot)))
        seconds = await admitted_at(step.admit(1, head, len(body(1.0))))
        await opening
        return seconds

    assert run_virtually(main()) == pytest.approx(6.0)
    assert step.take(1, head, body(1.0)) is True


def test_an_exchange_is_early_until_it_is_open(step: StepMailbox) -> None:
    step.begin(Position(3, 0))

    async def main() -> float:
        opening = asyncio.create_task(later(1.0, step, Position(3, 0)))
        seconds = await admitted_at(step.admit(1, parcel(3), 1))
        await opening
        return seconds

    assert run_virtually(main()) == pytest.approx(1.0)


def test_who_waits_too_long_is_refused(step: StepMailbox) -> None:
    step.open(Position(3, 0), wanted())

    async def main() -> float:
        with pytest.raises(
            RefusedError, match="early: this peer is in round 3, not yet in exchange 2 of round 9"
        ):
            await admitted_at(step.admit(1, parcel(9, 2), 1))
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == pytest.approx(10.0)


def test_a_sender_that_waited_for_a_skipped_exchange_is_refused(step: StepMailbox) -> None:
    step.open(Position(3, 0), wanted())

    async def main() -> None:
        opening = asyncio.create_task(later(1.0, step, Position(6, 0)))
        with pytest.raises(RefusedError, match="exchange 0 of round 4 is over"):
            await admitted_at(step.admit(1, parcel(4), 1))
        await opening

    run_virtually(main())


def test_a_large_parcel_is_read_from_its_file_and_removed(step: StepMailbox, tmp_path: Path) -> None:
    step.open(Position(0, 0), wanted())
    used, unused = tmp_path / "used", tmp_path / "unused"
    used.write_bytes(body(4.0))
    unused.write_bytes(body(5.0))
    assert step.take(1, parcel(0), used)
    (item,) = step.close(None, once=True)
    assert value(item) == value(item) == 4.0
    item.discard()
    assert not used.exists()
    step.open(Position(1, 0), wanted())
    assert step.take(1, parcel(1), unused)
    step.begin(Position(2, 0))  # the peer gives up the exchange
    assert not unused.exists()


def test_a_conserved_parcel_is_on_disk_before_it_is_taken(step: StepMailbox, tmp_path: Path) -> None:
    step.open(Position(3, 0), wanted(conserved=True))
    assert send(step, 1, parcel(3), body(2.0))
    again = StepMailbox(Holdings(journal(tmp_path)), Signal(), patience=1.0)
    again.open(Position(2, 0), wanted(conserved=True))
    assert again.close(None, once=True) == []
    again.open(Position(3, 0), wanted(conserved=True))
    assert send(again, 1, parcel(3), body(9.0)) is False  # its sender asks once more
    assert [value(item) for item in again.close(None, once=True)] == [2.0]


def test_what_was_denied_is_not_taken(step: StepMailbox) -> None:
    step.open(Position(3, 0), wanted(conserved=True))
    assert step.holdings.finding(ParcelId(1, 3, 0)) is False
    assert is_refused(step, 1, parcel(3), body(1.0)) == "stale"


# --- at one's own pace ---------------------------------------------------------------------------


def test_the_newest_model_of_each_counts_whatever_its_round(free: FreeMailbox) -> None:
    free.open(Position(5, 0), wanted())
    assert free.silent({1, 2}) == set(), "nobody is waited for"
    for number, round, content in ((1, 4, 1.0), (1, 6, 2.0), (2, 3, 3.0)):
        assert send(free, number, parcel(round), body(content)) is True
    assert is_refused(free, 1, parcel(5), body(9.0)) == "stale"  # older than what is here
    assert is_refused(free, 3, parcel(2), body(9.0)) == "stale"  # three rounds behind
    items = free.close(None, once=False)
    assert [(item.parcel.number, value(item)) for item in items] == [(1, 2.0), (2, 3.0)]


def test_a_neighbours_model_is_used_again_until_it_is_stale(free: FreeMailbox) -> None:
    free.open(Position(5, 0), wanted())
    send(free, 1, parcel(4), body(1.0))
    for round in (5, 6):
        free.open(Position(round, 0), wanted())
        (item,) = free.close({1, 2}, once=False)
        assert free.keeps(item)
    free.open(Position(7, 0), wanted())
    assert free.close({1, 2}, once=False) == []


def test_only_whom_one_expects_is_used(free: FreeMailbox) -> None:
    free.open(Position(5, 0), wanted())
    send(free, 1, parcel(5), body(1.0))
    send(free, 2, parcel(5), body(2.0))
    assert [value(item) for item in free.close({2, 3}, once=False)] == [2.0]


def test_what_is_addressed_to_a_peer_is_used_once(free: FreeMailbox) -> None:
    free.open(Position(5, 0), wanted())
    send(free, 1, parcel(5), body(1.0))
    (item,) = free.close(None, once=True)
    assert not free.keeps(item)
    assert free.close(None, once=True) == []
    assert is_refused(free, 1, parcel(5), body(1.0)) == "stale"  # a copy


def test_answers_come_later_from_whom_one_asked_lately(free: FreeMailbox) -> None:
    """Once each, and not from those who were never asked, nor from whom one asked too long ago."""
    free.open(Position(5, 1), wanted())
    assert free.close({1}, once=True, answers=True) == []
    for number in (1, 2):
        send(free, number, parcel(5, 1), body(number))
    free.open(Position(6, 1), wanted())
    assert [value(item) for item in free.close({3}, once=True, answers=True)] == [1.0]
    send(free, 1, parcel(6, 1), body(6.0))
    send(free, 3, parcel(6, 1), body(3.0))
    free.open(Position(8, 1), wanted())  # 1 was asked three rounds ago
    assert [value(item) for item in free.close(set(), once=True, answers=True)] == [3.0]


def test_whoever_is_far_behind_may_still_ask(free: FreeMailbox) -> None:
    """A wish holds nothing that is too old; it ages from when it came."""
    wish = Wanted(shape_of({}), len(encode_tree({})), False)
    free.open(Position(9, 0), wish)
    free.open(Position(9, 1), wanted())
    assert is_refused(free, 1, parcel(0, 1), body(1.0)) == "stale"
    assert send(free, 1, parcel(0), encode_tree({})) is True
    free.open(Position(10, 0), wish)
    (item,) = free.close(None, once=True)
    assert item.parcel.number == 1
    assert send(free, 1, parcel(1), encode_tree({})) is True
    free.open(Position(13, 0), wish)
    assert free.close(None, once=True) == []


def test_every_share_is_used_once(free: FreeMailbox) -> None:
    free.open(Position(5, 0), wanted(conserved=True))
    for number, round in ((2, 5), (1, 4), (1, 5)):
        assert send(free, number, parcel(round), body(number + round)) is True
    assert send(free, 1, parcel(4), body(0.0)) is False
    assert [value(item) for item in free.close(None, once=True)] == [5.0, 6.0, 7.0]
    assert free.close(None, once=True) == []


def test_shares_from_before_a_crash_are_used(free: FreeMailbox, tmp_path: Path) -> None:
    free.open(Position(5, 0), wanted(conserved=True))
    send(free, 1, parcel(4), body(1.0))
    again = FreeMailbox(Holdings(journal(tmp_path)), Signal(), patience=1.0, staleness=2)
    again.open(Position(5, 0), wanted(conserved=True))
    assert [value(item) for item in again.close(None, once=True)] == [1.0]
    again.open(Position(6, 0), wanted(conserved=True))
    assert again.close(None, once=True) == []


def test_an_exchange_that_this_peer_has_never_reached_is_early(free: FreeMailbox) -> None:
    async def main() -> float:
        opening = asyncio.create_task(later(2.0, free, Position(0, 1)))
        seconds = await admitted_at(free.admit(1, parcel(0, 1), 1))
        await opening
        return seconds

    assert run_virtually(main()) == pytest.approx(2.0)
    assert free.admit(1, parcel(7, 1), 1) is None, "known from now on, in every round"


def test_a_replaced_file_is_removed(free: FreeMailbox, tmp_path: Path) -> None:
    free.open(Position(0, 0), wanted())
    files = [tmp_path / "old", tmp_path / "new"]
    for round, file in enumerate(files):
        file.write_bytes(body(round))
        assert free.take(1, parcel(round), file)
    assert [file.exists() for file in files] == [False, True]
    assert [value(item) for item in free.close(None, once=False)] == [1.0]


# --- what cannot be honest -----------------------------------------------------------------------


def judged(*, conserved: bool = False) -> Wanted:
    """Nothing above 9 is plausible."""
    known = wanted(conserved=conserved)

    def check(payload: Tree) -> str:
        return "too much" if float(payload["w"][0, 0]) > 9 else ""  # type: ignore[index, arg-type]

    return Wanted(known.like, known.size, conserved, check)


def test_what_is_implausible_is_refused_and_not_waited_for(step: StepMailbox) -> None:
    step.open(Position(0, 0), judged())
    assert is_refused(step, 1, parcel(0), body(10.0)) == "implausible"
    assert step.silent({1, 2}) == {2}
    assert send(step, 2, parcel(0), body(9.0)) is True
    assert [item.parcel.number for item in step.close(None, once=True)] == [2]


@pytest.mark.parametrize("kind", [StepMailbox, FreeMailbox])
def test_an_implausible_share_is_not_on_disk(tmp_path: Path, kind: type[Box]) -> None:
    kept = journal(tmp_path)
    box = kind(Holdings(kept), Signal(), patience=10.0)
    box.open(Position(0, 0), judged(conserved=True))
    assert is_refused(box, 1, parcel(0), body(10.0)) == "implausible"
    assert kept.kept() == []
    assert box.close(None, once=False) == []


def test_a_model_is_not_younger_than_its_arrival(free: FreeMailbox) -> None:
    """Whatever round its sender writes on it, it is used for as long as one that came in time."""
    free.open(Position(3, 0), wanted())
    assert send(free, 1, parcel(99), body(1.0)) is True
    used = []
    for round in range(3, 9):
        free.open(Position(round, 0), wanted())
        used.append([value(item) for item in free.close(None, once=False)])
    assert used == [[1.0], [1.0], [1.0], [], [], []]


def test_rounds_beyond_the_experiment_are_refused(tmp_path: Path) -> None:
    box = FreeMailbox(Holdings(journal(tmp_path)), Signal(), patience=10.0, rounds=20)
    box.open(Position(0, 0), wanted())
    assert is_refused(box, 1, parcel(20), body(1.0)) == "unexpected"
    assert send(box, 1, parcel(19), body(1.0)) is True
