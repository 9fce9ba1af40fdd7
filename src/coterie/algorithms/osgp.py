"""OSGP: Assran et al., Stochastic Gradient Push for Distributed Deep Learning (ICML 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.algorithms.parts.push_sum import Shares, check_mass, leaves, merge, push, step_on
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING
from coterie.errors import ConfigError
from coterie.protocol import Algorithm, Facts, Node, Params, Presets, Round
from coterie.protocol.trees import map_params, per_row


@dataclass(frozen=True)
class PushState:
    """The de-biased model, its mass, and what arrived but is not added before the next round."""

    params: Params  # z
    mass: Tensor  # (rows,) mu, float64
    in_flight: Params  # u; empty without delay
    mass_in_flight: Tensor  # (rows,)


@dataclass(frozen=True)
class OSGP(Algorithm[PushState]):
    """Local epochs at the de-biased model, then push-sum over directed links, with or without delay.

        z_i <- z_i after local SGD;   u_i <- mu_i z_i
        p_i = 1 / (out-degree of i + 1)
        u_i <- p_i u_i + sum_j p_j u_j,   mu_i <- p_i mu_i + sum_j p_j mu_j    j: who sends to i
        z_i <- u_i / mu_i

    With delay tau = 1 the messages of a round are added in the next one, while one's own share stays at
    once; the total of mu and of the mass in flight is then the number of nodes. Shares of messages that do
    not arrive go back to their sender, without delay.

    literal: the step is taken on u, so that z moves by lr / mu. With few neighbours mu falls to 0.01, which
    makes the rate a hundred times larger: use it with clipping.

    Differs from the paper: whole local epochs per exchange, as in the papers that use it as a baseline; the
    default step is on z, as in the authors' code; delays other than 0 and 1 are left out. With tau = 1 a node
    to which nothing is sent keeps its mass in flight for as long as it is alone, if it runs as a real peer;
    where it shares a process with others, as in the simulator, the mass lands in the next round.
    """

    tau: int = 0  # rounds between sending and adding
    literal: bool = False

    facts = Facts(
        paper="Assran et al. 2019",
        measured="after_mixing",
        communication="one model and one number to each out-neighbour",
        personal=False,
        directed=True,
        free_running=True,
    )
    presets: ClassVar[Presets] = {"dfedpgp": DFEDPGP_TRAINING}

    def __post_init__(self) -> None:
        if self.tau not in (0, 1):
            raise ConfigError(f"tau must be 0 or 1, not {self.tau}")

    def init(self, node: Node) -> PushState:
        z = node.initial()
        mass = torch.ones(node.rows, dtype=torch.float64)
        in_flight = map_params(torch.zeros_like, z) if self.tau else {}
        return PushState(z, mass, in_flight, torch.zeros_like(mass))

    def round(self, state: PushState, node: Node) -> Round[PushState]:
        z = node.train(state.params, **step_on(self.literal, state.mass))
        node.measure(after_local=z)
        flying: Shares = {"values": state.in_flight, "mass": {"mu": state.mass_in_flight}}
        pushed = yield from push(z, state.mass, node, flying if self.tau else None)
        received, waiting, waiting_mass = pushed.received, state.in_flight, state.mass_in_flight
        if self.tau:
            received, waiting, waiting_mass = _delayed(_after_leaving(state, node), pushed.received)
        z, mass = merge(z, pushed.stays, pushed.returned, received)
        check_mass(state.mass, mass, node)
        node.record(mass=mass, mass_in_flight=waiting_mass)
        return PushState(z, mass, waiting, waiting_mass)

    def personal(self, state: PushState) -> Params:
        return state.params

    def mass(self, state: PushState) -> Tensor:
        return state.mass + state.mass_in_flight


def _after_leaving(state: PushState, node: Node) -> PushState:
    """Nothing is in flight any more where a node has given it away, because it leaves."""
    gone = leaves(node) & (node.graph.out_degree[node.ids] > 0)
    if not bool(gone.any()):
        return state
    flying = {name: u.where(per_row(~gone, u).to(u.device), 0.0) for name, u in state.in_flight.items()}
    return replace(state, in_flight=flying, mass_in_flight=state.mass_in_flight.where(~gone, 0.0))


def _delayed(state: PushState, received: Shares) -> tuple[Shares, Params, Tensor]:
    """What arrived in the last round, and what must wait now; a name that is not sent never flies.

    Where nothing says which names are sent, what is in flight waits for another round: landing a part of it
    would tear values from their mass.
    """
    if not received:
        return {}, state.in_flight, state.mass_in_flight
    sent = received["values"]
    landed = {
        "values": {name: state.in_flight[name] for name in sent},
        "mass": {"mu": state.mass_in_flight},
    }
    return landed, {**state.in_flight, **sent}, received["mass"]["mu"]
