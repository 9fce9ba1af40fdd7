"""Sealed inboxes: the fast sum and the sum under masks are the same bits, and nobody learns a sum of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised import quantised_sum
from torch import Tensor

from coterie.errors import ContractError, SealedError, SecureSumError
from coterie.protocol import Bundle, SealedInbox, Tree
from coterie.protocol.sealing import MaskedInbox, OneTimeInbox, QuantisedInbox
from coterie.protocol.secure_sum import PairwiseMember, agreed_encoding
from coterie.protocol.secure_sum.member import Member, OneTimeMember
from coterie.protocol.trees import leaves


@dataclasses.dataclass(frozen=True)
class Post:
    """Messages of several blocks of senders to the same rows, some of which did not arrive."""

    rows: int
    arrived: list[Bundle]
    missing: list[Bundle]

    def inbox(self, kind: type[QuantisedInbox]) -> QuantisedInbox:
        return kind(self.arrived, self.rows, missing=self.missing)


def payload(rng: np.random.Generator, rows: int) -> Tree:
    """Models whose sizes are far apart, beside numbers of samples."""
    scale = torch.from_numpy(2.0 ** rng.integers(-6, 12, rows)).float()
    return {
        "model": {
            "w": torch.from_numpy(rng.normal(size=(rows, 2, 3))).float() * scale[:, None, None],
            "b": torch.from_numpy(rng.normal(size=(rows, 2))),  # float64
        },
        "n": torch.from_numpy(rng.integers(0, 500, rows)).float(),
    }


@st.composite
def posts(draw: st.DrawFn) -> Post:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, blocks = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    loss = draw(st.sampled_from([0.0, 0.4]))
    arrived, missing = [], []
    for _ in range(blocks):
        sources = int(rng.integers(1, 5))
        content = payload(rng, sources)
        links = torch.from_numpy((rng.random((rows, sources)) < 0.7).nonzero()[0])
        source = torch.from_numpy(rng.integers(0, sources, len(links)))
        there = torch.from_numpy(rng.random(len(links)) >= loss)
        for chosen, parcels in ((there, arrived), (~there, missing)):
            parcels.append(Bundle(content, source[chosen], links[chosen], source[chosen]))
    return Post(rows, arrived, missing)


def numbers(tree: Tree) -> dict[str, Tensor]:
    return dict(leaves(tree))


def assert_same_bits(ours: Tree, theirs: Tree) -> None:
    assert numbers(ours).keys() == numbers(theirs).keys()
    for name, value in numbers(ours).items():
        assert value.dtype == numbers(theirs)[name].dtype
        assert torch.equal(value, numbers(theirs)[name]), name


def received(parcels: Sequence[Bundle], row: int) -> int:
    return sum(int((parcel.rows == row).sum()) for parcel in parcels)


@pytest.mark.parametrize("kind", [MaskedInbox, OneTimeInbox])
@settings(max_examples=25)
@given(post=posts())
def test_quantised_and_masked_sums_are_the_same_bits(kind: type[MaskedInbox], post: Post) -> None:
    quantised, masked = post.inbox(QuantisedInbox), post.inbox(kind)
    assert_same_bits(quantised.sum(), masked.sum())
    assert quantised.count.tolist() == masked.count.tolist()


@given(posts())
def test_sums_are_near_the_plain_ones_where_enough_answer(post: Post) -> None:
    quantised = post.inbox(QuantisedInbox)
    plain = SealedInbox(post.arrived, post.rows)
    total, expected = numbers(quantised.sum()), numbers(plain.sum())
    largest = max(float(value.abs().max()) for parcel in post.arrived for _, value in leaves(parcel.payload))
    for row in range(post.rows):
        arrived, lost = received(post.arrived, row), received(post.missing, row)
        opened = arrived > 1 and arrived > (arrived + lost) // 2
        assert int(quantised.count[row]) == (arrived if opened else 0)
        for name, value in total.items():
            if opened:
                bound = arrived * 2 * largest / 2**22
                torch.testing.assert_close(value[row], expected[name][row], rtol=1e-5, atol=bound)
            else:
                assert not value[row].any()


@given(posts(), st.integers(0, 2**32 - 1))
def test_order_and_blocks_of_messages_change_no_bit(post: Post, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    pieces = []
    for parcel in post.arrived:
        order = torch.randperm(len(parcel.rows), generator=rng)
        for part in order.split(2):
            pieces.append(
                Bundle(parcel.payload, parcel.source[part], parcel.rows[part], parcel.senders[part])
            )
    cut = QuantisedInbox(pieces, post.rows, missing=post.missing)
    whole = QuantisedInbox(post.arrived, post.rows, missing=post.missing)
    assert cut.count.tolist() == whole.count.tolist()
    if pieces:
        assert_same_bits(cut.sum(), whole.sum())


@pytest.mark.parametrize(("kind", "member"), [(MaskedInbox, PairwiseMember), (OneTimeInbox, OneTimeMember)])
def test_each_kind_runs_its_own_form_of_the_secure_sum(
    kind: type[MaskedInbox], member: type[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    masking = []
    original = Member.mask

    def mask(self: Member, *told: Any) -> Any:
        masking.append(type(self))
        return original(self, *told)

    monkeypatch.setattr(Member, "mask", mask)
    kind([messages([torch.ones(2)] * 3, [0, 0, 0])], 1).sum()
    assert masking == [member] * 3


def messages(values: Sequence[Tensor], rows: Sequence[int]) -> Bundle:
    source = torch.arange(len(values))
    return Bundle({"x": torch.stack(list(values))}, source, torch.tensor(rows), source)


def test_the_sum_is_that_of_the_vectors_within_the_largest_range() -> None:
    vectors = [torch.tensor([100.3, -3.0]), torch.tensor([0.25, 1e-3]), torch.tensor([2.0, 2.0])]
    total = numbers(QuantisedInbox([messages(vectors, [0, 0, 0])], 1).sum())["x"]
    expected = quantised_sum(vectors, agreed_encoding([7, -2, 1]))
    assert torch.equal(total, expected.float()[None])


@pytest.mark.parametrize("kind", [QuantisedInbox, MaskedInbox, OneTimeInbox])
def test_who_gets_nothing(kind: type[QuantisedInbox]) -> None:
    """Row 0 has one sender, row 1 two of four answers, row 2 two of three, row 3 nobody."""
    ones = [torch.ones(2)] * 5
    inbox = kind([messages(ones, [0, 1, 1, 2, 2])], 4, missing=[messages(ones[:3], [1, 1, 2])])
    assert inbox.count.tolist() == [0, 0, 2, 0]
    expected = torch.tensor([[0.0], [0.0], [2.0], [0.0]]).expand(4, 2)
    torch.testing.assert_close(numbers(inbox.sum())["x"], expected)


@pytest.mark.parametrize("kind", [QuantisedInbox, MaskedInbox, OneTimeInbox])
def test_what_cannot_be_sealed(kind: type[QuantisedInbox]) -> None:
    assert kind([], 2).sum() == {}
    whole_numbers = kind([messages([torch.ones(1, dtype=torch.long)] * 2, [0, 0])], 1)
    with pytest.raises(ContractError, match="'x' is int64"):
        whole_numbers.sum()
    diverged = kind([messages([torch.ones(1), torch.tensor([torch.nan])], [0, 0])], 1)
    with pytest.raises(SecureSumError, match="NaN"):
        diverged.sum()
    with pytest.raises(SealedError, match="weights"):
        whole_numbers.sum(torch.ones(2))
    many = kind([messages([torch.ones(1)] * 1024, [0] * 1024)], 1)
    with pytest.raises(SecureSumError, match="1 to 1023 members, not 1024; use smaller groups"):
        many.sum()
