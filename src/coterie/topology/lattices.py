"""Graphs without randomness: ring, grid, torus, full and star."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from coterie.errors import TopologyError
from coterie.topology.graphs import GraphKind, LinkEnds, both_ways, check_size


@dataclass(frozen=True)
class Ring(GraphKind):
    """Each peer has its two neighbours on a circle."""

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        here = torch.arange(peers)
        return both_ways(here, (here + 1) % peers)


@dataclass(frozen=True)
class Full(GraphKind):
    """Everyone is everyone's neighbour."""

    def check(self, peers: int) -> None:
        check_size(f"full with {peers} peers", peers * (peers - 1))

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        pair = torch.arange(peers * peers)
        return pair % peers, pair // peers


@dataclass(frozen=True)
class Star(GraphKind):
    """A hub without data, one more node than there are peers, exchanges with every peer."""

    def has_hub(self) -> bool:
        return True

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        return both_ways(torch.arange(peers), torch.full((peers,), peers))


@dataclass(frozen=True)
class Grid(GraphKind):
    """Rows and columns without wrap-around; as near to a square as the number of peers allows."""

    rows: int = 0
    cols: int = 0

    def check(self, peers: int) -> None:
        _rows_and_cols("grid", self.rows, self.cols, peers)

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        rows, cols = _rows_and_cols("grid", self.rows, self.cols, peers)
        place = torch.arange(peers).view(rows, cols)
        right = place[:, :-1].flatten(), place[:, 1:].flatten()
        down = place[:-1].flatten(), place[1:].flatten()
        return both_ways(torch.cat((right[0], down[0])), torch.cat((right[1], down[1])))


@dataclass(frozen=True)
class Torus(GraphKind):
    """A grid whose opposite borders touch, so that everyone has four neighbours."""

    rows: int = 0
    cols: int = 0

    def check(self, peers: int) -> None:
        _rows_and_cols("torus", self.rows, self.cols, peers)

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        rows, cols = _rows_and_cols("torus", self.rows, self.cols, peers)
        place = torch.arange(peers).view(rows, cols)
        right, down = place.roll(-1, dims=1).flatten(), place.roll(-1, dims=0).flatten()
        return both_ways(torch.cat((place.flatten(), place.flatten())), torch.cat((right, down)))


def _rows_and_cols(name: str, rows: int, cols: int, peers: int) -> tuple[int, int]:
    """The shape that was asked for, or the most nearly square one."""
    if rows == 0 and cols == 0:
        small = _largest_divisor_to_root(peers)
        if small == 1 and peers > 1:
            advice = _sizes_that_work(name, peers)
            raise TopologyError(f"{name} with {peers} peers: a prime number makes only a line; {advice}")
        return peers // small, small
    if min(rows, cols) < 1 or rows * cols != peers:
        advice = _sizes_that_work(name, peers)
        raise TopologyError(f"{name}({rows},{cols}) does not have {peers} places, one per peer; {advice}")
    return rows, cols


def _largest_divisor_to_root(number: int) -> int:
    return next(d for d in range(math.isqrt(number), 0, -1) if number % d == 0)


def _sizes_that_work(name: str, peers: int) -> str:
    small = _largest_divisor_to_root(peers)
    if small > 1:
        return f"write {name}({peers // small},{small}), or just {name}"
    # Beside a prime number from 5 on there are two even ones; beside 1, 2 and 3 only 4 is a square.
    near = [peers - 1, peers + 1] if peers > 3 else [4]
    shapes = [f"{n} peers ({n // d}x{d})" for n in near for d in [_largest_divisor_to_root(n)]]
    return f"use {' or '.join(shapes)}, or write {name}(1,{peers}) for a line"
