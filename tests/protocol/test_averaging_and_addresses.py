"""Averages, pulls, links, the hub's addresses and trees."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.protocol import (
    Bundle,
    Exchange,
    Inbox,
    Links,
    Params,
    average,
    from_hub,
    pull,
    sample_clients,
    to_hub,
)
from coterie.protocol.trees import leaves, map_tree, per_row, row_bytes, take, where_rows
from coterie.randomness import Stream, shared_stream
from coterie.topology import Graph, make, metropolis


def inbox_over(graph: Graph, payload: Params) -> Inbox:
    """What all rows receive when everyone sends over all links."""
    return Inbox([Bundle(payload, graph.senders, graph.receivers, graph.senders)], graph.nodes)


def models(rows: int, seed: int = 0) -> Params:
    rng = np.random.default_rng(seed)
    return {"w": torch.tensor(rng.normal(size=(rows, 2, 3))), "b": torch.tensor(rng.normal(size=(rows, 3)))}


@given(st.integers(3, 9), st.integers(0, 1000))
def test_average_is_the_mixing_matrix(peers: int, seed: int) -> None:
    graph = make("erdos-renyi(0.4)", peers=peers, seed=seed).graph(0)
    mine = models(peers, seed)
    inbox = inbox_over(graph, mine)
    uniform = graph.adjacency().double().numpy() + np.eye(peers)
    uniform /= uniform.sum(1, keepdims=True)
    degree = graph.adjacency().sum(1).numpy()
    hastings = graph.adjacency().double().numpy() / (1 + np.maximum(degree[:, None], degree[None, :]))
    hastings += np.diag(1 - hastings.sum(1))
    weights = metropolis(graph, inbox.senders, inbox.rows)
    for mixed, dense in ((average(mine, inbox), uniform), (average(mine, inbox, weights), hastings)):
        for name, value in mine.items():
            expected = np.einsum("ij,j...->i...", dense, value.numpy())
            np.testing.assert_allclose(mixed[name], expected, atol=1e-6)


@given(st.integers(2, 8), st.integers(0, 100), st.booleans())
def test_equal_models_are_a_fixed_point(peers: int, seed: int, weighted: bool) -> None:
    graph = make("erdos-renyi(0.5)", peers=peers, seed=seed).graph(0)
    mine = {name: value[:1].repeat(peers, *[1] * (value.dim() - 1)) for name, value in models(1).items()}
    inbox = inbox_over(graph, mine)
    weights = metropolis(graph, inbox.senders, inbox.rows) if weighted else None
    mixed = average(mine, inbox, weights)
    for name, value in mine.items():
        torch.testing.assert_close(mixed[name], value, rtol=1e-7, atol=1e-7)


def test_average_keeps_names_that_were_not_sent_and_what_it_was_given() -> None:
    mine = models(3)
    before = {name: value.clone() for name, value in mine.items()}
    graph = make("ring", peers=3, seed=0).graph(0)
    mixed = average(mine, inbox_over(graph, {"w": mine["w"]}))
    assert mixed["b"] is mine["b"]
    torch.testing.assert_close(mixed["w"], mine["w"].mean(0).expand(3, 2, 3))
    for name, value in before.items():
        assert torch.equal(mine[name], value)


def test_missing_messages_count_as_oneself_when_there_are_weights() -> None:
    mine = {"w": torch.tensor([[1.0], [5.0]])}
    parcel = Bundle(mine, torch.tensor([1]), torch.tensor([0]), torch.tensor([1]))
    mixed = average(mine, Inbox([parcel], 2), torch.tensor([0.25]))
    assert mixed["w"].tolist() == [[0.25 * 5 + 0.75 * 1], [5.0]]


def test_average_without_any_message_is_ones_own_model() -> None:
    mine = models(2)
    for inbox in (Inbox([], 2), inbox_over(Graph.from_links(2, torch.empty(0), torch.empty(0)), mine)):
        mixed = average(mine, inbox)
        assert all(torch.equal(mixed[name], mine[name]) for name in mine)


def test_pull_asks_then_answers_those_who_asked() -> None:
    payload, wanted = models(2), Links(torch.tensor([0]), torch.tensor([7]))
    protocol = pull(payload, wanted, sealed=True)
    question = next(protocol)
    assert question.to is wanted
    assert row_bytes(question.payload) == 0
    assert not question.sealed
    # Node 9 asked our row 1, so row 1's payload must go to node 9.
    asked = Inbox([Bundle({}, torch.tensor([0]), torch.tensor([1]), torch.tensor([9]))], 2)
    answer = protocol.send(asked)
    assert answer.to is not None
    assert (answer.to.rows.tolist(), answer.to.ids.tolist()) == ([1], [9])
    assert answer.payload is payload
    assert answer.sealed
    assert answer.expect is wanted
    answers = Inbox([], 2)
    with pytest.raises(StopIteration) as stop:
        protocol.send(answers)
    assert stop.value.value is answers


def test_links_and_exchange() -> None:
    assert len(Links(torch.tensor([0, 1]), torch.tensor([3, 3]))) == 2
    assert Exchange() == Exchange({}, to=None, sealed=False, expect=None, counted=True)


@dataclass
class Rows:
    """As much of a Node as addresses need: `peers` clients and a hub, of which this process hosts `ids`."""

    ids: Tensor
    peers: int = 6
    round: int = 0
    graph: Graph = field(init=False)

    def __post_init__(self) -> None:
        self.hub = self.peers
        self.is_hub = self.ids == self.hub
        self.graph = make("star", peers=self.peers, seed=0).graph(0)

    def shared_rng(self, purpose: str) -> Stream:
        return shared_stream(4, purpose, self.round)


def addresses(links: Links | None) -> tuple[list[int], list[int]]:
    assert links is not None
    return links.rows.tolist(), links.ids.tolist()


def test_hub_addresses() -> None:
    clients, sending = torch.tensor([1, 4]), torch.tensor([True, False, True])
    with_hub, without = Rows(torch.tensor([2, 4, 6])), Rows(torch.tensor([0, 1, 3]))
    down = from_hub({}, with_hub, clients)  # type: ignore[arg-type]
    assert addresses(down.to) == ([2, 2], [1, 4])
    assert addresses(down.expect) == ([1], [6]), "only client 4 is here to hear the hub"
    down = from_hub({}, without, clients)  # type: ignore[arg-type]
    assert (addresses(down.to), addresses(down.expect)) == (([], []), ([1], [6]))
    up = to_hub({}, with_hub, sending, clients)  # type: ignore[arg-type]
    assert addresses(up.to) == ([0], [6]), "the hub does not send to itself"
    assert addresses(up.expect) == ([2, 2], [1, 4]), "the hub waits for this round's clients"
    up = to_hub({}, without, sending, clients)  # type: ignore[arg-type]
    assert (addresses(up.to), addresses(up.expect)) == (([0, 2], [6, 6]), ([], []))


@pytest.mark.parametrize(("participation", "count"), [(1.0, 6), (0.5, 3), (0.01, 1)])
def test_every_shard_samples_the_same_clients(participation: float, count: int) -> None:
    drawn = set()
    for number in range(20):
        shards = [Rows(torch.tensor(ids), round=number) for ids in ([0], [1, 2, 6], list(range(7)))]
        samples = [sample_clients(shard, participation).tolist() for shard in shards]  # type: ignore[arg-type]
        assert samples[0] == samples[1] == samples[2] == sorted(set(samples[0]))
        assert len(samples[0]) == count
        assert max(samples[0]) < 6, "the hub is not a client"
        drawn.add(tuple(samples[0]))
    assert len(drawn) > 1 or count == 6


def test_trees() -> None:
    tree = {"model": {"w": torch.ones(3, 2), "b": torch.zeros(3)}, "n": torch.ones(3, dtype=torch.long)}
    assert [name for name, _ in leaves(tree)] == ["model/w", "model/b", "n"]
    assert row_bytes(tree) == 2 * 4 + 4 + 8
    doubled = dict(leaves(map_tree(torch.add, tree, tree)))
    assert doubled["model/w"].tolist() == [[2.0, 2.0]] * 3
    assert dict(leaves(take(tree, torch.tensor([2, 2]))))["model/w"].shape == (2, 2)
    chosen = where_rows(torch.tensor([True, False]), {"w": torch.ones(2, 2)}, {"w": torch.zeros(2, 2)})
    assert chosen["w"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert per_row(torch.ones(3), torch.ones(3, 4, 5)).shape == (3, 1, 1)
