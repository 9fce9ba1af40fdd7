"""The two data sets that need no files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.catalogue import sources
from coterie.data import load, split
from coterie.data.sources.synthetic import Synthetic, peer_task
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


def test_labels_are_those_of_the_peer_s_own_classifier():
    task = peer_task(0.5, 0.5, 200, seed=3, peer=4)
    scores = task.x.astype(np.float64) @ task.weight + task.bias
    assert (np.argmax(scores, axis=1) == task.y).mean() > 0.99  # float32 may decide a tie differently
    federation = split(load("synthetic(0.5,0.5,size=200)", peers=6, seed=3), "natural", peers=6, seed=3)
    mine = torch.cat((federation.train.of(4), federation.test.of(4)))
    assert sorted(federation.x[mine, 0].tolist()) == sorted(task.x[:, 0].tolist())


def test_features_have_the_given_covariance():
    """Var(x[d]) = d^-1.2 around a centre whose mean is B; W and b are centred on u with deviation 1."""
    task = peer_task(0.0, 0.0, 40_000, seed=0, peer=0)
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(task.x.var(0) / expected, np.ones(60), atol=0.06)
    assert abs(task.weight.mean()) < 0.2
    assert abs(task.weight.std() - 1.0) < 0.1


def test_alpha_and_beta_are_standard_deviations():
    tasks = [peer_task(2.0, 3.0, 2, seed=1, peer=peer) for peer in range(2000)]
    model_means = np.array([np.append(task.weight, task.bias).mean() for task in tasks])
    centres = np.array([task.x.mean() for task in tasks])
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
