"""Inboxes against a dense matrix in NumPy: one row per receiver, one column per message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import SealedError
from coterie.protocol import Bundle, Inbox, SealedInbox, Tree
from coterie.protocol import inbox as inbox_module

DTYPE = torch.float64


@dataclass(frozen=True)
class Post:
    """Messages of several parcels, and the dense arrays that say what an inbox must compute."""

    parcels: list[Bundle]
    rows: int
    receivers: np.ndarray  # (messages,)
    senders: np.ndarray
    values: np.ndarray  # (messages, 2, 3): the payload "a" of each message
    scalars: np.ndarray  # (messages,): the payload "b/c"

    def incidence(self, weights: np.ndarray | None = None) -> np.ndarray:
        """(rows, messages): who received what, with which weight."""
        dense = (np.arange(self.rows)[:, None] == self.receivers[None, :]).astype(float)
        return dense if weights is None else dense * weights


@st.composite
def posts(draw: st.DrawFn) -> Post:
    rows = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    parcels, receivers, senders, values, scalars = [], [], [], [], []
    for _ in range(draw(st.integers(0, 3))):
        sources, messages = draw(st.integers(1, 4)), draw(st.integers(0, 6))
        a, c = rng.normal(size=(sources, 2, 3)), rng.normal(size=sources)
        source, row = rng.integers(0, sources, messages), rng.integers(0, rows, messages)
        sender = rng.integers(0, 100, messages)
        payload: Tree = {"a": torch.tensor(a), "b": {"c": torch.tensor(c)}}
        parcels.append(Bundle(payload, torch.tensor(source), torch.tensor(row), torch.tensor(sender)))
        receivers.append(row)
        senders.append(sender)
        values.append(a[source])
        scalars.append(c[source])
    return Post(
        parcels,
        rows,
        np.concatenate([*receivers, np.zeros(0, int)]),
        np.concatenate([*senders, np.zeros(0, int)]),
        np.concatenate([*values, np.zeros((0, 2, 3))]),
        np.concatenate([*scalars, np.zeros(0)]),
    )


@given(posts())
def test_who_and_how_many(post: Post) -> None:
    inbox = Inbox(post.parcels, post.rows)
    assert inbox.rows.tolist() == post.receivers.tolist() == inbox.links.rows.tolist()
    assert inbox.senders.tolist() == post.senders.tolist() == inbox.links.ids.tolist()
    assert inbox.count.tolist() == post.incidence().sum(1).astype(int).tolist()
    assert inbox.returned == {}


@given(posts(), st.booleans(), st.integers(0, 2**32 - 1))
def test_sum_is_a_matrix_product(post: Post, weighted: bool, seed: int) -> None:
    weights = np.random.default_rng(seed).normal(size=len(post.receivers)) if weighted else None
    total = Inbox(post.parcels, post.rows).sum(None if weights is None else torch.tensor(weights))
    assert not isinstance(total, Tensor)
    if not post.parcels:
        assert total == {}
        return
    dense = post.incidence(weights)
    inner = total["b"]
    assert not isinstance(inner, Tensor)
    np.testing.assert_allclose(total["a"], np.einsum("rm,mij->rij", dense, post.values), atol=1e-12)
    np.testing.assert_allclose(inner["c"], dense @ post.scalars, atol=1e-12)


def squares(payload: Tree, rows: Tensor) -> Tensor:
    """Of each message: the squares of "a", plus ten times the number of the row that received it."""
    assert not isinstance(payload, Tensor)
    a = payload["a"]
    assert isinstance(a, Tensor)
    return a.square().flatten(1) + 10.0 * rows[:, None]


@pytest.mark.parametrize("chunk_bytes", [1, 120, 1 << 20])
@given(post=posts())
def test_map_and_mean_of(post: Post, chunk_bytes: int) -> None:
    """In chunks of any size: one message at a time, two, or all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inbox_module, "_MAP_CHUNK_BYTES", chunk_bytes)
        mapped = Inbox(post.parcels, post.rows).map(squares)
        mean = Inbox(post.parcels, post.rows).mean_of(squares)
    expected = post.values.reshape(-1, 6) ** 2 + 10.0 * post.receivers[:, None]
    if not len(post.receivers):
        assert len(mapped) == 0
        assert mean is None
        return
    np.testing.assert_allclose(mapped, expected)
    count = post.incidence().sum(1)
    assert mean is not None
    np.testing.assert_allclose(mean, post.incidence() @ expected / np.maximum(count, 1)[:, None], atol=1e-12)
    assert not mean[torch.tensor(count == 0)].any()


@given(posts())
def test_sealed_inbox_tells_sum_and_count_only(post: Post) -> None:
    plain, sealed = Inbox(post.parcels, post.rows), SealedInbox(post.parcels, post.rows)
    assert sealed.sealed
    assert not plain.sealed
    assert sealed.count.tolist() == plain.count.tolist()
    ours, theirs = sealed.sum(), plain.sum()
    assert not isinstance(ours, Tensor)
    assert not isinstance(theirs, Tensor)
    assert ours.keys() == theirs.keys()
    if ours:
        assert torch.equal(torch.as_tensor(ours["a"]), torch.as_tensor(theirs["a"]))
    for refused in (
        lambda: sealed.senders,
        lambda: sealed.rows,
        lambda: sealed.links,
        lambda: sealed.sum(torch.ones(len(post.receivers))),
        lambda: sealed.map(squares),
        lambda: sealed.mean_of(squares),
    ):
        with pytest.raises(SealedError, match=r"sum"):
            refused()


def test_sum_keeps_the_dtype_of_the_payload() -> None:
    payload = {"x": torch.ones(2, 3)}
    parcel = Bundle(payload, torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([7, 8]))
    total = Inbox([parcel], 2).sum(torch.tensor([0.5, 2.0], dtype=torch.float64))
    assert not isinstance(total, Tensor)
    x = total["x"]
    assert isinstance(x, Tensor)
    assert x.dtype == torch.float32
    assert x.tolist() == [[2.5] * 3, [0.0] * 3]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_sums_in_blocks_of_columns_are_the_same_bits(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    payload = {"w": torch.randn(5, 4, 11, generator=generator), "b": torch.randn(5, 2, generator=generator)}
    source, rows = torch.tensor([0, 1, 2, 3, 4, 0, 2]), torch.tensor([2, 0, 2, 2, 0, 0, 3])
    inbox = Inbox([Bundle(payload, source, rows, source)], 4)
    weights = torch.rand(7, generator=generator) if weighted else None
    whole = inbox.sum(weights)
    monkeypatch.setattr("coterie.protocol.inbox._SUM_BLOCK_BYTES", 1)
    monkeypatch.setattr("coterie.protocol.inbox._FEWEST_SUMMED", 3)
    in_blocks = inbox.sum(weights)
    for name, value in whole.items():  # type: ignore[union-attr]
        assert torch.equal(in_blocks[name], value)  # type: ignore[index]
    assert not bool(in_blocks["w"][1].any())  # type: ignore[index]
