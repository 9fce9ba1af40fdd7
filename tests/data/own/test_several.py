"""Own samples with several inputs, of whole numbers, and of different lengths."""

from __future__ import annotations

from collections import UserDict

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from coterie.data import Federation, from_arrays, from_peers, split
from coterie.errors import DataError

Y = np.array([0, 1, 0, 1])
TOKENS = np.arange(12).reshape(4, 3)
TABLE = np.arange(8.0).reshape(4, 2)


class Items(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def whole(x) -> Federation:
    """All four samples as one peer's training data."""
    return from_peers([{"train": (x, Y), "test": (x, Y)}])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float64, torch.float32),
        (np.float16, torch.float32),
        (np.int32, torch.int64),
        (np.uint16, torch.int64),
        (np.uint8, torch.uint8),  # images; a network gets int64 or float32
        (bool, torch.bool),
    ],
)
def test_whole_numbers_stay_whole(given, kept):
    for x in (TOKENS.astype(given), torch.from_numpy(TOKENS.astype(given))):
        if given is np.uint16 and not isinstance(x, np.ndarray):
            continue  # torch can do little with them
        source = from_arrays(x, Y, x, Y)
        assert source.x_train.dtype == kept
        assert source.x_train.tolist() == TOKENS.astype(given).tolist()
    assert from_arrays(torch.zeros(4, 2, dtype=torch.bfloat16), Y).x_train.dtype == torch.float32


def test_dicts_tuples_and_datasets_are_several_inputs():
    for x in (
        {"tokens": TOKENS, "table": TABLE},
        UserDict(tokens=TOKENS.tolist(), table=torch.from_numpy(TABLE)),
    ):
        federation = whole(x)
        assert federation.shape == {"tokens": (3,), "table": (2,)}
        assert federation.x["tokens"].tolist() == [*TOKENS.tolist(), *TOKENS.tolist()]
        assert federation.x["table"].dtype == torch.float32
    federation = whole((TOKENS, TABLE))
    assert federation.shape == ((3,), (2,))
    assert list(federation.x) == ["0", "1"]
    named = Items(*(({"a": TOKENS[i], "b": TABLE[i]}, Y[i]) for i in range(4)))
    pairs = Items(*(((TOKENS[i], torch.from_numpy(TABLE[i])), Y[i]) for i in range(4)))
    assert from_peers([named]).shape == {"a": (3,), "b": (2,)}
    assert from_peers([pairs]).shape == ((3,), (2,))


def test_a_tuple_of_samples_is_a_list_of_samples():
    """As zip(*pairs) gives it: its items are no arrays with an entry for every sample."""
    x, y = zip(*((TOKENS[i], int(Y[i])) for i in range(4)), strict=True)
    assert whole(x).x[:4].tolist() == TOKENS.tolist()
    assert y == tuple(Y)


def test_sequences_are_padded_to_the_longest_of_all_peers():
    one, other = [[1, 2], [3], [4, 5], [6]], [[7, 8, 9], [7, 8, 9], [1, 1, 1], [2, 2, 2]]
    federation = from_peers([{"train": (x, Y), "test": (x, Y)} for x in (one, other)])
    assert federation.shape == (3,)
    tokens, mask = federation.x["0"], federation.x["attention_mask"]
    assert tokens[federation.train.of(0)].tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 0], [6, 0, 0]]
    assert mask[federation.train.of(0)].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]]
    assert tokens[federation.test.of(1)].tolist() == other
    assert mask[federation.test.of(1)].tolist() == np.ones((4, 3)).tolist()


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
def test_nested_tensors_are_sequences():
    nested = torch.nested.nested_tensor([torch.ones(1 + i % 3, 2) for i in range(4)])
    assert whole(nested).x["attention_mask"][:4].sum(1).tolist() == [1, 2, 3, 1]


def test_sequences_of_vectors_and_beside_other_inputs():
    signals = [np.full((length, 2), float(length)) for length in (1, 3, 2, 3)]
    federation = whole({"signal": signals, "table": TABLE})
    assert federation.shape == {"signal": (3, 2), "table": (2,), "attention_mask": (3,)}
    assert federation.x["signal"][:, :, 0][:4].tolist() == [[1, 0, 0], [3, 3, 3], [2, 2, 0], [3, 3, 3]]
    own_mask = whole({"input_ids": [[5], [5, 5]] * 2, "attention_mask": [[1], [1, 1]] * 2})
    assert own_mask.x["attention_mask"][:2].tolist() == [[1, 0], [1, 1]]
    source = from_arrays([[1], [1, 2], [1, 2, 3], [4]], Y, [[1, 1, 1, 1]] * 4, Y)
    assert source.x_train["0"].shape == source.x_test["0"].shape == (4, 4)


