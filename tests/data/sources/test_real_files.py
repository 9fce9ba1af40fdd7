"""The real files that COTERIE_DATA names; expected facts come from their description, not from this code."""

from __future__ import annotations

import csv
import gzip
import io

import pytest
import torch

from coterie.data import load, split


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("mnist", (1, 28, 28), 10),
        ("fashion-mnist", (1, 28, 28), 10),
        ("emnist", (1, 28, 28), 47),
        ("cifar-10", (3, 32, 32), 10),
        ("cifar-100", (3, 32, 32), 100),
        ("tiny-imagenet(per_class=2)", (3, 64, 64), 200),
    ],
)
def test_images(data_dir, name, shape, classes):
    source = load(name, data_dir=data_dir, peers=10, seed=0)
    assert source.shape == shape
    assert (source.n_classes, len(source.class_names)) == (classes, classes)
    assert torch.bincount(source.y_train, minlength=classes).min() > 0
    assert torch.bincount(source.y_test, minlength=classes).min() > 0
    if name != "mnist":
        assert (source.x_train.min(), source.x_train.max()) == (-1.0, 1.0)
    if len(source.y_train) == 60_000 and name == "mnist":
        # The constants are the mean and deviation of these 60,000 images.
        assert abs(float(source.x_train.mean())) < 1e-3
        assert abs(float(source.x_train.std()) - 1.0) < 1e-3


def test_mnist_pairs_have_the_sizes_of_the_paper(data_dir):
    source = load("mnist", data_dir=data_dir, peers=20, seed=0)
    federation = split(source, "digit-pairs(0.5)", peers=20, seed=0)
    if len(source.y_train) == 60_000:
        assert (int(federation.train.sizes[0]), int(federation.train.sizes[-1])) == (1165, 3834)
    assert ((federation.label_histogram() > 0).sum(1) == 2).all()


def test_iot_devices_has_the_size_of_the_paper(data_dir):
    distinct = set()
    for part in ("train", "test"):
        path = data_dir / "iot-device-identification" / f"iot_device_{part}.csv.gz"
        rows = csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode()))
        distinct |= {tuple(row) for row in rows if row[-1] not in ("water_sensor", "device_category")}
    source = load("iot-devices", data_dir=data_dir, peers=10, seed=0)
    assert source.shape == (296,)
    assert source.n_classes == 9
    assert len(source.y_train) + len(source.y_test) == len(distinct)
    assert torch.isfinite(source.x_train).all()
    again, other = (load("iot-devices", data_dir=data_dir, peers=10, seed=seed) for seed in (0, 1))
    assert torch.equal(again.x_test, source.x_test)
    assert not torch.equal(other.x_test, source.x_test)


def test_emnist_stands_upright(data_dir):
    """A capital T has its bar above: in the mean image the upper rows are wider than the lower ones."""
    source = load("emnist", data_dir=data_dir, peers=1, seed=0)
    mean = source.x_train[source.y_train == source.class_names.index("T")].mean((0, 1)) + 1.0
    middle = mean[:, 12:16].sum(1)
    assert float((mean[4:9].sum(1) - middle[4:9]).sum()) > 2 * float(
        (mean[19:24].sum(1) - middle[19:24]).sum()
    )
