"""A peer's own file: what is read, and what is said about a file that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.data.own.one_peer import checked, load_own, load_samples
from coterie.errors import ConfigError, DataError
from coterie.experiments.real_peers.own_rows import load_peer_data

X = np.arange(12.0).reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def test_npz_with_and_without_a_test_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", x=X, y=Y)
    x, y = load_own(tmp_path / "two.npz")
    assert (x.dtype, y.dtype) == (torch.float32, np.int64)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    images = np.zeros((4, 1, 8, 8), np.uint8)
    np.savez_compressed(
        tmp_path / "four.npz", x=images, y=Y.astype(np.uint8), x_test=images[:2], y_test=Y[:2]
    )
    four = load_own(str(tmp_path / "four.npz"))
    assert [array.shape for array in four] == [(4, 1, 8, 8), (4,), (2, 1, 8, 8), (2,)]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("a,b,c,label\n0,1,2,0\n3,4,5,1\n", [0, 1]),
        ("label,a,b,c\n0,0,1,2\n1,3,4,5\n", [0, 1]),
        ('a,b,c,kind\n0,1,2,"7"\n3,4,5,1.0\n', [7, 1]),  # the last column
        ("\ufeffa, b, c, label\r\n0, 1, 2, 0\r\n\r\n3, 4, 5, 1\r\n", [0, 1]),  # as spreadsheets write it
    ],
)
def test_csv(tmp_path: Path, text: str, labels: list[int]) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(text.encode())
    x, y = load_own(path)
    np.testing.assert_array_equal(x, [[0, 1, 2], [3, 4, 5]])
    assert y.tolist() == labels


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X}, "no array 'y'; expected x, y"),
        ({"x": X, "labels": Y}, "unknown array 'labels'"),
        ({"x": X, "y": Y, "x_tset": X}, "did you mean x_test"),
        ({"x": X, "y": Y, "x_test": X}, "no array 'y_test'"),
        ({"x": X, "y": Y[:3]}, "4 samples but 3 labels"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:1]}, "test set: 4 samples but 1 labels"),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, r"shape \(3,\), those of x_test \(2,\)"),
        (
            {"x": X, "y": Y.astype(float)},
            'not float64 of shape .*for numbers to predict, say task="regression"',
        ),
        (
            {"x": X, "y": np.eye(4, dtype=int)},
            r'shape \(4, 4\); for several labels .* say task="multi-label"',
        ),
        ({"x": X, "y": Y[:, None]}, r"shape \(4, 1\); leave out its second axis"),
        ({"x": X, "y": np.array(list("abca"))}, "number the classes alike"),
        (
            {"x": X, "y": Y - 1},
            "label -1; labels count from 0; if they are amounts, choose task 'regression'",
        ),
        ({"x": X[:, 0], "y": Y}, r"\(samples, features...\)"),
        ({"x": X[:0], "y": Y[:0]}, "not empty"),
        ({"x": np.where(X == 5, np.nan, X), "y": Y}, "1 samples have missing.* first sample 1"),
        ({"x": X.astype(str), "y": Y}, "must hold numbers"),
        ({"x": np.array([{}, {}, {}, {}]), "y": Y}, "plain arrays"),  # would have to be unpickled
    ],
)
def test_npz_that_does_not_fit(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=words) as caught:
        load_own(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a header"),
        ("a,label\n", "no samples"),
        ("1,2,0\n3,4,1\n", "first line holds numbers"),
        ("a,b,label\n1,x,0\n", "column 'b' has 'x', and only numbers"),
        ("a,b,label\n1,,0\n", "column 'b' is empty in line 2"),
        ("a,b,label\n1,2,0\n1,2\n", "header names 3 columns, and line 3 has 2"),
        ("a,label\n1,2,0\n", "header names 2 columns, and line 2 has 3"),
        ("a,label,label\n1,2,0\n", "twice"),
        ("a,b,label\n1,2,0.5\n", "column 'label' must hold whole numbers"),
        ("a,b,label\n1,2,nan\n", "column 'label' must hold whole numbers"),
        ("a,b,label\n1,inf,0\n", "missing, NaN or infinite"),
        ("a,b,label\n1,2,-1\n", "labels count from 0"),
    ],
)
def test_csv_that_does_not_fit(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        load_own(path)
    assert str(path) in str(caught.value)


def test_files_that_are_something_else(tmp_path: Path) -> None:
    for name, content, words in (
        ("a.npz", b"PK\x03\x04 nonsense", "not a readable"),
        ("b.npz", b"", "not a readable"),
        ("c.csv", b"a,label\n\xff\xfe,1\n", "no text that can be read as a table"),
        ("d.txt", b"", r"ends in \.npz or \.csv"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=words):
            load_own(tmp_path / name)
    with open(tmp_path / "e.npz", "wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match="single array"):
        load_own(tmp_path / "e.npz")
    with pytest.raises(DataError, match="there is no file"):
        load_own(tmp_path / "missing.csv")


def test_a_function_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n"
        "def load():\n    return np.zeros((2, 3)), np.array([0, 1])\n"
        "def one():\n    return np.zeros((2, 3))\n"
        "def fails():\n    raise RuntimeError('no disk')\n"
    )
    x, y = load_peer_data(f"{file}:load")
    assert (x.shape, y.tolist()) == ((2, 3), [0, 1])
    with pytest.raises(DataError, match=r"one in .*mine\.py: expected \(x, y\)"):
        load_peer_data(f"{file}:one")
    with pytest.raises(DataError, match="RuntimeError: no disk"):
        load_peer_data(f"{file}:fails")
    with pytest.raises(ConfigError, match="defines no laod; did you mean load"):
        load_peer_data(f"{file}:laod")
    np.savez(tmp_path / "two.npz", x=X, y=Y)
    assert len(load_peer_data(str(tmp_path / "two.npz"))) == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([[[1.0]], [[1.0], [[2.0]]]], [0, 1]), "load in own.py: x: sample 1 must be an array, or lists"),
        (([[1.0], [2.0]], [0, [1, 2]]), "load in own.py: y must be an array, or lists of equal lengths"),
    ],
)
def test_ragged_lists_of_a_function_are_named(arrays, message):
    with pytest.raises(DataError, match=message):
        checked(arrays, "load in own.py")


def test_npz_with_several_inputs(tmp_path: Path) -> None:
    path, tokens = tmp_path / "several.npz", np.arange(12).reshape(4, 3)
    named = {"x.tokens": tokens, "x.table": X[:, :2], "y": Y}
    test = {"x_test.tokens": tokens[:2], "x_test.table": X[:2, :2], "y_test": Y[:2]}
    np.savez(path, **named, **test)
    x, _, x_test, y_test = load_own(path)  # type: ignore[misc]
    assert list(x) == list(x_test) == ["tokens", "table"]
    assert (x["tokens"].dtype, x["table"].dtype) == (torch.int64, torch.float32)
    assert x["tokens"].tolist() == tokens.tolist()
    assert (y_test.tolist(), x_test["table"].tolist()) == (Y[:2].tolist(), X[:2, :2].tolist())
    np.savez(path, **{f"x.{place}": np.full((4, 2), place) for place in (10, 2, 0)}, y=Y)
    assert list(load_own(path)[0]) == ["0", "2", "10"]
    assert list(load_samples(path, 2)[0]) == ["0", "2", "10"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x.a": X, "x.b": X[:3], "y": Y}, "'b' has 3 samples, but 'a' has 4"),
        ({"x": X, "x.a": X, "y": Y}, "it has x, x.a; give x as one array or as several"),
        ({"x.a b": X, "y": Y}, "'a b' cannot be the name of an input"),
        ({"x.a": X, "x.b": np.where(X == 5, np.nan, X), "y": Y}, "1 samples have missing.* first sample 1"),
        ({"z.a": X, "y": Y}, "unknown array 'z'"),
    ],
)
def test_several_inputs_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=words):
        load_own(tmp_path / "mine.npz")


def test_text_without_decimal_points_is_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    for number, kind in (("2", torch.int64), ("2.5", torch.float32)):
        path.write_text(f"a,b,label\n1,{number},0\n3,4,1\n")
        assert load_own(path)[0].dtype == kind
    path.write_text("a,b\n1,2\n3,4\n")
    assert load_samples(path, 2)[0].dtype == torch.int64


def test_missing_values_in_sequences_are_found() -> None:
    with pytest.raises(DataError, match=r"1 samples have missing.* first sample 2"):
        checked(([[1.0], [2.0, 3.0], [4.0, np.nan], [5.0]], Y), "load in own.py")
