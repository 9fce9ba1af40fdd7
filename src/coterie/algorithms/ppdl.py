"""PPDL: Listo Zec et al., Efficient Node Selection in Private Personalized Decentralized Learning (2025).

PPDL-var is PPDL whose q falls with time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from coterie.algorithms.parts.bandits import Bandit
from coterie.algorithms.parts.best_model import Best, require_validation
from coterie.algorithms.parts.selection import possible_senders
from coterie.algorithms.parts.settings import PPDL_TRAINING, require_at_least, require_fraction
from coterie.algorithms.parts.weighting import judged_by, weighted, weighted_mean
from coterie.errors import ConfigError
from coterie.protocol import Algorithm, Facts, Node, Params, Presets, Round, pull


@dataclass(frozen=True)
class PPDLState:
    """The model, the best one so far by validation loss, and what the bandit knows about groups."""

    params: Params
    best: Best
    bandit: Bandit


@dataclass(frozen=True)
class PPDL(Algorithm[PPDLState]):
    """Learn which group of M peers to average with, seeing only sums over groups.

        arms: all groups of M reachable nodes; r_j = reward on validation data, averaged with j
        s_lj = 1 if u = 0,  min(r_j + q/u, 1),  r_j if u = M     u: nodes that l and j share      (3)
        mu_j, phi_lj = means of r_j, s_lj over the pulls of j
        S = {j: n_j >= (t - 1) / number of arms, n_j > 0},  k_bar = argmax_S mu_j
        A = {l: min_{j in S} phi_lj >= mu_kbar} + k_bar                        competitive arms   (4)
        G <- an arm of A by Tsallis-INF: p_j = t / (L_j - x)^2,  sum_A p_j = 1
        theta_i <- sum_{j in G + i} n_j theta_j / sum_{j in G + i} n_j         a sealed sum
        L_G <- L_G + (1 - r_G) / p_G
        theta_i <- local training from theta_i

    The reward is the accuracy, or what the task has in its place, from 0 to 1. One local training phase
    precedes the first round. The model that counts is the one with the lowest
    validation loss so far. A node that reaches at most M others has one arm: all of them. When a member of
    the group does not answer, the rest is averaged and the bandit learns nothing.

    Differs from the paper: eq. 3 divides by zero at u = 0, where the bound is 1; the paper's threshold
    t/N has an undefined N, taken as the number of arms as in its source (Gupta et al. 2021); losses are
    weighted by the probability that was really played. Its code starts every node with its own weights: set
    init = "independent" for that. "Early stopping" is the model with the lowest validation loss, as in the
    code; training goes on to the last round.
    """

    peers: int = 3  # M
    q: float = 0.1  # how much better an overlapping group may be
    reward_baseline: bool = False  # subtract the accuracy before averaging, against drifting rewards

    facts = Facts(
        paper="Listo Zec et al. 2025",
        keeps_best=True,
        measured="after_local",
        communication="one sealed sum over M peers",
        sealed=True,
        validation=True,
    )
    presets: ClassVar[Presets] = {
        "paper": {"peers": 3, **PPDL_TRAINING},
        "code": {"peers": 3, **PPDL_TRAINING, "training.epochs": 1, "training.lr": 3e-4},
    }

    def __post_init__(self) -> None:
        require_at_least(1, self, "peers")
        require_at_least(0, self, "q")

    def init(self, node: Node) -> PPDLState:
        require_validation(node, "rewards groups by validation accuracy")
        params = node.train(node.initial())
        return PPDLState(params, Best.first(params, node), Bandit.fresh(node.rows, node.rounds, self.peers))

    def round(self, state: PPDLState, node: Node) -> Round[PPDLState]:
        arms = state.bandit.draw(possible_senders(node), node.rng("group"))
        node.record(group=arms.groups, competitive_arms=arms.competitive)
        mine = weighted(state.params, node.n_samples.float())
        check = judged_by(state.params)
        inbox = yield from pull(mine, arms.links, sealed=True, check=check, most=self.peers)
        mixed = weighted_mean(mine, cast(dict[str, Params], inbox.sum()), state.params)
        node.measure(after_mixing=mixed)
        reward = node.task.reward(node.evaluate(mixed, "validation"))
        if self.reward_baseline:
            reward = reward - node.task.reward(node.evaluate(state.params, "validation"))
        bandit = state.bandit.update(arms, reward, self.q_in(node.round), inbox.count == arms.size)
        trained = node.train(mixed)
        return PPDLState(trained, state.best.seen(trained, node), bandit)

    def personal(self, state: PPDLState) -> Params:
        return state.best.params

    def sealed_group(self) -> int:
        return self.peers

    def q_in(self, round: int) -> float:
        """q(t) of eq. 3."""
        return self.q


@dataclass(frozen=True)
class PPDLVar(PPDL):
    """PPDL that explores at first and exploits later.

        q(t) = (q - q_last) * q_decay^(t-1) + q_last,  q(0) = q

    Rounds 0 and 1 both use q, since the authors' code sets the value of round t after the update of
    round t. Everything else, and what differs from the paper, is as in ppdl.
    """

    q: float = 0.5
    q_last: float = 0.07
    q_decay: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.q_last <= self.q:
            raise ConfigError(f"q_last must be from 0 to q ({self.q}), not {self.q_last}")
        require_fraction(self, "q_decay")

    def q_in(self, round: int) -> float:
        return float((self.q - self.q_last) * self.q_decay ** max(round - 1, 0) + self.q_last)
