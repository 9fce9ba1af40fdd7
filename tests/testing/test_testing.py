"""The public module for tests of algorithms: its example, its clock, its network and its crashes."""

from __future__ import annotations

import asyncio
import doctest

import pytest
import torch

import coterie.testing
from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.osgp import OSGP
from coterie.errors import PeerError, UnreachableError
from coterie.peer.network.messages import Head, Inquiry, Receipt
from coterie.protocol import Algorithm, ModelAlgorithm, ModelState, Node, Round
from coterie.testing import Crash, Cut, Faults, MemoryNetwork, run_peers, run_virtually


def test_the_example_of_the_docstring_holds() -> None:
    result = doctest.testmod(coterie.testing)
    assert result.attempted >= 5
    assert result.failed == 0


def test_the_clock_moves_without_waiting() -> None:
    async def main() -> float:
        await asyncio.sleep(10_000)
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == pytest.approx(10_000)


def test_a_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="deadlock"):
        run_virtually(main())


class Counting:
    """Takes everything, and counts."""

    def __init__(self) -> None:
        self.taken = 0

    def admit(self, caller: str, head: Head, size: int) -> None:
        return None

    async def take(self, caller: str, head: Head, body: bytes) -> tuple[Head, bytes]:  # type: ignore[override]
        self.taken += 1
        return Receipt(sender="b"), b""


def ask(faults: Faults, times: int = 200) -> tuple[int, int]:
    """How many of so many requests were taken, and how many were answered."""
    network, receiver = MemoryNetwork(seed=1, faults=faults), Counting()
    network.attach("b", receiver)

    async def main() -> int:
        answered = 0
        for _ in range(times):
            try:
                await network.transport("a").request("b", "", Inquiry(sender="a", round=0, slot=0), timeout=1)
                answered += 1
            except UnreachableError:
                pass
        return answered

    answered = run_virtually(main())
    return receiver.taken, answered


def test_rates_are_those_of_single_messages() -> None:
    assert ask(Faults()) == (200, 200)
    taken, answered = ask(Faults(lost_request=0.5))
    assert taken == answered
    assert 70 < taken < 130  # 100 expected, standard deviation 7
    taken, answered = ask(Faults(lost_answer=0.5))
    assert taken == 200
    assert 70 < answered < 130
    taken, answered = ask(Faults(duplicated=0.5))
    assert 270 < taken < 330
    assert answered == 200


def test_a_cut_separates_a_group_for_a_time() -> None:
    pairs = {(sender, receiver) for sender in "abcd" for receiver in "abcd" if sender != receiver}
    out = {("a", "b"), ("a", "d"), ("c", "b"), ("c", "d")}
    into = {(receiver, sender) for sender, receiver in out}
    for one_way, blocked in ((False, out | into), (True, out)):
        cut = Cut({"a", "c"}, start=2.0, seconds=3.0, one_way=one_way)
        assert {pair for pair in pairs if cut(*pair, 2.0)} == blocked
        assert {pair for pair in pairs if cut(*pair, 4.9)} == blocked
        assert not {pair for pair in pairs if cut(*pair, 1.9) or cut(*pair, 5.0)}


def test_the_same_seed_gives_the_same_rounds() -> None:
    faults = Faults(lost_answer=0.2, duplicated=0.3, delay=0.05)
    runs = [run_peers(OSGP(), faults=faults, crashes=[Crash(2, at=1.5)], seed=4) for _ in range(2)]
    for number in range(4):
        for one, other in zip(*(run.reports[number] for run in runs), strict=True):
            assert (one.round, one.seconds, one.train_loss) == (other.round, other.seconds, other.train_loss)
        assert torch.equal(runs[0].states[number].mass, runs[1].states[number].mass)


def test_a_crash_costs_time_and_no_round() -> None:
    calm, crashed = run_peers(DPSGD()), run_peers(DPSGD(), crashes=[Crash(0, at=1.0, away=3.0)])
    assert calm.finished == crashed.finished == [0, 1, 2, 3]
    for outcome in (calm, crashed):
        assert [[report.round for report in reports] for reports in outcome.reports.values()] == [
            [0, 1, 2]
        ] * 4
    longest = [max(report.seconds for report in outcome.reports[1]) for outcome in (calm, crashed)]
    assert longest[1] > longest[0] + 1.0


def test_whoever_finds_nobody_ends_with_an_error_of_ours() -> None:
    """Cut off from everyone for longer than it waits for them."""
    outcome = run_peers(DPSGD(), faults=Faults(cut=Cut({"peer-3"}, 0.0, 10_000.0)))
    assert outcome.finished == [0, 1, 2]
    assert isinstance(outcome.ends[3], PeerError)
    assert "none of the 3 members of the roster answered" in str(outcome.ends[3])
    assert outcome.reports[3] == []


class Mistaken(ModelAlgorithm):
    """Raises in its first round."""

    facts = DPSGD.facts

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        raise ZeroDivisionError("a mistake in the algorithm")
        yield


def test_a_mistake_in_the_algorithm_is_raised() -> None:
    mistaken: Algorithm[ModelState] = Mistaken()
    with pytest.raises(ZeroDivisionError, match="a mistake in the algorithm"):
        run_peers(mistaken)
