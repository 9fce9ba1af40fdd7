"""Terms that a quorum changes, and news that are passed on: by hand, with a membership of stand-ins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.errors import ConfigError, RefusedError, UnreachableError
from coterie.peer.exchange.membership import Acquaintance, Presence
from coterie.peer.gazette import Agreement, Gazette
from coterie.peer.network.messages import News, Terms

START = Terms(rounds=20, lr=0.1, deadline=60.0)


def membership(*wanted: Terms | None, left: int = 0) -> Any:
    """Others by number from 1, with the terms that each wants; the last `left` of them have left."""
    roster = {number: Acquaintance(f"peer-{number}", number, "h:1") for number in range(1, len(wanted) + 1)}
    presences = {number: Presence(terms=terms) for number, terms in enumerate(wanted, 1)}
    for number in list(presences)[len(presences) - left :]:
        presences[number].until = 3
    return SimpleNamespace(
        roster=lambda: roster,
        presence=presences.__getitem__,
        alive=lambda number: True,
        address=lambda member: member.address,
    )


def changed(**changes: Any) -> Terms:
    return START.model_copy(update=changes)


@pytest.mark.parametrize(
    ("own", "others", "left", "then"),
    [
        (START, [START, START], 0, START),
        (changed(rounds=30), [START, START], 0, START),  # one of three
        (START, [changed(rounds=30), changed(rounds=30)], 0, changed(rounds=30)),  # also who does not want it
        (changed(rounds=30), [changed(rounds=30), None], 0, changed(rounds=30)),  # one was never heard of
        (changed(rounds=30), [changed(rounds=40), START], 0, START),  # no two agree
        (
            changed(lr=0.05),
            [changed(lr=0.05, deadline=9.0), changed(deadline=9.0)],
            0,
            changed(lr=0.05, deadline=9.0),
        ),
        (changed(rounds=30), [START, None, None], 0, START),  # one of four, although two said nothing
        (
            changed(rounds=30),
            [changed(rounds=30), START, START],
            2,
            changed(rounds=30),
        ),  # who has left has no say
    ],
)
def test_more_than_half_of_all_members_change_the_terms(
    own: Terms, others: list[Terms | None], left: int, then: Terms
) -> None:
    adopted: list[Terms] = []
    agreement = Agreement(lambda: own, membership(*others, left=left), adopted.append, START)
    agreement.look()
    agreement.look()
    assert agreement.now == then
    assert adopted == ([] if then == START else [then]), "once"


class Board:
    """What one peer knows."""

    def __init__(self, *known: bytes) -> None:
        self.known, self.told_last, self.farewells = set(known), ([], []), []  # type: ignore[var-annotated]

    @property
    def digest(self) -> str:
        return "".join(sorted(item.hex() for item in self.known))

    def text(self) -> bytes:
        return b" ".join(sorted(self.known))

    def read(self, text: bytes) -> None:
        if text == b"nonsense":
            raise ConfigError("no news")
        self.known |= set(text.split())

    def leave(self, round: int) -> None:
        self.farewells.append(round)

    def told(self, members: Any, everyone: Any) -> None:
        self.told_last = sorted(members), sorted(everyone)


class Post:
    """Two others: one takes news, one is away."""

    def __init__(self, other: Gazette) -> None:
        self.other, self.asked = other, []  # type: ignore[var-annotated]

    async def request(self, to: str, address: str, head: Any, body: bytes = b"", **limits: Any) -> Any:
        self.asked.append(to)
        if to == "peer-2":
            raise UnreachableError("away")
        return self.other.answer(body)


def test_news_reach_all_who_are_there_once() -> None:
    others = membership(None, None)
    theirs = Gazette("peer-1", Board(b"b"), others, None)  # type: ignore[arg-type]
    post = Post(theirs)
    ours = Gazette("peer-0", Board(b"a"), others, post)
    others.presence(1).news = others.presence(2).news = theirs.bulletin.digest

    async def scenario() -> None:
        await ours.spread(1.0)
        assert ours.bulletin.known == theirs.bulletin.known == {b"a", b"b"}  # type: ignore[attr-defined]
        assert post.asked == ["peer-1", "peer-2"]
        await ours.spread(1.0)  # ours have changed meanwhile: it is asked again, and who was away, too
        await ours.spread(1.0)
        assert post.asked.count("peer-1") == 2
        assert post.asked.count("peer-2") == 3
        assert ours.bulletin.told_last == (["peer-1"], ["peer-1", "peer-2"])  # type: ignore[attr-defined]
        await ours.leave(7, 1.0)
        assert ours.bulletin.farewells == [7]  # type: ignore[attr-defined]

    asyncio.run(scenario())


def test_what_is_no_news_is_refused() -> None:
    with pytest.raises(RefusedError, match="no news"):
        Gazette("peer-1", Board(), membership(), None).answer(b"nonsense")  # type: ignore[arg-type]
    assert isinstance(Gazette("peer-1", Board(), membership(), None).answer(b"")[0], News)  # type: ignore[arg-type]
