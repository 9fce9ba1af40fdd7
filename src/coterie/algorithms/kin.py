"""Kin: Coterie's own method, composed of what the others teach. docs/kin.md derives and measures it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.parts.best_model import Guard
from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.received import completed
from coterie.algorithms.parts.selection import Acquaintance, links_of, mask_of, possible_senders
from coterie.algorithms.parts.settings import require_at_least, require_fraction
from coterie.protocol import Algorithm, Facts, Inbox, Node, Params, Presets, Round, Tree, average, pull
from coterie.protocol.inbox import share_per_row
from coterie.protocol.trees import fitting, map_params, per_row


@dataclass(frozen=True)
class KinState:
    """Where training starts, the model in use, and what each node knows of the others."""

    params: Params
    used: Params
    known: Acquaintance
    alike: Tensor  # (rows, nodes) bool: was seen, and has the same network
    guard: Guard
    seen_in_clear: Tensor  # (rows,) models of others that the node has seen one by one


@dataclass(frozen=True)
class Kin(Algorithm[KinState]):
    """Learn from the few peers whose models do best on one's own data, and look at them rarely.

        theta_i <- local training                                                        theta_i = (u_i, v_i)
        whom     G_i <- the M reachable nodes with the least  l_ij - c s_i sqrt(ln N_i / n_ij)
        private  of G_i, those seen lately and found good (n_ij, w_ij >= 1/2) send their sum, sealed; the
                 others send their models
        how      l_j = loss of theta_j on i's training data, which joins l_ij;  b = the least l_ij
                 w_ij = exp(-kappa (l_ij - b) / b),  0 if the untrained model does better;  w_ii = 1
                 theta- = sum_j w_ij theta_j / sum_j w_ij      over G_i and i; within a sum all weigh the same
        what     i uses (u-, v_i): the mixed body with its own head;  training goes on from theta-
        guarded  with validation data: the best of (u-, v_i), theta-, (theta- + theta_i) / 2 and theta_i by
                 a running mean of their losses; another takes over if it is better by the margin

    l_ij and n_ij are a mean of the losses seen and their number, in which a look counts memory^age. N_i is
    the sum of n_ij, s_i the standard deviation of l_ij. Whoever was never seen comes first. The bound is that
    of discounted UCB (Garivier and Moulines 2011), in the units of the losses themselves.

    Differs from the paper: there is none. What is not in it, because it did not pay, is in docs/kin.md.
    """

    peers: int = 4  # M
    kappa: float = 3.0  # how quickly weights fall with the loss
    explore: float = 0.3  # c
    memory: float = 0.9
    head: Literal["own", "mixed"] = "own"  # of the model in use
    refuse: bool = True  # models that do worse than the untrained one
    private: bool = True  # sealed sums where possible
    margin: float = 0.02  # of the guard

    facts = Facts(
        paper="Coterie's own (docs/kin.md)",
        measured="after_mixing",
        communication="one model from each of M peers, most of them in a sealed sum",
        architectures=True,
        partial=True,
    )
    presets: ClassVar[Presets] = {}

    def __post_init__(self) -> None:
        require_at_least(1, self, "peers")
        require_at_least(0, self, "kappa", "explore", "margin")
        require_fraction(self, "memory")

    def init(self, node: Node) -> KinState:
        params, nobody = node.initial(), torch.zeros(node.rows, node.graph.nodes)
        strangers = Acquaintance(nobody, nobody)
        none_yet = torch.zeros(node.rows, dtype=torch.long)
        return KinState(params, params, strangers, nobody > 0, Guard.none(node.rows, 4), none_yet)

    def round(self, state: KinState, node: Node) -> Round[KinState]:
        trained = node.train(state.params)
        node.measure(after_local=trained)
        group, worst = self.whom(state, node), self.worst(node)
        sealed = self.trusted(state, group, worst)
        clear = yield from pull(trained, links_of(group & ~sealed))
        closed = yield from pull(trained, links_of(group & sealed), sealed=True)
        loss, alike = self.look(trained, clear, node)
        known = state.known.heard(clear.links, loss, self.memory)
        mixed = self.mixed(trained, clear, closed, known.weights(self.kappa, worst), sealed)
        guard, used, start = self.guarded(state.guard, trained, mixed, node)
        node.measure(after_mixing=used)
        seen = state.seen_in_clear + clear.count
        if node.evaluating:
            node.record(group=group.float(), seen_in_clear=seen, guard=guard.choice)
        here = state.alike.index_put((clear.rows, clear.senders), alike)
        return KinState(start, used, known, here, guard, seen)

    def personal(self, state: KinState) -> Params:
        return state.used

    def collaboration(self, state: KinState) -> Tensor:
        return state.known.weights(self.kappa)

    def whom(self, state: KinState, node: Node) -> Tensor:
        """(rows, nodes) bool: whom each row asks; in a random order where nothing tells two apart."""
        reachable = mask_of(possible_senders(node), state.alike)
        bound = state.known.lower_bound(self.explore).masked_fill(~reachable, torch.inf)
        shuffled = node.rng("ties").bits(bound.shape[1]).argsort(1)
        order = shuffled.gather(1, bound.gather(1, shuffled).argsort(stable=True))[:, : self.peers]
        return torch.zeros_like(reachable).scatter(1, order, True) & reachable

    def trusted(self, state: KinState, group: Tensor, worst: Tensor) -> Tensor:
        """(rows, nodes) bool: those of the group whose sum is enough. The sum of one would be a model."""
        good = state.known.weights(self.kappa, worst) >= 0.5
        lately = group & state.alike & good & (state.known.number >= 0.5) & self.private
        return lately & (lately.sum(1, keepdim=True) >= 2)

    def look(self, mine: Params, clear: Inbox, node: Node) -> tuple[Tensor, Tensor]:
        """(messages,) loss on the receiver's training data, and whether it has the receiver's network."""

        def judge(peers: Tree, rows: Tensor) -> Tensor:
            model = completed(peers, mine, rows, node)
            shapes = {name: value.shape[1:] for name, value in mine.items()}
            alike = {name: value.shape[1:] for name, value in model.items()} == shapes
            loss = node.evaluate(model, "train", rows=rows).loss
            return torch.stack((loss, torch.full_like(loss, float(alike))), 1)

        found = clear.map(judge).reshape(-1, 2).float()
        return found[:, 0], found[:, 1] > 0

    def worst(self, node: Node) -> Tensor:
        """(rows,) the loss from which on a model is refused."""
        untrained = node.evaluate(node.initial(), "train").loss.float()
        return untrained if self.refuse else torch.full_like(untrained, torch.inf)

    def mixed(self, mine: Params, clear: Inbox, closed: Inbox, weights: Tensor, sealed: Tensor) -> Params:
        """theta-. weights: (rows, nodes) by what is remembered, which for those just seen is the newest."""
        theirs = weights[clear.rows, clear.senders].double()
        together = (weights * sealed).sum(1).double() * (closed.count > 0)  # of the sealed sum
        total = share_per_row(clear, theirs) + together + 1
        mixed = average(mine, clear, theirs / total[clear.rows])
        added = fitting(closed.sum(), mine)
        share, each = together / total, 1 / closed.count.clamp(min=1)

        def with_sum(name: str, value: Tensor) -> Tensor:
            if name not in added:
                return value
            mean = added[name] * per_row(each, value).to(value)
            return value + per_row(share, value).to(value) * (mean - mine[name])

        return {name: with_sum(name, value) for name, value in mixed.items()}

    def guarded(
        self, guard: Guard, trained: Params, mixed: Params, node: Node
    ) -> tuple[Guard, Params, Params]:
        """The guard, the model in use and the model to train next."""
        half = map_params(lambda a, b: (a + b) / 2, trained, mixed)
        with_head = {**mixed, **pick(trained, node.head)} if self.head == "own" else mixed
        candidates = [with_head, mixed, half, trained]
        losses = [node.evaluate(model, "validation").loss for model in candidates]
        guard = guard.seen(torch.stack(losses, 1), self.memory, self.margin)
        return guard, guard.chosen(candidates), guard.chosen([mixed, mixed, half, trained])