@pytest.mark.parametrize("x", [{"a": TOKENS, "b": TABLE}, [[1, 2], [3], [4, 5], [6]]])
def test_samples_keep_their_inputs_when_they_are_dealt_out(x):
    many = {name: np.repeat(part, 10, 0) for name, part in x.items()} if isinstance(x, dict) else x * 10
    source = from_arrays(many, np.arange(40) % 2, test_fraction=0.5)
    federation = split(source, "iid", peers=3, seed=0, validation=0.2)
    known = {tuple(map(tuple, np.atleast_2d(row))) for row in rows(source.x_train) + rows(source.x_test)}
    for part in (federation.train, federation.validation, federation.test):
        assert {tuple(map(tuple, np.atleast_2d(row))) for row in rows(at(federation.x, part.index))} <= known
    some = federation.take(torch.tensor([2, 0]))
    for new, old in ((0, 2), (1, 0)):
        mine = at(some.x, some.train.of(new)), at(federation.x, federation.train.of(old))
        assert rows(mine[0]) == rows(mine[1])


def at(x, index):
    return {name: part[index] for name, part in x.items()}


def rows(x) -> list[list[float]]:
    """Each sample's numbers in a row."""
    return torch.cat([part.flatten(1).double() for part in x.values()], 1).tolist()


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([[1], [], [2], [3]], r"peer 0, train: x: sample 1 is an empty sequence; drop it"),
        ([[1, 2], 3, [4], [5]], "sample 1 is a single number beside sequences"),
        (
            [np.zeros((2, 3)), np.zeros((1, 4))] * 2,
            r"but for their length; .* sample 1 is \(1, 4\)",
        ),
        ([[[1], [2, 3]], [[1]]] * 2, "sample 0 must be an array, or lists of equal lengths"),
        (np.array([[1], [2, 3], [4], [5]], dtype=object), "not values of type object; .*list of arrays"),
        (TOKENS.astype(complex), "must hold numbers, not values of type complex128"),
        (np.full((4, 2), 2**63, np.uint64), "up to 9223372036854775808, beyond 9223372036854775807"),
        ({}, "x has no inputs"),
        ({"a": TOKENS, "b": TABLE[:3]}, "'b' has 3 samples, but 'a' has 4"),
        ({0: TOKENS}, "0 cannot be the name of an input"),
        ({"a b": TOKENS}, "'a b' cannot be the name"),
        ({"a": [[1], [2, 3]] * 2, "b": [[1, 2], [3]] * 2}, "'b' and 'a' have different lengths"),
        ({"a": TOKENS, "b": TABLE.astype(str)}, r"x\['b'\] must hold numbers"),
    ],
)
def test_what_cannot_be_used_is_said(x, words):
    with pytest.raises(DataError, match=words):
        whole(x)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"a": TOKENS}, {"b": TOKENS}, "peer 1, train has the inputs b, but peer 0, train has a"),
        ({"a": TOKENS}, TOKENS, "peer 1, train has the inputs a single array, but peer 0, train has a;"),
        (
            {"a": TOKENS},
            {"a": TABLE},
            r"all samples of input 'a' must have one shape; .* \(3,\), those of peer 1, train \(2,\)",
        ),
        (TOKENS, TOKENS[:, :2], "one shape.*Sequences of different lengths are padded if they come as lists"),
        ([[1], [2, 3]] * 2, np.arange(4), "samples are single numbers, where others are sequences"),
    ],
)
def test_peers_must_have_the_same_inputs(one, other, words):
    with pytest.raises(DataError, match=words):
        from_peers([{"train": (x, Y), "test": (x, Y)} for x in (one, other)])


def test_items_of_a_dataset_must_have_the_same_names():
    with pytest.raises(DataError, match=r"peer 0, train: all samples must have the same names; .*\['a'\]"):
        from_peers([Items(({"a": [1.0]}, 0), ({"b": [1.0]}, 1))])


def test_rotations_need_images():
    source = from_arrays({"a": TOKENS, "b": TABLE}, Y, {"a": TOKENS, "b": TABLE}, Y)
    with pytest.raises(DataError, match="rotations needs images"):
        split(source, "rotations(2)", peers=2, seed=0)
