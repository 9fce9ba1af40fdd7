"""The post, by hand: who is sent what, what an inbox holds, and what becomes of what does not arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted_transport import ScriptedTransport, hello, membership_of_0, roster

from coterie.errors import CoterieError, RefusedError, UnreachableError
from coterie.peer.exchange.doubts import Doubts
from coterie.peer.exchange.journal import Holdings, Journal, ParcelId
from coterie.peer.exchange.mailbox import FreeMailbox, Mailbox, StepMailbox
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.post import Exchanged, Post
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Head, Parcel, Receipt, decode_tree, encode_tree, shape_of
from coterie.protocol import Exchange, Inbox, Links, Tree
from coterie.protocol.ledger import Ledger
from coterie.testing import run_virtually
from coterie.topology import Topology, make

HERE = Position(2, 1)
OTHERS = (1, 2, 3)


def tree(value: float) -> Tree:
    return {"x": torch.full((1, 2), value)}


MINE = tree(1.0)


def first(total: Tree) -> float:
    return float(total["x"][0, 0])  # type: ignore[index, arg-type]


def receipt(number: int) -> Receipt:
    return Receipt(sender=f"peer-{number}")


def to(*numbers: int) -> Links:
    ids = torch.tensor(numbers, dtype=torch.long)
    return Links(torch.zeros_like(ids), ids)


class Desk:
    """Peer 0 of four, whose others live and do as they are told."""

    def __init__(self, folder: Path, *, in_step: bool = True, topology: Topology | None = None) -> None:
        self.transport, self.changed = ScriptedTransport(), Signal()
        self.transport.script |= {f"peer-{n}": [receipt(n)] for n in OTHERS}
        self.membership = membership_of_0(self.transport, OTHERS, self.changed)
        self.membership.suspect_after = 1000.0
        self.metrics = self.membership.metrics
        self.journal = Journal(folder / "state", durable=False)
        self.journal.recover()
        holdings = Holdings(self.journal)
        self.mailbox: Mailbox = (
            StepMailbox(holdings, self.changed, 5.0) if in_step else FreeMailbox(holdings, self.changed, 5.0)
        )
        self.doubts = Doubts("peer-0", self.journal, self.membership, self.transport, self.metrics)
        self.sealing = Sealed()
        self.post = Post(
            "peer-0",
            0,
            topology or make("full", peers=4, seed=0),
            self.transport,
            self.membership,
            self.mailbox,
            self.journal,
            self.doubts,
            self.sealing,  # type: ignore[arg-type]
            self.changed,
            self.metrics,
            deadline=20.0,
            withheld=frozenset({"buffer"}),
            in_step=in_step,
        )

    def says(self, number: int, *answers: Head | CoterieError) -> None:
        self.transport.script[f"peer-{number}"] = list(answers)

    def play(
        self,
        exchange: Exchange,
        *coming: Callable[[], Coroutine[Any, Any, None]],
        repeated: bool = False,
    ) -> tuple[Exchanged, float]:
        """What the exchange leaves, and how many seconds it took."""

        async def main() -> tuple[Exchanged, float]:
            for number in OTHERS:
                self.membership.heard(hello(number, round=HERE.round), roster(OTHERS)[number])
            tasks = [asyncio.create_task(each()) for each in coming]
            done = await self.post.exchange(exchange, HERE, repeated=repeated)
            seconds = asyncio.get_running_loop().time()
            await asyncio.gather(*tasks)
            return done, seconds

        return run_virtually(main())

    def comes(
        self, number: int, value: float | None, after: float = 0.0
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """A parcel of another peer for this exchange; None: word that it has nothing."""

        async def arrive() -> None:
            await asyncio.sleep(after)
            head = Parcel(sender=f"peer-{number}", round=HERE.round, slot=HERE.slot, empty=value is None)
            body = b"" if value is None else encode_tree(tree(value))
            if (wait := self.mailbox.admit(number, head, len(body))) is not None:
                await wait
            self.mailbox.take(number, head, body)

        return arrive


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- in step -------------------------------------------------------------------------------------


def test_everyone_is_sent_the_payload_and_the_inbox_holds_what_came(desk: Desk) -> None:
    payload = {"x": torch.ones(1, 2), "buffer": torch.zeros(1)}  # the buffer is withheld
    coming = [desk.comes(n, 3.0**n, after=n / 10) for n in OTHERS]
    done, seconds = desk.play(Exchange(payload), *coming)
    assert seconds == pytest.approx(0.3)
    assert sorted(done.inbox.senders.tolist()) == [1, 2, 3]
    assert first(done.inbox.sum()) == 3.0 + 9.0 + 27.0
    assert not done.late
    assert [(item.parcel, item.file) for item in done.delivered] == [
        (ParcelId(n, *HERE), None) for n in OTHERS
    ]
    parcels = [asked for asked in desk.transport.asked if isinstance(asked.head, Parcel)]
    assert sorted(asked.to for asked in parcels) == ["peer-1", "peer-2", "peer-3"]
    for asked in parcels:
        assert asked.head == Parcel(sender="peer-0", round=2, slot=1)
        assert decode_tree(asked.body, shape_of(MINE)).keys() == {"x"}  # type: ignore[union-attr]
    assert desk.metrics.messages_in == desk.metrics.messages_out == {f"peer-{n}": 1 for n in OTHERS}
    assert desk.mailbox.at == desk.post.position == HERE.next


def test_neighbours_only_where_the_graph_is_not_full(tmp_path: Path) -> None:
    desk = Desk(tmp_path, topology=make("ring", peers=4, seed=0))
    done, _ = desk.play(Exchange(MINE), desk.comes(1, 5.0), desk.comes(3, 7.0))
    assert done.inbox.senders.tolist() == [1, 3]
    assert "parcel" not in desk.transport.kinds("peer-2")


def test_an_addressed_payload_goes_there_and_the_others_get_word(desk: Desk) -> None:
    """So that nobody waits for a parcel that will not come."""
    coming = [desk.comes(1, None), desk.comes(2, 5.0), desk.comes(3, None)]
    done, seconds = desk.play(Exchange(MINE, to=to(2)), *coming)
    empty = {asked.to: asked.head.empty for asked in desk.transport.asked if isinstance(asked.head, Parcel)}
    assert empty == {"peer-1": True, "peer-2": False, "peer-3": True}
    assert done.inbox.senders.tolist() == [2]
    assert seconds < 0.1
    assert desk.metrics.messages_out == {"peer-2": 1}


def test_whoever_is_expected_is_waited_for_and_nobody_else(desk: Desk) -> None:
    done, seconds = desk.play(Exchange(MINE, to=to(1), expect=to(3)), desk.comes(3, 4.0, after=6.0))
    assert seconds == pytest.approx(6.0)
    assert first(done.inbox.sum()) == 4.0
    assert [asked.to for asked in desk.transport.asked if isinstance(asked.head, Parcel)] == ["peer-1"]


def test_the_deadline_ends_an_exchange_and_the_missing_are_counted(desk: Desk) -> None:
    done, seconds = desk.play(Exchange(MINE), desk.comes(1, 5.0))
    assert seconds == pytest.approx(20.0)
    assert done.inbox.senders.tolist() == [1]
    assert desk.metrics.missing == {"peer-2": 1, "peer-3": 1}
    assert "hello" in desk.transport.kinds("peer-2"), "the silent are asked where they are"
    assert "hello" not in desk.transport.kinds("peer-1")


def test_who_is_past_the_exchange_is_not_waited_for(desk: Desk) -> None:
    desk.says(3, receipt(3), hello(3, round=HERE.round + 1))
    done, seconds = desk.play(Exchange(MINE), desk.comes(1, 5.0), desk.comes(2, 5.0))
    assert done.inbox.senders.tolist() == [1, 2]
    assert seconds < 1.0


def test_an_empty_inbox_sums_to_zero(desk: Desk) -> None:
    desk.membership.suspect_after = 0.5
    for number in OTHERS:
        desk.says(number, UnreachableError("gone", sent=False))
    done, _ = desk.play(Exchange(MINE))
    assert torch.equal(done.inbox.sum()["x"], torch.zeros(1, 2))  # type: ignore[index, arg-type]
    assert done.inbox.count.tolist() == [0]


def test_a_peer_that_cannot_be_reached_is_tried_again_with_longer_pauses(desk: Desk) -> None:
    gone = UnreachableError("not yet", sent=False)
    desk.says(1, gone, gone, gone, receipt(1))
    coming = [desk.comes(n, 1.0) for n in OTHERS]
    desk.play(Exchange(MINE), *coming)
    times = [asked.at for asked in desk.transport.asked if asked.to == "peer-1"]
    assert times == pytest.approx([0.0, 0.02, 0.06, 0.14])
    assert desk.metrics.messages_out["peer-1"] == 1


# --- conserved -----------------------------------------------------------------------------------


def conserved(desk: Desk, *, repeated: bool = False) -> Exchanged:
    coming = [desk.comes(n, 10.0) for n in OTHERS]
    done, _ = desk.play(Exchange(MINE, conserved=True), *coming, repeated=repeated)
    assert first(done.inbox.sum()) == 30.0
    return done


def returned(inbox: Inbox) -> float:
    return first(inbox.returned) if inbox.returned else 0.0


def test_shares_that_arrive_do_not_come_back(desk: Desk) -> None:
    done = conserved(desk)
    assert (returned(done.inbox), desk.doubts.open) == (0.0, set())
    assert desk.journal.begun() == HERE.round


@pytest.mark.parametrize(
    ("answer", "comes_back", "in_doubt", "late"),
    [
        (RefusedError("stale", "over"), 1.0, False, True),
        (RefusedError("early", "not yet"), 1.0, False, False),
        (RefusedError("disk", "full"), 1.0, False, False),
        (RefusedError("shape", "other"), 1.0, False, False),
        (UnreachableError("no answer", sent=True), 0.0, True, False),
        (hello(2), 0.0, True, False),
    ],
)
def test_a_share_comes_back_or_is_in_doubt(
    answer: Head | CoterieError, comes_back: float, in_doubt: bool, late: bool, desk: Desk
) -> None:
    desk.says(2, answer)
    done = conserved(desk)
    assert returned(done.inbox) == comes_back
    parcel = ParcelId(2, *HERE)
    assert desk.doubts.open == ({parcel} if in_doubt else set())
    if in_doubt:
        assert decode_tree(desk.journal.doubted(parcel), shape_of(MINE))["x"].tolist() == [[1.0, 1.0]]  # type: ignore[index, union-attr]
    assert done.late is late


@pytest.mark.parametrize(
    ("answer", "in_doubt"),
    [(RefusedError("shape", "other"), True), (RefusedError("stale", "over"), False)],
)
def test_after_a_crash_a_refused_share_may_have_been_taken_before(
    answer: RefusedError, in_doubt: bool, desk: Desk
) -> None:
    """Only a mailbox that speaks of this very parcel knows that it was not."""
    desk.says(2, answer)
    done = conserved(desk, repeated=True)
    assert bool(desk.doubts.open) is in_doubt
    assert returned(done.inbox) == (0.0 if in_doubt else 1.0)


# --- at one's own pace ---------------------------------------------------------------------------


def test_nobody_is_waited_for_at_ones_own_pace(tmp_path: Path) -> None:
    desk = Desk(tmp_path, in_step=False)
    desk.says(3)  # does not answer
    done, seconds = desk.play(Exchange(MINE))
    assert (done.inbox.count.tolist(), seconds) == ([0], 0.0)


def test_a_wish_on_its_way_does_not_hold_up_an_answer_to_the_same_peer(tmp_path: Path) -> None:
    """But two of the same exchange do: the second would only be newer."""
    desk = Desk(tmp_path, in_step=False)
    desk.says(3)  # does not answer, so that all stay on their way
    wish, answer = Exchange({}, to=to(3)), Exchange(MINE, to=to(3), expect=to(1), answers=True)
    places = [Position(0, 0), Position(0, 1), Position(1, 0)]

    async def rounds() -> None:
        desk.membership.heard(hello(3), roster(OTHERS)[3])
        for exchange, place in zip((wish, answer, wish), places, strict=True):
            await desk.post.exchange(exchange, place, repeated=False)

    run_virtually(rounds())
    sent = [one.head for one in desk.transport.asked if isinstance(one.head, Parcel)]
    assert [Position(head.round, head.slot) for head in sent] == places[:2]


def test_a_share_without_a_receipt_is_in_doubt_after_a_second(tmp_path: Path) -> None:
    desk = Desk(tmp_path, in_step=False)
    desk.says(3)  # does not answer
    done, seconds = desk.play(Exchange(MINE, conserved=True))
    assert seconds == pytest.approx(1.0)
    assert desk.doubts.open == {ParcelId(3, *HERE)}
    assert returned(done.inbox) == 0.0


# --- sealed --------------------------------------------------------------------------------------


class Sealed:
    """Its sum is there after two seconds; peer 3 asks for this peer's part after five."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.gives_to: list[int] = []
        self.open_at: Position | None = None

    party = SimpleNamespace(ledger=Ledger())

    def open(self, at: Position, vector: torch.Tensor, collectors: list[int], allowed: object) -> None:
        self.open_at, self.gives_to = at, collectors
        self.began = asyncio.get_running_loop().time()

    def close(self) -> None:
        self.open_at = None

    def served(self, collector: int) -> bool:
        return asyncio.get_running_loop().time() >= self.began + 5.0

    async def collect(
        self, members: list[int], at: Position, until: float, group: int
    ) -> tuple[torch.Tensor, int] | None:
        self.asked = members
        await asyncio.sleep(2.0)
        return torch.tensor([6.0, 7.0]), len(members)


def test_a_peer_with_its_sum_says_that_it_is_past_the_exchange_while_it_still_gives(desk: Desk) -> None:
    seen: list[tuple[float, Position]] = []

    async def look() -> None:
        for _ in range(7):
            seen.append((asyncio.get_running_loop().time(), desk.post.position))
            await asyncio.sleep(1.0)

    for number in OTHERS:
        desk.says(number, hello(number, round=HERE.round))
    exchange = Exchange(MINE, to=to(3), expect=to(1, 2), sealed=True)
    done, seconds = desk.play(exchange, look)
    assert 5.0 <= seconds < 6.5
    assert [at for time, at in seen if 0.5 < time < 1.5] == [HERE]
    assert [at for time, at in seen if 2.5 < time < 4.5] == [HERE.next] * 2
    assert desk.post.position == HERE.next
    assert (desk.sealing.asked, desk.sealing.gives_to, desk.sealing.open_at) == ([1, 2], [3], None)
    assert done.inbox.sealed
    assert done.inbox.count.tolist() == [2]
    assert done.inbox.sum()["x"].tolist() == [[6.0, 7.0]]  # type: ignore[index, union-attr]
