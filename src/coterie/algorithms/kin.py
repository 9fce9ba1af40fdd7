"""Kin: Coterie's own method, composed of what the others teach. docs/kin.md derives and measures it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.parts.best_model import Guard
from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.received import completed
from coterie.algorithms.parts.selection import Acquaintance, links_of, mask_of, possible_senders
from coterie.algorithms.parts.settings import require_at_least, require_fraction
from coterie.errors import ConfigError
from coterie.protocol import (
    Algorithm,
    Exchange,
    Facts,
    Inbox,
    Links,
    Node,
    Params,
    Presets,
    Round,
    Tree,
    average,
    pull,
)
from coterie.protocol.inbox import share_per_row
from coterie.protocol.trees import fitting, map_params, map_tree, per_row, some_rows


@dataclass(frozen=True)
class KinState:
    """Where training starts, the model in use, and what each node knows of the others."""

    params: Params
    used: Params
    rounds: Tensor  # (rows,) how many rounds the model in use is a mean of; older ones count less
    known: Acquaintance  # with models
    bodies: Acquaintance  # with bodies under one's own head
    alike: Tensor  # (rows, nodes) bool: was seen, and has the same network
    guard: Guard
    looks: Tensor  # (rows, nodes) how often it has seen the model of each, in the clear
    shown: Tensor  # (rows, nodes) how often it has shown its own to each


@dataclass(frozen=True)
class Kin(Algorithm[KinState]):
    """Learn from the few peers whose models do best on one's own data, and look at them rarely.

        theta_i <- local training                                                        theta_i = (u_i, v_i)
        whom     G_i <- the M reachable nodes with the least  l_ij - c s_i sqrt(ln N_i / n_ij)
        private  of G_i, those seen lately and found good (n_ij, w_ij >= 1/2) send their sum, sealed; the
                 others send their models, each to i at most `shows` times
        how      on i's training data:  l_j = loss of theta_j = (u_j, v_j), which joins l_ij
                                        m_j = loss of (u_j, v_i), the body under i's own head, joins m_ij
                 heads:   w_ij = exp(-kappa (l_ij - b) / b),  0 if the untrained model does better
                 bodies:  w_ij = exp(-kappa (m_ij - b) / b)                   b = the least l_ij, or m_ij
                 theta- = sum_j w_ij theta_j / sum_j w_ij     over G_i and i, w_ii = 1, body and head apart;
                 within a sum all weigh the same
        what     training goes on from theta-;  i uses a running mean over rounds of (u-, v_i): the mixed
                 body with its own head
        guarded  with validation data: the best of (u-, v_i), theta-, (theta- + theta_i) / 2 and theta_i by
                 a running mean of their losses; another takes over if it is better by the margin

    l_ij and n_ij are a mean of the losses seen and their number, in which a look counts memory^age. N_i is
    the sum of n_ij, s_i the standard deviation of l_ij. Whoever was never seen comes first. The bound is that
    of discounted UCB (Garivier and Moulines 2011), in the units of the losses themselves. In the running
    mean of the model in use, a round counts smooth^age.

    private = "always": nobody shows a model. The mean of a sealed sum is looked at in its members' place, and
    its losses are those of each of them.

    Differs from the paper: there is none. What is not in it, because it did not pay, is in docs/kin.md.
    """

    peers: int = 4  # M
    kappa: float = 3.0  # how quickly weights fall with the loss
    explore: float = 0.3  # c
    memory: float = 0.9
    smooth: float = 0.8  # 0: the model in use is that of the last round
    head: Literal["own", "mixed"] = "own"  # of the model in use
    apart: bool = True  # bodies are judged under one's own head; False: body and head get the weight of both
    refuse: bool = True  # models that do worse than the untrained one
    private: Literal["never", "known", "always"] = "known"  # whose models are sealed
    shows: int | None = None  # how often a peer shows its model in the clear to one other; None: any number
    margin: float = 0.02  # of the guard

    facts = Facts(
        paper="Coterie's own (docs/kin.md)",
        measured="after_mixing",
        communication="one model from each of M peers, most of them in a sealed sum",
        architectures=True,
        free_running=True,
        partial=True,
    )
    presets: ClassVar[Presets] = {}

    def __post_init__(self) -> None:
        require_at_least(1, self, "peers")
        require_at_least(0, self, "kappa", "explore", "margin", "shows")
        require_fraction(self, "memory")
        if not 0 <= self.smooth <= 1:
            raise ConfigError(f"smooth must be from 0 to 1, not {self.smooth}")
        if self.private == "always" and self.peers < 2:
            raise ConfigError("with private 'always', peers must be 2 or more: a sum of one model is a model")

    def takes_architectures(self) -> bool:
        return self.private != "always"  # whoever sees only sums cannot know whose networks they are of

    def needs_step(self) -> bool:
        return self.private != "never"  # a sealed sum has its members in the same round

    def init(self, node: Node) -> KinState:
        params, nobody = node.initial(), torch.zeros(node.rows, node.graph.nodes)
        strangers, never = Acquaintance(nobody, nobody), nobody.long()
        guard, none_yet = Guard.none(node.rows, 4), torch.zeros(node.rows)
        return KinState(params, params, none_yet, strangers, strangers, nobody > 0, guard, never, never)

    def round(self, state: KinState, node: Node) -> Round[KinState]:
        trained = node.train(state.params)
        node.measure(after_local=trained)
        worst = self.worst(node)
        group, sealed = self.whom(state, node, worst)
        clear, shown = yield from self.shown(trained, links_of(group & ~sealed), state.shown)
        closed = yield from pull(trained, links_of(group & sealed), sealed=True, most=self.peers)
        known, bodies, alike = self.look(state, trained, clear, closed, sealed, node)
        heads = known.weights(self.kappa, worst)
        parts = {node.head: heads, node.body: bodies.weights(self.kappa) if self.apart else heads}
        mixed = dict(trained)
        for names, weights in parts.items():
            mixed |= self.mixed(pick(trained, names), clear, closed, weights, sealed)
        guard, now, start = self.guarded(state.guard, trained, mixed, node)
        rounds = self.smooth * state.rounds + 1
        used = map_params(lambda old, new: old + (new - old) / per_row(rounds, new).to(new), state.used, now)
        node.measure(after_mixing=used)
        looks = state.looks.index_put((clear.rows, clear.senders), torch.tensor(1), accumulate=True)
        if node.evaluating:
            node.record(group=group.float(), seen_in_clear=looks.sum(1), guard=guard.choice)
        return KinState(start, used, rounds, known, bodies, alike, guard, looks, shown)

    def personal(self, state: KinState) -> Params:
        return state.used

    def collaboration(self, state: KinState) -> Tensor:
        return state.known.weights(self.kappa)

    def seen_in_clear(self, state: KinState) -> Tensor:
        return state.looks.sum(1)

    def whom(self, state: KinState, node: Node, worst: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, nodes) bool, twice: whom each row asks, and those of them whose sum is enough.

        In a random order where nothing tells two apart. The sum of few would hide too little.
        """
        hidden = torch.zeros_like(state.alike) if self.shows is None else state.looks >= self.shows
        if self.private == "always":
            friends, hidden = torch.ones_like(state.alike), torch.ones_like(state.alike)
        else:
            good = state.known.weights(self.kappa, worst) >= 0.5
            lately = (state.known.number >= 0.5) | hidden  # who shows itself no more is remembered
            friends = state.alike & good & lately & (self.private == "known")
        reachable = mask_of(possible_senders(node), state.alike) & (friends | ~hidden)
        bound = state.known.lower_bound(self.explore).masked_fill(~reachable, torch.inf)
        shuffled = node.rng("ties").bits(bound.shape[1]).argsort(1)
        order = shuffled.gather(1, bound.gather(1, shuffled).argsort(stable=True))[:, : self.peers]
        group = torch.zeros_like(reachable).scatter(1, order, True) & reachable
        sealed = group & friends
        sealed &= sealed.sum(1, keepdim=True) >= node.smallest_group
        return group & (sealed | ~hidden), sealed

    def shown(
        self, mine: Params, wanted: Links, shown: Tensor
    ) -> Generator[Exchange, Inbox, tuple[Inbox, Tensor]]:
        """`pull`, but nobody is shown a model more often than `shows` says. Honest peers do not ask."""
        asked = (yield Exchange({}, to=wanted)).links
        if self.shows is not None:
            asked = asked.where(shown[asked.rows, asked.ids] < self.shows)
        answers = yield Exchange(mine, to=asked, expect=wanted, answers=True)
        return answers, shown.index_put((asked.rows, asked.ids), torch.tensor(1), accumulate=True)

    def look(
        self, state: KinState, mine: Params, clear: Inbox, closed: Inbox, sealed: Tensor, node: Node
    ) -> tuple[Acquaintance, Acquaintance, Tensor]:
        """What is known after this round of models and of bodies, and who has the same network."""

        def judge(peers: Tree, rows: Tensor) -> Tensor:
            model = completed(peers, mine, rows, node)
            same = fitting(model, mine).keys() == model.keys()
            own_head = {name: some_rows(mine[name], rows) for name in node.head}
            bodily = {**model, **fitting(own_head, model)}
            losses = [node.evaluate(one, "train", rows=rows).loss for one in (model, bodily)]
            return torch.stack((*losses, torch.full_like(losses[0], float(same))), 1)

        if self.private == "always":
            links, found = _each_as_their_mean(closed, sealed, judge)
        else:
            links, found = clear.links, clear.map(judge).reshape(-1, 3).float()
        known = state.known.heard(links, found[:, 0], self.memory)
        bodies = state.bodies.heard(links, found[:, 1], self.memory)
        return known, bodies, state.alike.index_put((links.rows, links.ids), found[:, 2] > 0)

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


def _each_as_their_mean(
    closed: Inbox, members: Tensor, judge: Callable[[Tree, Tensor], Tensor]
) -> tuple[Links, Tensor]:
    """The members of the sums that arrived, and for each what is found of the mean of its sum."""
    rows = closed.count.nonzero().flatten()
    links = links_of(members & (closed.count > 0)[:, None])
    if not len(rows):
        return links, torch.empty(0, 3)

    def mean(total: Tensor) -> Tensor:
        total = some_rows(total, rows)
        return total / per_row(closed.count[rows], total).to(total)

    place = torch.zeros_like(closed.count).index_put((rows,), torch.arange(len(rows)))
    return links, judge(map_tree(mean, closed.sum()), rows).float()[place[links.rows]]
