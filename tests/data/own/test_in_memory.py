"""Users' own arrays, tensors and Datasets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from coterie.data import Source, from_arrays, from_peers, split
from coterie.errors import ConfigError, DataError


def samples(n: int, first: int = 0, classes: int = 2):
    return torch.arange(first, first + n, dtype=torch.float32).view(n, 1), torch.arange(n) % classes


class Counting(IterableDataset):
    def __iter__(self):
        return iter([(np.array([float(i)]), i % 2) for i in range(10)])


class Uneven(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.zeros(1 + i, 2 + i), 0


class Rows(Dataset):
    """Samples as views of an array, as a memory-mapped file gives them."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Endless(Dataset):
    def __getitem__(self, i):
        return torch.zeros(1), 0


class Sparse:
    """As SciPy's matrices, which NumPy takes for a single object."""

    def toarray(self): ...


def test_from_peers_takes_every_form():
    x, y = samples(10)
    federation = from_peers(
        [
            (x, y),
            (x.numpy(), y.numpy()),
            (x.tolist(), y.tolist()),
            (x, y, *samples(4, first=100)),
            TensorDataset(x, y),
            Counting(),
            {"train": (x, y), "test": TensorDataset(*samples(4, first=100))},
            {"train": TensorDataset(x, y), "validation": samples(2, first=50), "test": samples(4, first=100)},
        ],
        test_fraction=0.2,
    )
    assert federation.peers == 8
    assert federation.n_classes == 2
    held = int(federation.test.sizes[0])
    assert 0 < held < 10
    assert federation.train.sizes.tolist() == [10 - held] * 3 + [10] + [10 - held] * 2 + [10, 10]
    assert federation.test.sizes.tolist() == [held] * 3 + [4] + [held] * 2 + [4, 4]
    assert federation.validation.sizes.tolist() == [0] * 7 + [2]
    assert federation.x[federation.test.of(6), 0].tolist() == [100.0, 101.0, 102.0, 103.0]
    for peer in (1, 2, 4, 5):  # the same samples in whatever form
        assert torch.equal(federation.x[federation.test.of(peer)], federation.x[federation.test.of(0)])
    assert federation.common_test is None
    assert federation.clusters is None


def test_from_peers_holds_out_disjointly_and_repeatably():
    datasets = [samples(30, first=100 * peer) for peer in range(3)]
    federation = from_peers(datasets, test_fraction=0.2, validation=0.25, seed=1)
    assert bool((federation.train.sizes > 0).all() & (federation.validation.sizes > 0).all())
    for peer in range(3):
        parts = [
            federation.x[part.of(peer), 0]
            for part in (federation.train, federation.validation, federation.test)
        ]
        assert sorted(torch.cat(parts).tolist()) == [100.0 * peer + i for i in range(30)]
    assert torch.equal(federation.x, from_peers(datasets, test_fraction=0.2, validation=0.25, seed=1).x)
    assert not torch.equal(federation.x, from_peers(datasets, test_fraction=0.2, validation=0.25, seed=2).x)


def test_from_peers_with_a_common_test_set():
    federation = from_peers([samples(10), samples(10)], common_test=samples(3, first=500))
    assert federation.common_test is not None
    assert federation.x[federation.common_test, 0].tolist() == [500.0, 501.0, 502.0]


