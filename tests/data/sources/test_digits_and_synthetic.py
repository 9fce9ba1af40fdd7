"""The two data sets that need no files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.catalogue import sources
from coterie.data import load, split
from coterie.data.sources import synthetic
from coterie.data.sources.synthetic import Generator, Synthetic
from coterie.errors import ConfigError

# Samples per class of the UCI file optdigits.tes.
DIGIT_COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
# Its first line, a zero, as 8 rows of 8 values from 0 to 16.
# fmt: off
FIRST_DIGIT = [
    0, 0, 5, 13, 9, 1, 0, 0,
    0, 0, 13, 15, 10, 15, 5, 0,
    0, 3, 15, 2, 0, 11, 8, 0,
    0, 4, 12, 0, 0, 8, 8, 0,
    0, 5, 8, 0, 0, 9, 8, 0,
    0, 4, 11, 0, 1, 12, 7, 0,
    0, 2, 14, 5, 10, 12, 0, 0,
    0, 0, 6, 13, 10, 0, 0, 0,
]
# fmt: on


def test_digits_are_all_there_and_split_by_class():
    source = load("digits", peers=5, seed=0)
    assert source.shape == (1, 8, 8)
    test = torch.bincount(source.y_test)
    assert (torch.bincount(source.y_train) + test).tolist() == DIGIT_COUNTS
    assert test.tolist() == [count // 5 for count in DIGIT_COUNTS]
    assert (source.x_train.min(), source.x_train.max()) == (-1.0, 1.0)
    other = load("digits", peers=9, seed=7)
    assert torch.equal(source.x_test, other.x_test)


def test_digits_are_those_of_the_uci_file():
    """The ink of all 1,797 images adds up to that of optdigits.tes, and its first line is among them."""
    source = load("digits", peers=1, seed=0)
    x = (torch.cat((source.x_train, source.x_test)).view(-1, 64) + 1) * 8
    assert float(x.sum()) == 561718
    first = torch.tensor(FIRST_DIGIT).float()
    assert torch.cat((source.y_train, source.y_test))[(x == first).all(1)].tolist() == [0]


def test_every_data_set_says_what_goes_with_it():
    models = {
        "digits": "mlp",
        "synthetic": "mlr",
        "mnist": "mlp",
        "fashion-mnist": "mlp",
        "emnist": "emnist-cnn-bn",
        "cifar-10": "ppdl-cnn",
        "cifar-100": "blend-cnn",
        "tiny-imagenet": "resnet18-gn",
        "iot-devices": "iot-mlp",
        "huggingface": "mlp",
    }
    assert set(sources) == set(models)
    for name, model in models.items():
        dataset = sources.build("huggingface(x)" if name == "huggingface" else name)
        assert dataset.default_model == model
        assert dataset.needs_files == (name not in ("digits", "synthetic", "huggingface"))
        assert sources.summary(name)


def drawn(generator, peers, size):
    """Samples 0 to size - 1 of each of these peers: (peers, size, 60), (peers, size); and their tasks."""
    ids = torch.tensor(peers)
    x, y = generator.make(ids, torch.zeros_like(ids), torch.full_like(ids, size))
    return x.view(len(peers), size, 60), y.view(len(peers), size), generator.tasks(ids)


def test_labels_are_those_of_the_peer_s_own_classifier():
    x, y, tasks = drawn(Generator(0.5, 0.5, seed=3), [4], 200)
    scores = x[0].double().numpy() @ tasks.weight[0].double().numpy() + tasks.bias[0].double().numpy()
    assert (np.argmax(scores, axis=1) == y[0].numpy()).all()
    federation = split(load("synthetic(0.5,0.5,size=200)", peers=6, seed=3), "natural", peers=6, seed=3)
    mine = torch.cat((federation.train.of(4), federation.test.of(4)))
    assert sorted(federation.x[mine, 0].tolist()) == sorted(x[0, :, 0].tolist())


def test_features_have_the_given_covariance():
    """Var(x[d]) = d^-1.2 around a centre whose mean is B; W and b are centred on u with deviation 1."""
    x, _, tasks = drawn(Generator(0.0, 0.0, seed=0), [0], 40_000)
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(x[0].double().numpy().var(0) / expected, np.ones(60), atol=0.06)
    np.testing.assert_allclose(x[0].double().mean(0), tasks.centre[0], atol=0.03)
    assert abs(tasks.weight.mean()) < 0.2
    assert abs(tasks.weight.std() - 1.0) < 0.1


def test_alpha_and_beta_are_standard_deviations():
    x, _, tasks = drawn(Generator(2.0, 3.0, seed=1), list(range(2000)), 2)
    model_means = torch.cat((tasks.weight.flatten(1), tasks.bias), dim=1).mean(1)
    centres = x.mean((1, 2))
    # Var of the mean of 610 entries: alpha^2 + 1/610; of a peer's mean feature: beta^2 + about 1/60.
    assert abs(model_means.std() - 2.0) < 0.15
    assert abs(centres.std() - 3.0) < 0.2


def test_sizes_follow_the_log_normal_and_the_cap():
    sizes = Synthetic().sizes(20_000, seed=0)
    assert sizes.min() >= 250
    assert sizes.max() == 4000
    assert (sizes[sizes < 4000] % 5 == 0).all()
    # Median of int(lognormal(4, 2)): e^4 = 54.6, so half of the sizes lie below 5 * (54 + 50).
    assert abs((sizes < 5 * (55 + 50)).mean() - 0.5) < 0.02
    assert (Synthetic(size=50).sizes(3, seed=0) == 50).all()


def test_a_peer_s_data_do_not_depend_on_the_number_of_peers():
    few, many = (load("synthetic(1,1)", peers=peers, seed=5) for peers in (3, 6))
    assert torch.equal(many.x_train[: len(few.x_train)], few.x_train)
    assert torch.equal(many.y_test[: len(few.y_test)], few.y_test)


def made(text, peers, monkeypatch, **splitting):
    """The data of a generated set, of which nothing is held."""
    monkeypatch.setattr(synthetic, "MOST_HELD", 0)
    return sources.build(text).deal(peers, 5, **splitting)


@pytest.mark.parametrize("splitting", [{"samples_per_peer": 300}, {}], ids=["with a gap", "joined"])
def test_samples_made_for_some_peers_are_those_made_for_all(splitting, monkeypatch):
    """In any order, beside any others, any stretch of their samples: bit by bit."""
    few = made("synthetic(0.5,0.5)", 40, monkeypatch, validation=0.2, **splitting)
    everyone = few.kept()
    assert few.made is not None
    assert len(few.y) == 0
    for name in ("train", "validation", "test"):
        for rows in (torch.tensor([31]), torch.tensor([7, 3, 39]), torch.arange(40)):
            one, all_ = (data.held(getattr(data, name), rows) for data in (few, everyone))
            sizes = getattr(few, name).sizes[rows]
            present = torch.arange(int(sizes.max())) < sizes[:, None]
            mine, theirs = one.places_of(present), all_.places_of(present)
            assert torch.equal(one.x[mine], all_.x[theirs])
            assert torch.equal(one.y[mine], all_.y[theirs])
    assert torch.equal(few.label_histogram(), everyone.label_histogram())
    taken = few.take(torch.tensor([7, 3]))
    assert torch.equal(taken.label_histogram("test"), everyone.label_histogram("test")[[7, 3]])


def test_generated_data_are_those_of_the_source():
    """The way through `load` and `split` gives every peer the same samples as `deal`."""
    text, peers = "synthetic(1,0.5)", 5
    dealt = sources.build(text).deal(peers, 3)
    usual = split(load(text, peers=peers, seed=3), "natural", peers=peers, seed=3)
    for name in ("train", "test"):
        for peer in range(peers):
            mine, theirs = (data.x[getattr(data, name).of(peer), 0].sort().values for data in (dealt, usual))
            assert torch.equal(mine, theirs)


def test_what_is_held_does_not_grow_with_peers(monkeypatch):
    """Beyond the limit a federation has a few numbers for each peer, and no sample."""
    data = made("synthetic(0.5,0.5,size=1000)", 100_000, monkeypatch)
    held = [data.x, data.y, data.made.peers]
    held += [tensor for part in (data.train, data.validation, data.test) for tensor in vars(part).values()]
    assert sum(tensor.nbytes for tensor in held if tensor is not None) < 100 * 100_000


def test_of_made_samples_the_targets_are_held_and_as_many_inputs_as_there_is_room_for(monkeypatch):
    """Test data first, then validation and training data, of whole peers; a sample has 240 bytes."""
    few = made("synthetic(0.5,0.5,size=40)", 9, monkeypatch, validation=0.2)
    assert [int(getattr(few, name).sizes[0]) for name in ("test", "validation", "train")] == [10, 6, 24]
    for samples, expected in (
        (0, (0, 0, 0)),
        (25, (20, 0, 0)),
        (90, (90, 0, 0)),
        (300, (90, 54, 144)),
        (9 * 40, (90, 54, 9 * 24)),
    ):
        data = few.holding(samples * 240)
        assert tuple(len(part.x) for part in (data.test, data.validation, data.train)) == expected
        for name in ("test", "validation", "train"):
            part = getattr(data, name)
            assert (part.y.dtype, len(part.y)) == (torch.uint8, part.total)
            for rows in (torch.tensor([1]), torch.tensor([8, 0]), torch.arange(9)):
                mine, pure = data.held(part, rows), few.held(getattr(few, name), rows)
                places = torch.arange(int(part.sizes[0])).expand(len(rows), -1)
                assert torch.equal(mine.x[mine.places(places)], pure.x[pure.places(places)])
                assert torch.equal(mine.targets(mine.places(places)), pure.targets(pure.places(places)))


def test_peers_of_a_cluster_share_their_task():
    data = sources.build("synthetic(1,1,size=8,clusters=3)").deal(7, 0)
    assert data.clusters.tolist() == [0, 1, 2, 0, 1, 2, 0]
    tasks = sources.build("synthetic(1,1,clusters=3)").generator(0).tasks(torch.arange(7))
    assert torch.equal(tasks.weight[1], tasks.weight[4])
    assert not torch.equal(tasks.weight[0], tasks.weight[1])
    assert not torch.equal(data.x[data.train.of(1)], data.x[data.train.of(4)])


def test_a_quarter_is_for_testing():
    source = load("synthetic(0.5,0.5)", peers=20, seed=0)
    federation = split(source, "natural", peers=20, seed=0)
    total = (federation.train.sizes + federation.test.sizes).double()
    assert float((federation.test.sizes - total / 4).abs().max()) <= 0.5
    assert federation.common_test is None


@pytest.mark.parametrize(
    "text",
    [
        "synthetic(-1,1)",
        "synthetic(1,1,test=0)",
        "synthetic(1,1,size=1)",
        "synthetic(1,1,clusters=-1)",
        "synthetic(x,1)",
        "synthetic(1,1,sise=5)",
    ],
)
def test_malformed_synthetic(text):
    with pytest.raises(ConfigError):
        load(text, peers=2, seed=0)


def test_many_small_peers_are_quick():
    source = load("synthetic(0.5,0.5,size=8)", peers=5000, seed=0)
    federation = split(source, "natural", peers=5000, seed=0)
    assert federation.train.sizes.tolist() == [6] * 5000
