"""Networks from the user's own file, and the body and head of any module."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from torch import nn

from coterie.errors import ConfigError
from coterie.inputs import shapes_of
from coterie.models import build

SOURCE = '''
import math
from torch import nn
from neighbour import WIDTH

class Both(nn.Module):
    def __init__(self, shape, n_classes):
        super().__init__()
        self.features = nn.Linear(math.prod(shape), WIDTH)
        self.classifier = nn.Linear(WIDTH, n_classes)

    def forward(self, x):
        return self.classifier(self.features(x.flatten(1)).relu())

class Classes(Both):
    def __init__(self, *, n_classes, width=3):
        super().__init__((4,), n_classes)

class Nothing(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

class Inherited(nn.Module):
    """Has nn.Module's own (*args, **kwargs) constructor."""
    def forward(self, x):
        return x[:, :3]

def factory(inputs, outputs):
    return nn.Linear(inputs[0], outputs)

def one_unknown(outputs): ...
def not_a_module(shape): return "text"
class NotAModule: ...
number = 3

class Broken(nn.Module):
    def __init__(self):
        raise RuntimeError("out of luck")

class WrongLogits(nn.Linear):
    def __init__(self):
        super().__init__(4, 7)

class TwoOutputs(nn.Module):
    def forward(self, x):
        return x, x

class NoTensor(nn.Module):
    def forward(self, x):
        return {"scores": x}
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n")
    path = tmp_path / "nets.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", ["Both", "Classes", "Nothing", "Inherited", "factory"])
def test_user_networks_get_the_arguments_they_ask_for(file, name):
    module = build(f"{file}:{name}", (4,), 3, seed=0)
    assert module(torch.zeros(5, 4)).shape == (5, 3)
    again = build(f"{file}:{name}", (4,), 3, seed=0)
    assert type(again) is type(module)
    for first, second in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, second)


def test_an_edited_file_is_loaded_again(tmp_path):
    path = tmp_path / "net.py"
    for width in (2, 3):
        path.write_text(
            "from torch import nn\n"
            f"def net():\n    return nn.Sequential(nn.Linear(4, {width}), nn.Linear({width}, 3))"
        )
        # Two writes may fall into one tick of the file system's clock.
        os.utime(path, ns=(width, width))
        assert build(f"{path}:net", (4,), 3, seed=0)[0].out_features == width


def test_user_modules_can_be_pickled(file):
    module = build(f"{file}:Both", (4,), 3, seed=0)
    copy = pickle.loads(pickle.dumps(module))
    assert torch.equal(copy.classifier.weight, module.classifier.weight)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Bothh", ["defines no Bothh", "did you mean Both"]),
        ("", ["must name a class"]),
        ("NotAModule", ["NotAModule", "torch.nn.Module"]),
        ("number", ["number", "torch.nn.Module"]),
        ("Broken", ["Broken", "RuntimeError", "out of luck"]),
        ("not_a_module", ["returned str"]),
        ("one_unknown", ["required argument: 'outputs'", "Coterie gives shape, n_classes"]),
        ("WrongLogits", ["(2, 4)", "(2, 7)", "(2, 3)"]),
        ("TwoOutputs", ["(2, 4)", "(2, 3)"]),  # the first counts
        ("NoTensor", ["tensor of logits, a tuple that starts with them or an object with .logits, not dict"]),
    ],
)
def test_errors_name_the_file_and_the_reason(file, name, said):
    with pytest.raises(ConfigError) as error:
        build(f"{file}:{name}", (4,), 3, seed=0)
    assert all(part in str(error.value) for part in [*said, "nets.py"]), str(error.value)


def test_a_network_that_cannot_take_the_data_says_both_shapes(file):
    with pytest.raises(ConfigError, match=r"fails on a batch of shape \(2, 5\)"):
        build(f"{file}:Nothing", (5,), 3, seed=0)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        build(f"{tmp_path}/absent.py:Net", (4,), 3, seed=0)
    (tmp_path / "syntax.py").write_text("def net(:\n")
    with pytest.raises(ConfigError, match=r"syntax\.py cannot be loaded: SyntaxError"):
        build(f"{tmp_path}/syntax.py:net", (4,), 3, seed=0)


@pytest.mark.parametrize("ending", ["sys.exit(3)", "sys.exit('usage: net.py')"])
def test_a_file_that_ends_the_program_is_named(tmp_path, ending):
    (tmp_path / "script.py").write_text(f"import sys\n{ending}\n")
    with pytest.raises(ConfigError, match=r"script\.py cannot be loaded: SystemExit"):
        build(f"{tmp_path}/script.py:net", (4,), 3, seed=0)


def test_a_function_that_ends_the_program_is_named(tmp_path):
    (tmp_path / "leaving.py").write_text("import sys\ndef net():\n    sys.exit(3)\n")
    with pytest.raises(ConfigError, match=r"net in .*leaving\.py raised SystemExit: 3"):
        build(f"{tmp_path}/leaving.py:net", (4,), 3, seed=0)


@pytest.mark.parametrize("model", [3, dict, None, [nn.Linear(4, 3)]])
def test_what_cannot_make_a_network_is_refused(model):
    with pytest.raises(ConfigError, match=r"not a torch\.nn\.Module class or a function"):
        build(model, (4,), 3, seed=0)


def test_a_function_without_a_signature_is_refused():
    def net(): ...

    net.__signature__ = "none"  # as for some functions written in C, but in every version of Python
    with pytest.raises(ConfigError, match="net in this program does not say what arguments it takes"):
        build(net, (4,), 3, seed=0)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ({"a": torch.ones(2, 3, 4), "b": torch.ones(2, 0)}, "cannot map inputs a 3x4, b 0 to 2 classes"),
        ({"0": torch.ones(2, 3), "1": torch.ones(2, 0)}, "cannot map inputs 3, 0 to 2 classes"),
    ],
)
def test_inputs_without_numbers_are_refused(example, said):
    with pytest.raises(ConfigError, match=said):
        build(nn.Linear, shapes_of(example), 2, seed=0, example=example)
