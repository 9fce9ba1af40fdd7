"""A member with a valid key lies in plain exchanges: the others finish, name it, and keep nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lying import Liars, Lie, model_shape, other_parcels
from peers_in_memory import Size, World

from coterie.algorithms.d_psgd import DPSGD
from coterie.errors import DivergedError, RefusedError
from coterie.peer.network.messages import Head, Hello, Parcel, decode_head, shape_of
from coterie.protocol import ModelState, Node, Round, Tree
from coterie.protocol.plausible import norm
from coterie.protocol.trees import map_tree
from coterie.testing import run_virtually

SIZE = Size(peers=4, rounds=5, samples=6)


def times(factor: float) -> Any:
    return lambda tree: map_tree(lambda leaf: leaf * factor, tree)


def test_a_model_times_a_million_is_refused_and_its_sender_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lie = other_parcels(times(1e6), model_shape(), since=2)
    world = Liars("d-psgd", tmp_path, SIZE, lies={3: lie})
    ends = run_virtually(world.play_with([]))
    assert [ends[peer.number] for peer in world.honest] == [None, None, None]
    for peer in world.honest:
        assert peer.journal.round == SIZE.rounds
        assert norm(peer.state.params) < 100
    named = [text for text in caplog.messages if "what peer-3 sent is refused: its norm is" in text]
    assert len(named) >= 3 * 3, "each of the three, in each of three rounds"
    assert not [text for text in caplog.messages if "what peer-0 sent" in text]


def test_the_refused_are_not_waited_for(tmp_path: Path) -> None:
    """A liar that stays where it is costs its victims no deadline."""

    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        if isinstance(head, Hello) and head.round >= 0:
            return head.model_copy(update={"round": 2, "slot": 0}), body
        return other_parcels(times(1e6), model_shape(), since=2)(head, body)

    world = Liars("d-psgd", tmp_path, SIZE, lies={3: lie})
    run_virtually(world.play_with([]))
    spent = [report.seconds for peer in world.honest for report in world.reports[peer.number][2:3]]
    assert len(spent) == 3
    assert max(spent) < world.pace.deadline / 2


def osgp_shape(world: World) -> Any:
    params = world.node(0).initial()
    return shape_of({"values": params, "mass": {"mu": torch.ones(1, dtype=torch.float64)}})


def with_mass(mass: float) -> Any:
    def change(tree: Tree) -> Tree:
        return {**tree, "mass": {"mu": torch.tensor([mass], dtype=torch.float64)}}  # type: ignore[dict-item]

    return change


@pytest.mark.parametrize("mass", [1e9, -1.0, 4.1])
@pytest.mark.parametrize("in_step", [True, False])
def test_mass_that_cannot_be_is_refused_and_not_on_disk(tmp_path: Path, mass: float, in_step: bool) -> None:
    shape = osgp_shape(World("osgp", tmp_path / "shape", SIZE))
    lies = {3: other_parcels(with_mass(mass), shape)}
    world = Liars("osgp", tmp_path, SIZE, lies=lies, in_step=in_step)
    ends = run_virtually(world.play_with([]))
    for peer in world.honest:
        assert ends[peer.number] is None
        assert peer.journal.round == SIZE.rounds
        assert 0 < float(peer.state.mass[0]) <= 4
        assert not list((tmp_path / peer.name).glob("in-*-3.safetensors"))


def test_much_mass_in_many_shares_does_not_stop_a_peer(tmp_path: Path) -> None:
    """Each share could be, all together could not: no more is taken than exists elsewhere."""
    shape = osgp_shape(World("osgp", tmp_path / "shape", SIZE))
    world = Liars("osgp", tmp_path, SIZE, lies={3: other_parcels(with_mass(1.5), shape)})
    ends = run_virtually(world.play_with([]))
    assert [ends[peer.number] for peer in world.honest] == [None] * 3
    assert all(float(peer.state.mass[0]) <= 4 + 1e-6 for peer in world.honest)


@pytest.mark.parametrize("number", [4.0, -1.0, 0.5, 1e9])
def test_the_number_of_a_head_that_does_not_exist_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: float
) -> None:
    """Not even the body beside it is mixed: the liar's friends learn as if it had sent nothing."""
    head = {"number of the head": torch.tensor([number])}
    shape = shape_of({**World("facade", tmp_path / "shape", SIZE).node(0).initial(), **head})
    lies = {3: other_parcels(lambda tree: {**tree, **head}, shape)}  # type: ignore[dict-item]
    world = Liars("facade", tmp_path, SIZE, lies=lies)
    ends = run_virtually(world.play_with([]))
    assert [ends[peer.number] for peer in world.honest] == [None] * 3
    assert all(peer.journal.round == SIZE.rounds for peer in world.honest)
    said = f"what peer-3 sent is refused: the number of its head is {number:g}, and heads have 0 to 3"
    assert len([text for text in caplog.messages if said in text]) >= 3
    assert not [text for text in caplog.messages if "what peer-0 sent" in text]


