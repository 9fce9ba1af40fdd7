"""Parquet files through the `datasets` package; without it, what to install."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.data import load, split
from coterie.errors import ConfigError, DataError


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install coterie\[huggingface\]"):
        load("huggingface(anything)", peers=2, seed=0)


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


def numbers(n: int) -> dict[str, list[object]]:
    return {
        "height": [float(i) for i in range(n)],
        "age": list(range(n)),
        "comment": ["text"] * n,
        "ward": ["ab"[i // 2 % 2] for i in range(n)],
        "label": [i % 2 for i in range(n)],
    }


def test_numeric_columns_of_a_parquet_file_become_features(datasets, tmp_path):
    datasets.Dataset.from_dict(numbers(40)).to_parquet(tmp_path / "patients.parquet")
    source = load("huggingface(patients.parquet,natural=ward)", data_dir=tmp_path, peers=2, seed=0)
    assert source.shape == (2,)
    assert (len(source.y_train), len(source.y_test)) == (32, 8)
    assert torch.equal(source.x_train[:, 0], source.x_train[:, 1])
    assert torch.equal(source.x_train[:, 0].long() % 2, source.y_train)
    assert split(source, "natural(ward)", peers=2, seed=0).train.sizes.tolist() == [16, 16]


def test_images_and_splits_of_a_folder(datasets, tmp_path):
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["dark", "bright"])}
    )
    for part, n in (("train", 6), ("test", 2)):
        pictures = [Image.fromarray(np.full((4, 5, 3), 255 * (i % 2), np.uint8)) for i in range(n)]
        table = datasets.Dataset.from_dict({"picture": pictures, "kind": [i % 2 for i in range(n)]}, features)
        (tmp_path / "pictures").mkdir(exist_ok=True)
        table.to_parquet(tmp_path / "pictures" / f"{part}-00000-of-00001.parquet")
    source = load(f"huggingface({tmp_path / 'pictures'})", peers=2, seed=0)
    assert source.class_names == ("dark", "bright")
    assert source.shape == (3, 4, 5)
    assert (source.y_train.tolist(), source.y_test.tolist()) == ([0, 1] * 3, [0, 1])
    assert source.x_train[:, 0, 0, 0].tolist() == [-1.0, 1.0] * 3


def test_plain_image_bytes_are_decoded(datasets, tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (3, 3), (255, 255, 255)).save(buffer, "PNG")
    rows = {"image": [{"bytes": buffer.getvalue(), "path": None}] * 10, "target": [0, 1] * 5}
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "plain.parquet")
    source = load(f"huggingface({tmp_path / 'plain.parquet'})", peers=2, seed=0)
    assert source.shape == (3, 3, 3)
    assert bool((source.x_train == 1.0).all())


def test_what_cannot_be_guessed_is_asked_for(datasets, tmp_path):
    rows = numbers(10)
    rows["diagnosis"] = rows.pop("label")
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(ConfigError, match="which column is the label"):
        load("huggingface(p.parquet)", data_dir=tmp_path, peers=2, seed=0)
    with pytest.raises(ConfigError, match="did you mean diagnosis"):
        load("huggingface(p.parquet,label=diagnose)", data_dir=tmp_path, peers=2, seed=0)
    source = load("huggingface(p.parquet,label=diagnosis,x=age)", data_dir=tmp_path, peers=2, seed=0)
    assert source.shape == (1,)


def test_a_damaged_file_is_named(datasets, tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"huggingface\(broken.parquet\)"):
        load("huggingface(broken.parquet)", data_dir=tmp_path, peers=2, seed=0)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"label": [None, 1] * 5}, "", "column 'label': 5 of 10 values are missing, the first is number 0"),
        ({"ward": ["a", None] * 5}, ",natural=ward", "column 'ward': 5 of 10 values are missing"),
        ({"beat": [[1.0], []] * 5}, ",x=beat", "column 'beat': sample 1 is an empty sequence"),
        ({}, ",x=comment", "column 'comment' must hold numbers"),
        ({"label": [[0, 1]] * 10}, "", r"column 'label' must hold one value per sample.* \(10, 2\)"),
        ({"image": [{"bytes": b"text", "path": None}] * 10}, "", "column 'image': row 0 is not a readable"),
    ],
)
def test_columns_that_cannot_be_used_are_named(datasets, tmp_path, change, arguments, message):
    datasets.Dataset.from_dict({**numbers(10), **change}).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(DataError, match=rf"huggingface\(p.parquet\): {message}"):
        load(f"huggingface(p.parquet{arguments})", data_dir=tmp_path, peers=2, seed=0)


def test_a_file_without_rows_is_named(datasets, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = datasets.Dataset.from_dict(numbers(1)).data.table
    parquet.write_table(table.schema.empty_table(), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match=r"huggingface\(empty.parquet\) is damaged or has no rows"):
        load("huggingface(empty.parquet)", data_dir=tmp_path, peers=2, seed=0)


def test_a_column_to_split_by_must_be_asked_for(datasets, tmp_path):
    datasets.Dataset.from_dict(numbers(20)).to_parquet(tmp_path / "p.parquet")
    source = load("huggingface(p.parquet)", data_dir=tmp_path, peers=2, seed=0)
    with pytest.raises(
        ConfigError, match=r"'ward' was not kept .* write natural=ward in the data's arguments"
    ):
        split(source, "natural(ward)", peers=2, seed=0)
    with pytest.raises(ConfigError, match="write natural=<one of height, age, comment, ward>"):
        split(source, "natural", peers=2, seed=0)


def test_a_column_of_tokens_stays_whole_and_is_padded(datasets, tmp_path):
    tokens = [[1, 2, 3], [4], [5, 6]] * 4
    table = {"input_ids": tokens, "label": [0, 1, 0] * 4}
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "texts.parquet")
    source = load("huggingface(texts.parquet,x=input_ids)", data_dir=tmp_path, peers=2, seed=0)
    assert source.x_train["0"].dtype == torch.int64
    found = [
        row[mask.bool()].tolist()
        for x in (source.x_train, source.x_test)
        for row, mask in zip(x["0"], x["attention_mask"], strict=True)
    ]
    assert sorted(found) == sorted(tokens)
