"""Push-sum: averages over directed links, where nobody can make both rows and columns of W sum to 1.

Kempe, Dobra and Gehrke (2003). Each node holds values u and a mass mu, sends equal shares of both to its
out-neighbours and itself, and adds up what arrives. Shares that leave a node sum to 1, so the totals of u
and mu over all nodes never change, and z = u / mu tends to the mean. Here z and mu are kept, and u = mu z.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from coterie.errors import ContractError
from coterie.learning.updates import Gradients, Memory, Rate, Update
from coterie.protocol import Exchange, Inbox, Node, Params, Tree
from coterie.protocol.plausible import Sized
from coterie.protocol.trees import Counters, map_params, map_tree, per_row

Shares = dict[str, Params]  # {values: u, mass: {mu}}, summed; empty where there are none
SMALLEST_MASS = 1e-8
_ROUNDING = 1e-6  # of mass


@dataclass(frozen=True)
class Pushed:
    """Where a node's mass is after a push; all three parts together are its new (mu z, mu)."""

    stays: Tensor  # (rows,) mass that was not sent, and belongs to the node's z
    returned: Shares  # own shares that nobody took; between real peers also those of earlier rounds
    received: Shares


def push(
    z: Params, mass: Tensor, node: Node, waiting: Shares | None = None
) -> Generator[Exchange, Inbox, Pushed]:
    """Push a share of (mu z, mu) to each out-neighbour.

    One of the out-degree + 1 equal shares is the node's own. Those of messages that did not arrive come
    back: mass is never lost with them. waiting: further shares of this node, which it adds later.

    A node that leaves keeps nothing, and gives what waits, too: (mu z + u) / out-degree to each.
    """
    receivers = node.graph.out_degree[node.ids]
    gives_all = leaves(node) & (receivers > 0)
    share = mass / (receivers + ~gives_all)  # p mu_i
    share = share.where(mass > SMALLEST_MASS, 0.0)  # a node that nobody sends to would go down to zero
    stays = (mass - share * receivers).where(~gives_all, 0.0)
    payload = {"values": biased(z, share), "mass": Counters(mu=share)}
    here = stays
    if waiting is not None:
        given = gives_all / receivers.clamp(min=1).double()
        payload = _with_what_waits(payload, waiting, given)
        here = stays + waiting["mass"]["mu"] * ~gives_all
    room = node.graph.nodes - float(here[0])  # for real peers, who have one row
    check = PlausibleShares(room, Sized(z, "values", "mass/mu"))
    inbox = yield Exchange(payload, conserved=True, check=check)
    return Pushed(stays, cast(Shares, inbox.returned), cast(Shares, inbox.sum()))


def leaves(node: Node) -> Tensor:
    """(rows,) who takes part for the last time, and hands over what it holds."""
    if node.graph.leaving is None:
        return torch.zeros(len(node.ids), dtype=torch.bool)
    return node.graph.leaving[node.ids]


def _with_what_waits(payload: dict[str, Params], waiting: Shares, part: Tensor) -> dict[str, Params]:
    """part: (rows,) of what waits that goes with each message."""
    if not bool(part.any()):
        return payload
    values = {n: u + waiting["values"][n] * _weights(part, u) for n, u in payload["values"].items()}
    return {"values": values, "mass": Counters(mu=payload["mass"]["mu"] + waiting["mass"]["mu"] * part)}


@dataclass
class PlausibleShares:
    """What one peer can tell of the shares that reach it: their size, and whether so much mass can exist.

    room: mass that exists elsewhere, of which shares may still come.
    """

    room: float
    sized: Sized

    def __call__(self, payload: Tree) -> str:
        mass = float(cast(Shares, payload)["mass"]["mu"])
        if not 0 <= mass <= self.room + _ROUNDING:
            return f"its push-sum mass is {mass:g}, and at most {max(0.0, self.room):g} exists elsewhere"
        wrong = self.sized(payload)
        if not wrong:
            self.room -= mass
        return wrong


def merge(z: Params, stays: Tensor, *arrived: Shares) -> tuple[Params, Tensor]:
    """The new (z, mu) from the mass that stays with z and the sums of shares that arrived or came back.

    A row whose mass became too small to divide by keeps its z: nothing of weight has reached it. So do
    names that were not sent.
    """
    added = _added(arrived)
    mass = stays + added["mass"]["mu"] if added else stays
    usable = mass > SMALLEST_MASS
    merged = dict(z)
    for name, total in added.get("values", {}).items():
        own, divisor = _weights(stays, total), _weights(mass.clamp(min=SMALLEST_MASS), total)
        mean = torch.addcmul(total, z[name], own).div_(divisor)  # z = u / mu
        merged[name] = mean.where(per_row(usable, total).to(total.device), z[name])
    return merged, mass


def _added(parts: Iterable[Shares]) -> Shares:
    total: Shares = {}
    for part in parts:
        total = cast(Shares, map_tree(torch.add, total, part)) if total and part else total or part
    return total


def biased(z: Params, mass: Tensor) -> Params:
    """u = mu z."""
    return map_params(lambda value: value * _weights(mass, value), z)


def check_mass(before: Tensor, mass: Tensor, node: Node) -> None:
    """What each node can check by itself. How much may arrive is checked before it is taken.

    No mass has who gives it away in this round, or had given it away before, and got none since: a real peer
    that leaves, and does not know yet whether all was taken, stays for further rounds.
    """
    given_away = (mass == 0) & (leaves(node) | ~node.online | (before == 0))
    wrong = ~(((mass > 0) & mass.isfinite()) | given_away)
    if bool(wrong.any()):
        peer, value = int(node.ids[wrong][0]), float(mass[wrong][0])
        raise ContractError(
            f"round {node.round}: the push-sum mass of peer {peer} is {value}, not above 0: "
            "messages were counted twice, or took mass with them"
        )


def check_total(masses: Sequence[Tensor], nodes: int, round: int) -> None:
    """What only the simulator can check: all nodes together have as much mass as there was at first.

    masses: of all blocks of nodes, after the round. Mass in flight counts, and so does that of nodes that
    are offline: they keep theirs.
    """
    total = float(torch.cat(list(masses)).sum(dtype=torch.float64))
    if not abs(total - nodes) <= 1e-6 * nodes:  # so that NaN is wrong, too
        raise ContractError(
            f"round {round}: the push-sum mass of all nodes is {total}, not {nodes}, the number of nodes: "
            "messages were counted twice, or took mass with them"
        )


@dataclass(frozen=True)
class ScaledSteps:
    """Another rule whose every step is scaled, row by row."""

    factors: Tensor  # (rows,) over all rows of the node
    inner: Update

    def begin(self, params: Params, rows: Tensor) -> Memory:
        before = {name: value.clone() for name, value in params.items()}
        return {**self.inner.begin(params, rows), "before": before, "scale": {"rows": self.factors[rows]}}

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        for name, value in memory["before"].items():
            value.copy_(params[name])
        self.inner.step(params, memory, gradient, lr, number)
        for name, value in memory["before"].items():
            step = params[name].sub_(value)
            step.mul_(_weights(memory["scale"]["rows"], value)).add_(value)


def step_on(literal: bool, mass: Tensor) -> dict[str, Any]:
    """Settings of local training: steps on z, or literally on u, which moves z by lr / mu."""
    if not literal:
        return {}
    rates = 1.0 / mass.clamp(min=SMALLEST_MASS)
    return {"around": partial(ScaledSteps, rates.where(mass > 0, 0.0))}  # without mass there is no u to move


def _weights(values: Tensor, like: Tensor) -> Tensor:
    return per_row(values, like).to(like.device, like.dtype)
