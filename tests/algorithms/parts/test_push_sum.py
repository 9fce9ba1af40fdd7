"""Push-sum between nodes whose messages come back late: mass and values are conserved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.algorithms.osgp import OSGP, PushState
from coterie.algorithms.parts.push_sum import merge, push, step_on
from coterie.errors import ContractError
from coterie.protocol import Bundle, Inbox, Tree


class Alone:
    """One row that sends to three others and does not train."""

    ids, rows, round, online = torch.tensor([0]), 1, 0, torch.tensor([True])
    graph = SimpleNamespace(nodes=4, out_degree=torch.tensor([3, 0, 0, 0]), leaving=None)

    def train(self, params: Any, **settings: Any) -> Any:
        return params

    def measure(self, **models: Any) -> None: ...

    record = measure


def shares(value: float, mass: float) -> Tree:
    """What stands for u = value, mu = mass in a message."""
    return {"values": {"w": number(value)[:, None]}, "mass": {"mu": number(mass)}}


def number(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def inbox(received: Tree | None = None, returned: Tree | None = None) -> Inbox:
    here = torch.zeros(1, dtype=torch.long)
    parcels = [] if received is None else [Bundle(received, here, here, here)]
    return Inbox(parcels, 1, None if returned is None else lambda: returned)


def start() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    return {"w": number(2.0)[:, None]}, number(1.0)


@pytest.mark.parametrize("received", [None, shares(3.0, 0.5)], ids=["nobody", "somebody"])
def test_a_share_of_another_round_comes_back_as_it_was(received: Tree | None) -> None:
    z, mass = start()
    steps = push(z, mass, Alone())  # type: ignore[arg-type]
    sent = next(steps)
    assert sent.conserved
    with pytest.raises(StopIteration) as stop:
        steps.send(inbox(received, shares(-7.0, 0.8)))  # sent long ago, from another model
    pushed = stop.value.value
    z, mass = merge(z, pushed.stays, pushed.returned, pushed.received)
    total = 0.25 + 0.8 + (0.5 if received else 0.0)
    assert float(mass) == pytest.approx(total, abs=1e-12)
    u = 0.25 * 2.0 - 7.0 + (3.0 if received else 0.0)
    assert float(z["w"]) == pytest.approx(u / total, abs=1e-12)


@pytest.mark.parametrize("tau", [0, 1])
def test_osgp_adds_what_came_back_at_once(tau: int) -> None:
    z, mass = start()
    flying = {"w": number(1.5)[:, None]} if tau else {}
    state = PushState(z, mass, flying, number(0.3 * tau))
    for received in (shares(3.0, 0.5), None):  # the second inbox does not even say what payloads look like
        u, mu = held(state)
        steps = OSGP(tau=tau).round(state, Alone())  # type: ignore[arg-type]
        sent: Any = next(steps).payload
        with pytest.raises(StopIteration) as stop:
            steps.send(inbox(received, shares(-7.0, 0.8)))
        state = stop.value.value
        u += -3 * float(sent["values"]["w"]) - 7.0 + (3.0 if received else 0.0)
        mu += -3 * float(sent["mass"]["mu"]) + 0.8 + (0.5 if received else 0.0)
        assert held(state) == (pytest.approx(u, abs=1e-12), pytest.approx(mu, abs=1e-12))


def held(state: PushState) -> tuple[float, float]:
    """All of u and mu that a node has, in flight or not."""
    flying = float(state.in_flight["w"]) if state.in_flight else 0.0
    return float(state.mass * state.params["w"]) + flying, float(state.mass + state.mass_in_flight)


def test_who_leaves_gives_everything_by_hand() -> None:
    """z = 2, mu = 1 and 0.3 in flight with u = 1.5: each of three gets u = (2 + 1.5) / 3, mu = 1.3 / 3."""
    node = Alone()
    node.graph = SimpleNamespace(
        **{**vars(Alone.graph), "leaving": torch.tensor([True, False, False, False])}
    )
    state = PushState(*start(), {"w": number(1.5)[:, None]}, number(0.3))
    steps = OSGP(tau=1).round(state, node)  # type: ignore[arg-type]
    sent: Any = next(steps).payload
    assert float(sent["values"]["w"]) == pytest.approx(3.5 / 3, abs=1e-12)
    assert float(sent["mass"]["mu"]) == pytest.approx(1.3 / 3, abs=1e-12)
    with pytest.raises(StopIteration) as stop:
        steps.send(inbox(shares(0.0, 0.0), None))
    left = stop.value.value
    assert (float(left.mass), float(left.mass_in_flight), float(left.in_flight["w"])) == (0, 0, 0)
    assert float(left.params["w"]) == 2.0


@pytest.mark.parametrize("tau", [0, 1])
def test_who_has_given_everything_may_stay_without_mass(tau: int) -> None:
    """As a peer that leaves, but waits for receipts: nothing arrives in one round, u = 3, mu = 0.5 later."""
    state = PushState(start()[0], number(0.0), {"w": number(0.0)[:, None]} if tau else {}, number(0.0))
    for received in (None, shares(3.0, 0.5), shares(0.0, 0.0)):
        sent, state = played(OSGP(tau=tau), state, received)
        if received is None:
            assert float(sent["mass"]["mu"]) == 0.0
            assert held(state) == (0.0, 0.0)
            assert float(state.params["w"]) == 2.0
    assert float(state.params["w"]) == pytest.approx(6.0, abs=1e-12)  # 3 / 0.5


def test_who_had_mass_may_not_end_without() -> None:
    state = PushState(*start(), {}, number(0.0))
    with pytest.raises(ContractError, match=r"peer 0 is 0\.0"):
        played(OSGP(), state, shares(-0.5, -0.25))  # one quarter stays


def test_literal_steps_are_scaled_by_mass_and_none_without_it() -> None:
    around = step_on(True, torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))["around"]
    assert around(None).factors.tolist() == [1.0, 2.0, 0.0]


def played(algorithm: OSGP, state: PushState, received: Tree | None) -> tuple[Any, PushState]:
    """What a round sends, and the state after it."""
    steps = algorithm.round(state, Alone())  # type: ignore[arg-type]
    sent = next(steps).payload
    with pytest.raises(StopIteration) as stop:
        steps.send(inbox(received))
    return sent, stop.value.value
