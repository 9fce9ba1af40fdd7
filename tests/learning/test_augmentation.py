"""Random changes of training samples: by hand, and the same however the rows are run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from training_lab import Lab, seeded

from coterie import simulate
from coterie.data import Federation, from_peers
from coterie.errors import ConfigError
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.digest import experiment_digest
from coterie.learning import Augmented, Workers
from coterie.randomness import Stream, stream
from coterie.training import Training

SIDE, CLASSES = 5, 3
SIZES = (7, 4, 1, 9)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Workers(2) as workers:
        yield Lab(workers)


def images(n: int) -> Tensor:
    return torch.arange(1.0, 1 + n * 2 * SIDE * SIDE).view(n, 2, SIDE, SIDE)


def numbers(n: int) -> Stream:
    return stream(3, "test", 0, torch.tensor([7])).of_samples(n)


def changed(text: str, x: Tensor) -> Tensor:
    (part,) = Augmented.named(text).parts  # type: ignore[union-attr]
    return part[1](x, numbers(len(x)))


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    x, padding = images(200), 2
    found, padded = changed("crop(2)", x), pad(x, (padding,) * 4)
    corners = []
    for before, after in zip(padded, found, strict=True):
        windows = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.equal(before[:, i : i + SIDE, j : j + SIDE], after)
        ]
        assert len(windows) == 1
        corners += windows
    assert len(set(corners)) == 25, "every window occurs among 200"


def test_a_flip_exchanges_left_and_right_every_other_time() -> None:
    x = images(200)
    found = changed("flip", x)
    turned = [torch.equal(after, before.flip(-1)) for before, after in zip(x, found, strict=True)]
    assert all(turned[k] or torch.equal(found[k], x[k]) for k in range(200))
    assert 70 < sum(turned) < 130


def test_a_cutout_is_a_square_of_zeros_around_a_pixel() -> None:
    x, size = images(400), 3
    found = changed("cutout(3)", x)
    centres = set()
    for before, after in zip(x, found, strict=True):
        options = []
        for i in range(SIDE):
            for j in range(SIDE):
                by_hand = before.clone()
                by_hand[:, max(0, i - size // 2) : i + 2, max(0, j - size // 2) : j + 2] = 0
                options += [(i, j)] if torch.equal(by_hand, after) else []
        assert len(options) == 1
        centres.update(options)
    assert len(centres) == SIDE * SIDE, "also at the border, where a part of it is outside"


def test_images_without_channels_are_changed_alike() -> None:
    x = images(20)
    for text in ("crop(2)", "flip", "cutout(2)"):
        assert torch.equal(changed(text, x[:, 0]), changed(text, x)[:, 0])


def test_the_numbers_of_a_sample_depend_on_nothing_beside_it() -> None:
    of_two = stream(3, "test", 1, torch.tensor([7, 9]))
    many = of_two.of_samples(5, 4).uniform(3).view(2, 5, 3)
    few = stream(3, "test", 1, torch.tensor([9])).of_samples(2, 4).uniform(3)
    assert torch.equal(many[1, :2], few)
    assert len(many.flatten().unique()) == 30
    for other in (of_two.of_samples(5, 5), stream(3, "test", 2, of_two.ids).of_samples(5, 4)):
        assert not torch.isin(other.uniform(3), many).any(), "another step or round"


def data() -> Federation:
    rng = np.random.default_rng(1)
    each = [(rng.normal(size=(n, 1, SIDE, SIDE)), rng.integers(0, CLASSES, n)) for n in SIZES]
    made = from_peers([{"train": pair, "test": pair} for pair in each], n_classes=CLASSES)
    return Federation(**{**vars(made), "x": made.x.double()})


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 6), nn.ReLU(), nn.Linear(6, CLASSES))


@pytest.mark.parametrize("augment", ["crop(2)+flip", "cutout(2)"])
def test_executors_and_chunks_agree(augment: str, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(epochs=3, batch_size=3, lr=0.1, augment=augment)
    module, federation = seeded(network), data()
    before = federation.x.clone()
    stacked, _ = lab.coterie(module, "stacked", federation, training)
    looped, _ = lab.coterie(module, "looped", federation, training)
    plain, _ = lab.coterie(module, "stacked", federation, Training(epochs=3, batch_size=3, lr=0.1))
    monkeypatch.setattr("coterie.learning.executor._CACHE_BYTES", 1)
    alone, _ = lab.coterie(module, "stacked", federation, training)
    for name, value in stacked.items():
        torch.testing.assert_close(looped[name], value, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(alone[name], value, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(plain["1.weight"], stacked["1.weight"])
    assert torch.equal(federation.x, before), "the data themselves stay"


OWN = """
def shifted(x, stream):
    return x + stream.uniform(1).view(-1, *[1] * (x.dim() - 1))

def wrong(x, stream):
    return x[:1]

def broken(x, stream):
    raise ValueError("no")
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def small(augment: str, **more: Any) -> Any:
    training = {"augment": augment, "batch_size": 16}
    return simulate(algorithm="local", peers=3, rounds=1, training=training, **more)


def test_a_function_of_ones_own(own: str) -> None:
    runs = [small(f"{own}:shifted", execution={"workers": workers}) for workers in (1, 2)]
    plain = small("")
    for name, value in runs[0].params.items():
        assert torch.equal(runs[1].params[name], value)
        assert not torch.equal(plain.params[name], value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crops(4)", "did you mean crop"),
        ("crop(0)", "1 or more pixels"),
        ("{own}:nothing", "defines no nothing"),
        ("{own}:wrong", r"shape that it was given, \(2, .*not \(1, "),
        ("{own}:broken", "broken' raised ValueError: no"),
        ("missing.py:f", "there is no file"),
    ],
)
def test_what_cannot_be_is_refused_before_training(text: str, message: str, own: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(text.format(own=own))


def test_images_only() -> None:
    with pytest.raises(ConfigError, match=r"'flip' is for images, .* shape \(60,\)"):
        small("flip", data="synthetic(0.5,0.5)")


def test_ones_own_function_counts_by_its_content(tmp_path: Path) -> None:
    digests = []
    for folder, content in (("a", OWN), ("b", OWN), ("c", OWN + "\n# changed")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(content)
        table = {"training": {"augment": "flip+own.py:shifted"}}
        digests.append(experiment_digest(resolve(table, base_dir=tmp_path / folder)))
    assert digests[0] == digests[1] != digests[2]
