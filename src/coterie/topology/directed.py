"""Directed graphs for push-sum: random out-neighbours (DFedPGP) and the exponential graph (SGP)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import TopologyError
from coterie.randomness import stream
from coterie.topology.graphs import GraphKind, LinkEnds, check_size


@dataclass(frozen=True)
class Directed(GraphKind):
    """Each round every peer draws k out-neighbours, uniformly and without replacement.

    A peer's draw depends on (seed, round, peer) only. The reference code of this family seeds by
    round + peer, which gives peer 5 of round 3 and peer 4 of round 4 the same neighbours.
    """

    k: int

    def is_directed(self) -> bool:
        return True

    def varies(self) -> bool:
        return True

    def check(self, peers: int) -> None:
        if not 1 <= self.k < peers:
            raise TopologyError(
                f"directed({self.k}): with {peers} peers each has {peers - 1} others to send to; "
                f"k must be from 1 to {peers - 1}"
            )
        check_size(f"directed({self.k}) with {peers} peers", peers * self.k)

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        here = torch.arange(peers)
        others = stream(seed, "directed", phase, here).sample(self.k, peers - 1)  # (peers, k)
        others = others + (others >= here[:, None])  # number the others without oneself
        return here.repeat_interleave(self.k), others.flatten()


@dataclass(frozen=True)
class Exponential(GraphKind):
    """SGP's graph: peer i sends to i + 1, i + 2, i + 4, ...; `exponential(one)`: to one of them per round.

    In- and out-degrees are equal, so push-sum weights stay 1.
    """

    form: str = "all"

    def is_directed(self) -> bool:
        return True

    def varies(self) -> bool:
        return self.form == "one"

    def phase(self, round: int, peers: int) -> int:
        return round % max(len(_powers(peers)), 1) if self.varies() else 0

    def check(self, peers: int) -> None:
        if self.form not in ("all", "one"):
            raise TopologyError(
                f"exponential({self.form}) does not exist; use exponential or exponential(one)"
            )

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        hops = _powers(peers)
        if self.form == "one":
            hops = hops[phase : phase + 1]
        here = torch.arange(peers)
        receivers = (here[:, None] + hops) % peers  # (peers, hops)
        return here.repeat_interleave(len(hops)), receivers.flatten()


def _powers(peers: int) -> Tensor:
    """1, 2, 4, ... below the number of peers."""
    return 2 ** torch.arange((peers - 1).bit_length())
