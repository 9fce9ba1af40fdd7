"""A graph that leaves peers alone: users are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.prepare import note_of_isolation


def note(topology: str, peers: int) -> str:
    return note_of_isolation(resolve({"algorithm": "d-psgd", "topology": topology, "peers": peers}))


def test_peers_that_no_one_sends_to_are_named(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("0,2\n")
    topology = f"edges({edges})"
    assert note(topology, 5) == (
        f"note: nobody sends to peers 1, 3, 4 in topology {topology!r} of seed 0: they learn alone"
    )
    assert "nobody sends to peer 1 in" in note(topology, 3)
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more" in note("erdos-renyi(0)", 100)


@pytest.mark.parametrize(("topology", "peers"), [("ring", 4), ("full", 1), ("star", 3), ("exponential", 4)])
def test_nothing_is_said_where_everyone_hears_of_others(topology: str, peers: int) -> None:
    assert note(topology, peers) == ""
