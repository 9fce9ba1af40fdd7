"""What a node offers can be read with `help(coterie.Node)`, and the nodes that learn offer all of it."""

from __future__ import annotations

import pydoc
from pathlib import Path

import coterie
from coterie.algorithms.d_psgd import DPSGD
from coterie.testing import MemoryPeers

OFFERED = [name for name in vars(coterie.Node) if not name.startswith("_")]


def test_help_of_a_node_tells_all_it_offers() -> None:
    text = pydoc.plain(pydoc.render_doc(coterie.Node))
    assert not coterie.Node.__annotations__  # help shows no words about a bare annotation
    assert {"ids", "rows", "graph", "train", "predict", "measure", "rng", "record"} <= set(OFFERED)
    for name in OFFERED:
        told = vars(coterie.Node)[name].__doc__
        assert told, name
        assert told.partition("\n")[0] in text, name


def test_a_node_that_learns_offers_what_help_tells(tmp_path: Path) -> None:
    node = MemoryPeers(DPSGD(), tmp_path, peers=2).node(0)
    assert [name for name in OFFERED if not hasattr(node, name)] == []
