"""Local training without any exchange: the baseline that every personalised result is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.protocol import Facts, ModelAlgorithm, ModelState, Node, Round


@dataclass(frozen=True)
class Local(ModelAlgorithm):
    """Each node trains on its own data and never talks to anyone.

        theta_i <- theta_i - lr * grad F_i(theta_i)        every node, every round

    Local takes as many local steps per round as the other methods do. In comparisons with methods
    that sample some clients per round, Local therefore trains more, since it trains everywhere.
    Both points of a round show the same model: there is no mixing.
    """

    facts = Facts(
        paper="baseline", measured="after_local", communication="none", free_running=True, architectures=True
    )

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        return ModelState(node.train(state.params))
        yield  # a round is a generator even when it exchanges nothing