@pytest.mark.parametrize(
    ("datasets", "error", "message"),
    [
        ([], DataError, "at least one peer"),
        ([(np.zeros((3, 1)), np.zeros(2, dtype=int))], DataError, "3 samples but 2 labels"),
        ([(np.zeros((3, 1)), np.zeros(3))], DataError, "whole number"),
        ([(np.zeros((1, 1)), np.zeros(1, dtype=int))], DataError, "needs one of each"),
        ([(np.zeros((9, 1)), np.arange(9))], DataError, "0 training and 9 test .* equal samples stay toge"),
        ([samples(9), (np.eye(9, 2), np.zeros(9, dtype=int))], DataError, "one shape"),
        ([(np.zeros((9, 1)), ["cat"] * 9)], DataError, "one whole number per sample, not <U3"),
        ([(np.eye(9), np.full(9, -1))], DataError, "counted from 0, and one is -1"),
        ([{"trian": samples(9)}], ConfigError, "needs 'train'"),
        ([5], ConfigError, "expected"),
        ([TensorDataset(torch.zeros(3, 1))], DataError, "pairs"),
        ([([["a"], ["b"]], [0, 1])], DataError, "peer 0, train: x must hold numbers, not values of type <U1"),
        ([(torch.eye(3).to_sparse(), [0, 1, 0])], DataError, "peer 0, train: x is sparse.*to_dense"),
        ([(torch.eye(3, dtype=torch.complex64), [0, 1, 0])], DataError, "x must hold numbers.*complex64"),
        ([(3.0, [0])], DataError, "peer 0, train: x must hold one entry per sample"),
        ([(np.zeros((2, 1)), [[0], [0, 1]])], DataError, "peer 0, train: y must be .* equal lengths"),
        ([(np.eye(9), np.arange(9) + 10**12)], DataError, "1,000,000,000,009 classes .* names"),
        ([Uneven()], DataError, "peer 0, train: samples must have one shape .*sample 1 is .2, 3."),
        ([Endless()], DataError, "peer 0, train: the Dataset must yield .* no len"),
        (
            TensorDataset(*samples(9)),
            ConfigError,
            "single TensorDataset; pass a list with one Dataset per peer",
        ),
        (Counting(), ConfigError, "single Counting; pass a list with one Dataset per peer"),
        (3, ConfigError, "a list with one data set per peer, not int"),
        ((samples(9) for _ in range(3)), ConfigError, "a list with one data set per peer, not generator"),
    ],
)
def test_from_peers_says_what_is_wrong(datasets, error, message):
    with pytest.raises(error, match=message):
        from_peers(datasets)


def test_from_arrays_holds_out_by_label():
    source = from_arrays(np.arange(100.0).reshape(-1, 1), np.arange(100) % 4, test_fraction=0.2)
    assert torch.bincount(source.y_train).tolist() == [20] * 4
    assert torch.bincount(source.y_test).tolist() == [5] * 4
    assert not set(source.x_train.flatten().tolist()) & set(source.x_test.flatten().tolist())
    assert split(source, "iid", peers=5, seed=0).train.sizes.tolist() == [16] * 5


def test_from_arrays_takes_names_as_labels():
    source = from_arrays(np.zeros((4, 2)), ["cat", "ant", "cat", "bee"], np.zeros((1, 2)), ["bee"])
    assert source.class_names == ("ant", "bee", "cat")
    assert source.y_train.tolist() == [2, 0, 2, 1]
    assert source.y_test.tolist() == [1]


def test_from_arrays_says_what_is_wrong():
    x, y = np.zeros((4, 2)), np.zeros(4, dtype=int)
    with pytest.raises(ConfigError, match="both"):
        from_arrays(x, y, x_test=x)
    with pytest.raises(DataError, match="3 values for 4 samples"):
        from_arrays(x, y, columns={"who": [1, 2, 3]})
    with pytest.raises(DataError, match="4 samples but 3 labels"):
        from_arrays(x, y[:3], x, y)
    with pytest.raises(DataError, match="floating"):
        from_arrays(x, y.astype(float))
    with pytest.raises(DataError, match="labels run from 0 to 5"):
        from_arrays(x, [0, 1, 5, 1], x, y, n_classes=3)
    with pytest.raises(DataError, match="shape"):
        from_arrays(x, y, x[:, :1], y)
    with pytest.raises(ConfigError, match="fraction"):
        from_arrays(x, y, test_fraction=1.5)
    with pytest.raises(ConfigError, match=r"give \(train values, test values\)"):
        from_arrays(x, y, x, y, columns={"who": [1, 2, 3, 4]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": []}, "y is empty"),
        ({"x_test": np.zeros((0, 2)), "y_test": np.zeros(0, dtype=int)}, "y_test is empty"),
        ({"y": np.zeros((4, 1), dtype=int)}, r"y must hold one value per sample, not .* \(4, 1\)"),
        ({"y": [0, 1, 0]}, "x and y: 4 samples but 3 labels"),
        ({"y": [0, 1, None, 1]}, "y: 1 of 4 values are missing, the first is number 2"),
        ({"y": np.array(["a", 1, "b", "a"], dtype=object)}, "y: all values must be of one type"),
        ({"y": [0, 1, 0, 10**12]}, "1,000,000,000,001 classes .* names"),
        ({"n_classes": 10**12}, "1,000,000,000,000 classes"),
        ({"x": [["a", "b"]] * 4}, "x must hold numbers, not values of type <U1"),
        ({"x": [[1, 2], [], [1, 2], [1, 2]]}, "x: sample 1 is an empty sequence"),
        ({"x": Sparse()}, "x is sparse, of type Sparse; pass its .toarray()"),
        ({"columns": {"ward": ["a", None, "b", "a"]}}, "column 'ward': 1 of 4 values are missing"),
        ({"columns": {"ward": [1.0, 2.0, 1.0, float("nan")]}}, "column 'ward': 1 of 4 values are missing"),
    ],
)
def test_from_arrays_names_the_array_that_cannot_be_used(changes, message):
    with pytest.raises(DataError, match=message):
        from_arrays(**{"x": np.zeros((4, 2)), "y": [0, 1, 0, 1], **changes})


