"""Local training without any exchange: the baseline that every personalised result is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.algorithms.parts.best_model import Best
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING, PFEDKD_WCL_TRAINING, PPDL_TRAINING
from coterie.protocol import Algorithm, Facts, Node, Params, Presets, Round


@dataclass(frozen=True)
class LocalState:
    """The model, and the best one so far by validation loss: without tensors unless it is asked for."""

    params: Params
    best: Best


@dataclass(frozen=True)
class Local(Algorithm[LocalState]):
    """Each node trains on its own data and never talks to anyone.

        theta_i <- theta_i - lr * grad F_i(theta_i)        every node, every round

    Its local steps are what training.work = "equal" gives to every method. With "own", methods that count
    for themselves may train longer, and those that sample some clients per round train less.
    Both points of a round show the same model: there is no mixing. With `best` it is the one with the lowest
    loss so far on the node's validation data, as PPDL and its other baselines report it.

    Differs from the paper: it has none of its own. Every node trains in every round, also where the methods
    that it is compared with sample clients; pFedKD-WCL has no such row, and needs one.
    """

    best: bool = False

    facts = Facts(
        paper="baseline", measured="after_local", communication="none", free_running=True, architectures=True
    )
    presets: ClassVar[Presets] = {
        "ppdl": {"best": True, **PPDL_TRAINING},
        "dfedpgp": dict(DFEDPGP_TRAINING),
        "pfedkd-wcl": dict(PFEDKD_WCL_TRAINING),
    }

    def init(self, node: Node) -> LocalState:
        params = node.initial()
        none_yet = Best({}, torch.full((node.rows,), float("inf")))
        return LocalState(params, Best.first(params, node) if self.best else none_yet)

    def round(self, state: LocalState, node: Node) -> Round[LocalState]:
        params = node.train(state.params)
        return LocalState(params, state.best.seen(params, node) if self.best else state.best)
        yield  # a round is a generator even when it exchanges nothing

    def personal(self, state: LocalState) -> Params:
        return state.best.params if self.best else state.params