def far_ahead(round: int) -> Lie:
    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        if isinstance(head, Hello) and head.round >= 1:
            return head.model_copy(update={"round": round}), body
        return head, body

    return lie


def test_nobody_follows_one_who_says_that_it_is_far_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = Size(peers=4, rounds=12, samples=6)
    world = Liars("d-psgd", tmp_path, size, lies={3: far_ahead(11)}, busy=1.0)
    for number in range(3):
        make_late(world, number)
    run_virtually(world.play_with([]))
    for peer in world.honest:
        assert [report.round for report in world.reports[peer.number]] == list(range(size.rounds))
        assert peer.metrics.skipped == 0
    assert any("peer-3 alone says that it is in round 12" in text for text in caplog.messages)


def make_late(world: World, number: int) -> None:
    """Whatever a peer sends, somebody tells it that its round is over, as a liar may."""
    plain = world._peer

    def made(number: int) -> Any:
        peer = plain(number)
        exchange = peer.post.exchange

        async def late(*args: Any, **settings: Any) -> Any:
            from dataclasses import replace

            return replace(await exchange(*args, **settings), late=True)

        peer.post.exchange = late  # type: ignore[method-assign]
        return peer

    world._peer = made  # type: ignore[method-assign]


def test_a_jump_that_two_report_is_made_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    size = Size(peers=4, rounds=12, samples=6)
    world = Liars("d-psgd", tmp_path, size, lies={2: far_ahead(9), 3: far_ahead(9)}, busy=1.0)
    make_late(world, 0)
    run_virtually(world.play_with([]))
    first = world.peers_by_number[0]
    assert first.metrics.skipped > 0
    assert first.metrics.skipped == sum(report.skipped for report in world.reports[0])
    assert any("where peer-2, peer-3 are" in text for text in caplog.messages)


def test_a_parcel_from_the_far_future_is_refused_at_ones_own_pace(tmp_path: Path) -> None:
    def lie(head: Head, body: bytes) -> tuple[Head, bytes]:
        if isinstance(head, Parcel):
            return head.model_copy(update={"round": 10**9}), body
        return head, body

    world = Liars("d-psgd", tmp_path, SIZE, lies={3: lie}, in_step=False, busy=1.0)
    run_virtually(world.play_with([]))
    assert all(peer.metrics.messages_in["peer-3"] == 0 for peer in world.honest)
    assert all(peer.metrics.messages_in["peer-0"] > 0 for peer in world.honest if peer.number)


# --- what a bad model leaves behind --------------------------------------------------------------


@dataclass(frozen=True)
class RuinedInRound(DPSGD):
    """One peer's model is ruined while it mixes."""

    peer: int = 1
    when: int = 3

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        mixed = yield from super().round(state, node)
        if node.round == self.when and int(node.ids[0]) == self.peer:
            return ModelState({name: value / 0 for name, value in mixed.params.items()})
        return mixed


def test_a_ruined_model_never_overwrites_a_good_one(tmp_path: Path) -> None:
    world = World(RuinedInRound(), tmp_path, SIZE)
    ends = run_virtually(world.play_with([]))
    assert isinstance(ends[1], DivergedError)
    assert "round 3: the model holds NaN or infinity after mixing with peer-0, peer-2, peer-3" in str(ends[1])
    assert [ends[number] for number in (0, 2, 3)] == [None] * 3
    again = World(DPSGD(), tmp_path, SIZE)
    peer = again._peer(1)
    assert peer.journal.round == 3
    run_virtually(peer.load())
    assert all(bool(value.isfinite().all()) for value in peer.state.params.values())


@pytest.mark.parametrize("kind", ["parcel", "inquiry"])
def test_a_message_of_a_round_before_the_first_is_refused(kind: str) -> None:
    """A share of round -1 would be written down, and its file could not be read again at the next start."""
    raw = f'{{"kind":"{kind}","sender":"bob","round":-1,"slot":0}}'
    with pytest.raises(RefusedError, match="malformed"):
        decode_head(raw.encode())