def test_pandas_missing_values_are_refused():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series([1, 2, None, 1], dtype="Int64")
    with pytest.raises(DataError, match="column 'ward': 1 of 4 values are missing, the first is number 2"):
        from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], columns={"ward": column})
    with pytest.raises(ConfigError, match="columns must be a dict of names, not DataFrame"):
        from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], columns=column.to_frame("ward"))


def test_arrays_that_torch_does_not_take_are_copied():
    """Warnings are errors here, and torch warns of arrays that cannot be written to."""
    x, y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10) % 2
    x.flags.writeable = y.flags.writeable = False
    for given in (x, x.astype(">f8"), x.tolist()):
        assert torch.equal(from_arrays(given, y, x, y).x_train, torch.tensor(x.tolist()))
    assert torch.equal(from_arrays(x[::-1], y, x, y).x_train, torch.tensor(x[::-1].tolist()))
    assert from_peers([(x, y), Rows(x, y)]).peers == 2


def test_a_source_made_by_hand_must_have_the_right_types():
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    with pytest.raises(DataError, match="from_arrays converts"):
        Source(x.double(), y, x.double(), y, n_classes=1)


def test_whole_numbers_that_are_amounts_are_no_classes() -> None:
    """442 integer targets of a regression, as in scikit-learn's diabetes, became 347 classes."""
    x, amounts = np.eye(442, 3), np.arange(442) % 322 + 25
    for refused in (lambda: from_arrays(x, amounts), lambda: from_peers([(x, amounts)])):
        with pytest.raises(
            DataError, match=r"25 to 346 would make 347 classes for 442 samples.*task 'regression'"
        ):
            refused()
    assert from_arrays(x, amounts, n_classes=347).n_classes == 347
    assert from_arrays(x, amounts.astype(str)).n_classes == 322


def test_many_classes_with_two_samples_each_are_classes() -> None:
    assert from_arrays(np.zeros((60, 1)), np.arange(60) % 30).n_classes == 30
    assert from_arrays(np.zeros((20, 1)), np.arange(20)).n_classes == 20


def test_labels_from_1_are_refused_with_the_way_to_go_on() -> None:
    x, y = np.eye(12), np.arange(12) % 3 + 1
    for refused in (lambda: from_arrays(x, y), lambda: from_peers([(x, y)])):
        with pytest.raises(
            DataError, match=r"labels run from 1 to 3, and class 0 would be empty.*n_classes=4"
        ):
            refused()
    assert from_arrays(x, y - 1).n_classes == 3
    assert from_arrays(x, y, n_classes=4).n_classes == 4


def test_a_peer_may_lack_class_0() -> None:
    one, other = (np.eye(6), np.array([1, 2] * 3)), (np.eye(6), np.array([0, 1] * 3))
    assert from_peers([one, other]).n_classes == 3
