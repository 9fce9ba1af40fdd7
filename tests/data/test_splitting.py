"""Caps, validation parts, natural columns, rotated pools and shards."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.data import from_arrays, load, split
from coterie.data.splitting import rotate
from coterie.errors import ConfigError, DataError


def source_of(per_class: int, classes: int = 4):
    y = np.repeat(np.arange(classes), per_class)
    return from_arrays(np.arange(len(y), dtype=np.float32).reshape(-1, 1), y, test_fraction=0.2, seed=0)


def test_cap_keeps_the_label_proportions():
    source = source_of(100)
    whole = split(source, "dirichlet(0.5)", peers=5, seed=0)
    capped = split(source, "dirichlet(0.5)", peers=5, seed=0, samples_per_peer=20)
    assert capped.train.sizes.tolist() == [min(20, n) for n in whole.train.sizes.tolist()]
    share = whole.label_histogram().double() / whole.train.sizes[:, None]
    wanted = share * capped.train.sizes[:, None]
    assert float((capped.label_histogram() - wanted).abs().max()) < 1.0
    for peer in range(5):  # the cap takes samples away and gives none
        assert set(capped.x[capped.train.of(peer), 0].tolist()) <= set(
            whole.x[whole.train.of(peer), 0].tolist()
        )


def test_validation_is_the_asked_fraction_of_the_capped_samples():
    federation = split(source_of(150), "iid", peers=4, seed=0, samples_per_peer=50, validation=0.2)
    assert federation.train.sizes.tolist() == [40] * 4
    assert federation.validation.sizes.tolist() == [10] * 4
    assert not set(federation.train.index.tolist()) & set(federation.validation.index.tolist())


def test_tiny_peers_still_get_one_validation_sample_or_a_reason():
    two_each = from_arrays(np.zeros((8, 1)), np.zeros(8, dtype=int), np.zeros((2, 1)), np.zeros(2, dtype=int))
    federation = split(two_each, "iid", peers=4, seed=0, validation=0.1)
    assert federation.train.sizes.tolist() == federation.validation.sizes.tolist() == [1] * 4
    with pytest.raises(DataError, match="a single training sample"):
        split(two_each, "iid", peers=8, seed=0, validation=0.1)


def test_size_of_test_sets_can_be_asked_for():
    federation = split(source_of(100), "pathological(2)", peers=4, seed=0, test_samples_per_peer=10)
    assert set(federation.test.sizes.tolist()) <= {10, 11}


@pytest.mark.parametrize(
    "wrong",
    [{"validation": 1.0}, {"validation": -0.1}, {"samples_per_peer": 0}, {"test_samples_per_peer": 0}],
)
def test_impossible_settings(wrong):
    with pytest.raises(ConfigError):
        split(source_of(10), "iid", peers=2, seed=0, **wrong)
    with pytest.raises(ConfigError):
        split(source_of(10), "iid", peers=0, seed=0)


def test_natural_makes_one_peer_per_value():
    ward = np.array(["b", "a", "c"] * 20)
    source = from_arrays(np.arange(60.0).reshape(-1, 1), np.arange(60) % 2, columns={"ward": ward})
    federation = split(source, "natural(ward)", peers=3, seed=0)
    for peer, name in enumerate("abc"):
        mine = torch.cat((federation.train.of(peer), federation.test.of(peer)))
        assert {ward[int(i)] for i in federation.x[mine, 0]} == {name}
        assert len(mine) == 20
        assert len(federation.test.of(peer)) == 4
    assert federation.common_test is None
    with pytest.raises(DataError, match="set peers to 3 instead of 5"):
        split(source, "natural", peers=5, seed=0)
    with pytest.raises(ConfigError, match="did you mean ward"):
        split(source, "natural(wart)", peers=3, seed=0)
    with pytest.raises(ConfigError, match="has none"):
        split(source_of(10), "natural", peers=3, seed=0)


def test_natural_refuses_a_peer_without_test_samples():
    columns = {"who": (np.array([0, 1]), np.array([0, 7]))}
    source = from_arrays(np.zeros((2, 1)), [0, 1], np.zeros((2, 1)), [0, 1], columns=columns)
    with pytest.raises(DataError, match="1 of 2 values"):
        split(source, "natural", peers=2, seed=0)


def test_synthetic_is_split_only_by_its_peers():
    source = load("synthetic(0.5,0.5,size=20)", peers=4, seed=0)
    with pytest.raises(ConfigError, match="natural"):
        split(source, "iid", peers=4, seed=0)
    federation = split(source, "natural", peers=4, seed=0)
    assert federation.train.sizes.tolist() == [15] * 4
    assert federation.test.sizes.tolist() == [5] * 4


def marked_images(n: int):
    """4x4 images that carry their number in the upper left corner."""
    x = torch.zeros(n, 1, 4, 4)
    x[:, 0, 0, 0] = torch.arange(1.0, n + 1)
    return x


def test_rotation_clusters_turn_training_and_test_images_alike():
    x, x_test = marked_images(40), -marked_images(8)
    source = from_arrays(x, np.arange(40) % 2, x_test, np.arange(8) % 2)
    federation = split(source, "rotations(4)", peers=8, seed=0, validation=0.2)
    assert federation.clusters is not None
    assert federation.clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    corner = {0: (0, 0), 1: (3, 0), 2: (3, 3), 3: (0, 3)}  # counter-clockwise
    for peer, cluster in enumerate(federation.clusters.tolist()):
        for part in (federation.train, federation.validation, federation.test):
            images = federation.x[part.of(peer), 0]
            row, column = corner[cluster]
            assert bool((images[:, row, column] != 0).all())
            assert bool(((images != 0).sum((1, 2)) == 1).all())
    assert federation.common_test is None
    # The pool: every training image once, a test image at most once per angle.
    marks = federation.x.sum((1, 2, 3))
    assert int((marks > 0).sum()) == 40
    assert int((marks < 0).sum()) <= 4 * 8
    assert len(torch.unique(federation.x.flatten(1), dim=0)) == len(federation.x)


def test_rotations_of_vectors_are_refused():
    with pytest.raises(DataError, match="needs images"):
        split(source_of(10), "rotations(2)", peers=2, seed=0)


@pytest.mark.parametrize("quarters", [0, 1, 2, 3, -1, 5])
def test_quarter_turns_are_exact(quarters):
    images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rotate(images, 90.0 * quarters), torch.rot90(images, quarters, dims=(-2, -1)))


def test_other_angles_take_the_nearest_pixel_and_zero_outside():
    degrees, side = 30.0, 7
    image = torch.arange(1.0, side * side + 1).view(1, 1, side, side)
    turned = rotate(image, degrees)[0, 0]
    centre = (side - 1) / 2
    for row in range(side):
        for column in range(side):
            # The pixel at angle t and radius r comes from angle t - 30 degrees.
            right, up = column - centre, centre - row
            radius, angle = math.hypot(right, up), math.atan2(up, right) - math.radians(degrees)
            from_column = round(centre + radius * math.cos(angle))
            from_row = round(centre - radius * math.sin(angle))
            inside = 0 <= from_row < side and 0 <= from_column < side
            assert turned[row, column] == (image[0, 0, from_row, from_column] if inside else 0.0)


def test_a_shard_holds_the_same_data_in_a_smaller_pool():
    source = source_of(50)
    federation = split(source, "label-pairs(2)", peers=6, seed=0, validation=0.2, common_test_samples=8)
    ids = torch.tensor([4, 1])
    shard = federation.take(ids)
    assert shard.peers == 2
    assert len(shard.y) < len(federation.y)
    assert federation.clusters is not None
    assert shard.clusters is not None
    assert shard.clusters.tolist() == federation.clusters[ids].tolist()
    for part in ("train", "validation", "test"):
        for row, peer in enumerate(ids.tolist()):
            mine, original = getattr(shard, part).of(row), getattr(federation, part).of(peer)
            assert torch.equal(shard.x[mine], federation.x[original])
            assert torch.equal(shard.y[mine], federation.y[original])
    assert shard.common_test is not None
    assert torch.equal(shard.x[shard.common_test], federation.x[federation.common_test])
    assert torch.equal(shard.label_histogram(), federation.label_histogram()[ids])
    with pytest.raises(ConfigError):
        federation.label_histogram("trian")
