"""The papers' networks: exact parameter counts, logits, reproducible initial weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.catalogue import models
from coterie.errors import ConfigError
from coterie.models import build, head_names
from coterie.models.resnet import ResNet18

# Counts and their arithmetic: ALGORITHMS.md 2.1.
PAPERS = [
    ("iot-mlp", (296,), 9, 592 + 38_016 + 1_161, 39_769),
    ("emnist-cnn", (1, 28, 28), 47, 1_040 + 160_160 + 800_200 + 9_447, 970_847),
    ("emnist-cnn-bn", (1, 28, 28), 47, 240 + 48 + 10_416 + 96 + 941_200 + 18_847, 970_847),
    ("ppdl-cnn", (3, 32, 32), 10, 896 + 18_496 + 36_928 + 16_448 + 650, 73_418),
    ("ppdl-cnn", (1, 28, 28), 10, 160 + 4_640 + 51_264 + 650, 56_714),
    ("lenet", (3, 32, 32), 10, 456 + 2_416 + 48_120 + 10_164 + 850, 62_006),
    ("blend-cnn", (3, 32, 32), 10, 4_864 + 128 + 102_464 + 128 + 614_784 + 73_920 + 1_930, 798_218),
    ("blend-cnn(groups=8)", (3, 32, 32), 100, 796_288 + 19_300, 815_588),
    ("resnet18-gn", (3, 32, 32), 10, 11_168_832 + 5_130, 11_173_962),
    ("resnet18-gn", (3, 32, 32), 100, 11_168_832 + 51_300, 11_220_132),
    ("mlr", (784,), 10, 784 * 10 + 10, 7_850),
    ("mlr", (60,), 10, 60 * 10 + 10, 610),
    ("mlp", (1, 28, 28), 10, 785 * 128 + 129 * 10, 101_770),
    ("mlp(20)", (60,), 10, 61 * 20 + 21 * 10, 1_430),
    ("mlp(hidden=128)", (60,), 10, 61 * 128 + 129 * 10, 9_098),
]
SMALL = ["mlr", "mlp", "emnist-cnn-bn", "ppdl-cnn", "lenet"]


@pytest.mark.parametrize(("model", "shape", "n_classes", "arithmetic", "published"), PAPERS)
def test_parameter_counts_are_the_papers(model, shape, n_classes, arithmetic, published):
    module = build(model, shape, n_classes, seed=0)
    assert sum(p.numel() for p in module.parameters()) == arithmetic == published
    assert all(p.requires_grad for p in module.parameters())


def test_resnet_body_and_head():
    module = build("resnet18-gn", (3, 32, 32), 10, seed=0)
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    assert sum(sizes[name] for name in sizes.keys() - head_names(module)) == 11_168_832
    assert head_names(module) == ("head.weight", "head.bias")


def test_resnet_takes_tiny_imagenet_and_pools_like_the_paper():
    torch.manual_seed(0)
    module = ResNet18(3, 10, groups=32).eval()
    with torch.no_grad():
        assert module(torch.randn(1, 3, 64, 64)).shape == (1, 10)
        image = torch.randn(1, 3, 32, 32)
        logits = module(image)
        module.pool = nn.AvgPool2d(4)
        torch.testing.assert_close(module(image), logits)


@pytest.mark.parametrize("model", ["emnist-cnn", "emnist-cnn-bn", "lenet", "blend-cnn"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 16, 21)])
def test_image_networks_take_other_image_sizes(model, shape):
    assert build(model, shape, 7, seed=0)(torch.randn(3, *shape)).shape == (3, 7)


def test_every_catalogue_entry_is_summarised_and_covered_here():
    tested = {model.partition("(")[0] for model, *_ in PAPERS}
    assert tested == set(models)
    assert all(models.summary(name) for name in models)


@pytest.mark.parametrize("model", ["mlr", "mlp(8)", "iot-mlp(8)"])
def test_dense_networks_are_plain_sequentials(model):
    """The stacked executor translates these layers and no others."""
    module = build(model, (12,), 4, seed=0)
    assert type(module) is nn.Sequential
    allowed = (nn.Flatten, nn.Linear, nn.ReLU, nn.BatchNorm1d)
    assert all(type(layer) in allowed for layer in module)


@pytest.mark.parametrize("model", SMALL)
def test_weights_depend_on_the_seed_alone(model):
    first = build(model, (1, 28, 28), 10, seed=3).state_dict()
    torch.randn(10)  # moves the global generator
    again = build(model, (1, 28, 28), 10, seed=3).state_dict()
    other = build(model, (1, 28, 28), 10, seed=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_global_random_state_is_untouched():
    before = torch.get_rng_state()
    build("mlp", (20,), 3, seed=1)
    with pytest.raises(ConfigError):
        build("iot-mlp", (1, 28, 28), 3, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_check_leaves_running_statistics_and_mode_alone():
    norm = build("iot-mlp", (5,), 3, seed=0).norm
    assert norm.training
    assert norm.num_batches_tracked == 0
    assert torch.equal(norm.running_var, torch.ones(5))


@pytest.mark.parametrize("model", sorted(models))
def test_outputs_are_raw_logits(model):
    """Neither probabilities nor log-probabilities: scaling the head scales the output."""
    shape = (30,) if model == "iot-mlp" else (1, 28, 28)
    module = build(model, shape, 10, seed=0).eval()
    x = torch.randn(2, *shape)
    with torch.no_grad():
        logits = module(x)
        for name in head_names(module):
            module.get_parameter(name).mul_(2.0)
        torch.testing.assert_close(module(x), 2 * logits)


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        ("emnist-cnn", (296,), ["emnist-cnn", "images", "296"]),
        ("ppdl-cnn", (3, 64, 64), ["3x32x32", "1x28x28", "3x64x64"]),
        ("blend-cnn", (3, 8, 8), ["16x16", "3x8x8"]),
        ("resnet18-gn", (28, 28), ["images", "28x28"]),
        ("iot-mlp", (1, 28, 28), ["flat", "296", "1x28x28"]),
        ("blend-cnn(groups=7)", (3, 32, 32), ["groups", "64", "7"]),
        ("resnet18-gn(groups=0)", (3, 32, 32), ["groups", "64"]),
        ("mlp(0)", (4,), ["hidden", "at least 1"]),
        ("mlp(many)", (4,), ["hidden", "int", "many"]),
        ("resnet18", (3, 32, 32), ["resnet18-gn"]),
        ("mlp(width=3)", (4,), ["width", "hidden"]),
    ],
)
def test_errors_say_what_the_network_takes(model, shape, said):
    with pytest.raises(ConfigError) as error:
        build(model, shape, 10, seed=0)
    assert all(part in str(error.value) for part in said), str(error.value)


@pytest.mark.parametrize(
    ("hidden", "said"), [(10**11, "does not fit in memory"), (9 * 10**18, "size"), (10**20, "size")]
)
def test_a_network_beyond_all_bounds_is_an_error(hidden, said):
    with pytest.raises(ConfigError, match=rf"model 'mlp\({hidden}\)' cannot be built for .*{said}") as caught:
        build(f"mlp({hidden})", (64,), 10, seed=0)
    assert "\n" not in str(caught.value)


def test_no_classes_is_an_error():
    with pytest.raises(ConfigError, match="0 classes"):
        build("mlr", (4,), 0, seed=0)
