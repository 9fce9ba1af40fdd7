"""What of a network is frozen, what peers' models are made of, and what patterns of names match."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.errors import ConfigError
from coterie.models import Parts, check_shared, copy_of, frozen_names, head_names, model_tree, still_layers
from coterie.models.parts import matching


class Net(nn.Module):
    """Two normalised blocks, a constant of its own, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.top = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)
        self.register_buffer("constant", torch.ones(2), persistent=False)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.top(self.encoder(x)))


def partly_frozen() -> Net:
    net = Net()
    net.encoder.requires_grad_(False)
    return net


ENCODER = {f"encoder.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")}
STATISTICS = {"encoder.1.running_mean", "encoder.1.running_var"}


def test_nothing_is_frozen_where_everything_trains() -> None:
    net = Net()
    assert frozen_names(net) == frozenset()
    assert still_layers(net) == []
    floats = {name for name, value in net.state_dict().items() if value.is_floating_point()}
    assert set(model_tree(net)) == floats | {"constant"}


def test_frozen_parameters_take_their_layers_statistics_with_them() -> None:
    net = partly_frozen()
    assert frozen_names(net) == ENCODER | STATISTICS | {"constant"}
    assert still_layers(net) == ["encoder.1"]
    rest = {name for name in Net().state_dict() if name.startswith(("top", "head")) or name == "mean"}
    assert set(model_tree(net)) == rest - {"top.1.num_batches_tracked"}


def test_statistics_move_as_long_as_one_parameter_of_their_layer_trains() -> None:
    net = partly_frozen()
    net.encoder[1].bias.requires_grad_()  # type: ignore[union-attr]
    assert frozen_names(net) == ENCODER - {"encoder.1.bias"} | {"constant"}
    assert still_layers(net) == []


def test_a_copy_shares_what_is_frozen_and_nothing_else() -> None:
    net = partly_frozen()
    mine, frozen = copy_of(net), frozen_names(net)
    theirs = dict([*net.named_parameters(), *net.named_buffers()])
    for name, value in [*mine.named_parameters(), *mine.named_buffers()]:
        assert (value is theirs[name]) is (name in frozen), name
        assert torch.equal(value, theirs[name])


def test_the_head_is_the_last_linear_layer() -> None:
    assert head_names(Net()) == ("head.weight", "head.bias")
    assert head_names(nn.Linear(2, 2)) == ("weight", "bias")
    assert head_names(nn.Sequential(nn.Conv2d(1, 1, 3))) == ()


def test_a_frozen_head_is_none() -> None:
    net = Net()
    net.head.requires_grad_(False)
    assert head_names(net) == ()
    assert Parts.of(net).head == ()


NAMES = (
    "encoder.layer.0.query.lora_A.default.weight",
    "encoder.layer.0.query.lora_B.default.weight",
    "encoder.layer.10.query.lora_A.default.weight",
    "classifier.weight",
    "classifier.bias",
    "my_classifier.weight",
)


@pytest.mark.parametrize(
    ("patterns", "places"),
    [
        ("lora_A", (0, 2)),
        ("lora_?", (0, 1, 2)),
        ("lora_*", (0, 1, 2)),
        ("layer.0", (0, 1)),
        ("layer.0.*.lora_A", (0,)),
        ("classifier", (3, 4)),  # whole parts only
        ("*classifier", (3, 4, 5)),
        ("classifier.bias", (4,)),
        ("lora_A | classifier", (0, 2, 3, 4)),
        ("!classifier", (0, 1, 2, 5)),
        ("*|!lora_B", (0, 2, 3, 4, 5)),
        ("lora_A|!layer.10", (0,)),
        ("*", (0, 1, 2, 3, 4, 5)),
        ("Classifier", ()),
    ],
)
def test_patterns(patterns: str, places: tuple[int, ...]) -> None:
    assert matching(NAMES, patterns) == tuple(NAMES[place] for place in places)


def test_what_is_not_shared_is_the_head_and_stays_at_home() -> None:
    parts = Parts.of(partly_frozen(), "top.0|mean")
    assert set(parts.body) == {"top.0.weight", "top.0.bias", "mean"}
    assert set(parts.head) == {
        *(f"top.1.{n}" for n in ("weight", "bias", "running_mean", "running_var")),
        "head.weight",
        "head.bias",
    }
    assert parts.at_home == parts.head
    assert Parts.of(partly_frozen()).at_home == ()


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        ("tip", "'tip' matches no parameter of the model; what trains: top.0.weight, "),
        ("top|haed", "'haed' matches no parameter"),
        ("encoder", "'encoder' matches only frozen parameters, such as encoder.0.bias, which never travel"),
        ("top|!*", "lets nothing of model 'net' travel"),
        (" | ", "holds no pattern"),
        ("!", "holds no pattern"),
    ],
)
def test_patterns_that_cannot_be_meant(shared: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_shared({"net": partly_frozen()}, shared)
    assert said in str(error.value)


def test_a_pattern_may_match_in_one_of_several_networks() -> None:
    check_shared({"net": Net(), "line": nn.Sequential(nn.Linear(2, 2))}, "top|0")
    with pytest.raises(ConfigError, match="nothing of model 'line'"):
        check_shared({"net": Net(), "line": nn.Sequential(nn.Linear(2, 2))}, "top")
