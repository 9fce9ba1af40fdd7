"""Training samples that are changed at random: crops, flips, cut-outs, or by a function of the user's own.

An augmentation is a function of samples x (n, ...) and of a stream with one row of random numbers for each of
them: `stream.uniform(2)` is (n, 2). A sample's numbers follow from the peer, the round, the step and its
place in the mini-batch. So what it becomes depends neither on the executor nor on the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.catalogue import augmentations
from coterie.errors import ConfigError
from coterie.inputs import Inputs
from coterie.randomness import Stream
from coterie.registry import fill, load_reference, parse_call
from coterie.training import parts_of
from coterie.user_code import is_file_reference

Augmentation: TypeAlias = Callable[[Tensor, Stream], Tensor]


@dataclass(frozen=True)
class Augmented:
    """All of `training.augment`, one after the other."""

    parts: tuple[tuple[str, Augmentation], ...]  # with what the user called them

    @classmethod
    def named(cls, text: str) -> Augmented | None:
        """What `crop(4)+flip` or `file.py:function` names; None for nothing."""
        return cls(tuple((part, _named(part)) for part in parts_of(text))) if text else None

    def __call__(self, x: Tensor, stream: Stream, step: int) -> Tensor:
        """x: (rows, batch, ...). stream: of these rows."""
        samples = x.flatten(0, 1)
        for number, (name, part) in enumerate(self.parts):
            changed = part(samples, stream.of_samples(x.shape[1], step, number))
            if not isinstance(changed, Tensor) or changed.shape != samples.shape:
                found = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise ConfigError(
                    f"training.augment {name!r} must return samples of the shape that it was given, "
                    f"{tuple(samples.shape)}, not {found}"
                )
            samples = changed.to(x)
        return samples.view(x.shape)

    def check(self, example: Inputs) -> None:
        """Refuse what cannot change samples such as these."""
        if not isinstance(example, Tensor):
            raise ConfigError(
                "training.augment is for samples of one tensor, such as images; these have several: "
                f"{', '.join(example)}"
            )
        self(example[None], Stream(0, 0, torch.zeros(1, dtype=torch.long)), 0)


def _named(text: str) -> Augmentation:
    if not is_file_reference(text):
        built: Augmentation = augmentations.build(text)
        return built
    function = load_reference(text, "training.augment")
    if not callable(function):
        raise ConfigError(f"training.augment {text!r} is {function!r}, not a function of (x, stream)")
    shown = f"training.augment {text!r}"
    _, positional, keywords = parse_call(text, "training.augment")
    arguments = fill(function, shown, positional, keywords, {"x": None, "stream": None}).arguments
    settings = {key: value for key, value in arguments.items() if value is not None}

    def own(x: Tensor, stream: Stream) -> Tensor:
        try:
            changed: Tensor = function(x, stream, **settings)
        except Exception as error:
            raise ConfigError(f"training.augment {text!r} raised {type(error).__name__}: {error}") from error
        return changed

    return own


def crop(padding: int = 4) -> Augmentation:
    """Random crops of the image's own size from the image with so many zeros around it."""
    _at_least_one("crop", padding)

    def cropped(x: Tensor, stream: Stream) -> Tensor:
        height, width = _image_size("crop", x)
        corner = (stream.uniform(2) * (2 * padding + 1)).long().to(x.device)
        rows = corner[:, :1] + torch.arange(height, device=x.device)
        columns = corner[:, 1:] + torch.arange(width, device=x.device)
        images = pad(x, (padding,) * 4).flatten(1, -3) if x.dim() > 3 else pad(x, (padding,) * 4)[:, None]
        each, channel = torch.arange(len(x), device=x.device), torch.arange(images.shape[1], device=x.device)
        place = (
            each[:, None, None, None],
            channel[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None],
        )
        return images[place].view(x.shape)

    return cropped


def flip() -> Augmentation:
    """Left and right change places in every other image."""

    def flipped(x: Tensor, stream: Stream) -> Tensor:
        _image_size("flip", x)
        turned = (stream.uniform(1) < 0.5).view(-1, *[1] * (x.dim() - 1)).to(x.device)
        return torch.where(turned, x.flip(-1), x)

    return flipped


def cutout(size: int = 8) -> Augmentation:
    """A square of zeros around a random place of each image (DeVries & Taylor, 2017); it may stick out."""
    _at_least_one("cutout", size)

    def cut(x: Tensor, stream: Stream) -> Tensor:
        sides = _image_size("cutout", x)
        first = (stream.uniform(2) * torch.tensor(sides)).long().to(x.device) - size // 2
        inside = []
        for axis, side in enumerate(sides):
            place = torch.arange(side, device=x.device) - first[:, axis : axis + 1]
            inside.append((place >= 0) & (place < size))  # (n, side)
        square = (inside[0][:, :, None] & inside[1][:, None]).view(len(x), *[1] * (x.dim() - 3), *sides)
        return x.masked_fill(square, 0.0)

    return cut


def _image_size(name: str, x: Tensor) -> tuple[int, int]:
    if x.dim() < 3:
        raise ConfigError(
            f"training.augment {name!r} is for images, and a sample here has the shape {tuple(x.shape[1:])}"
        )
    return x.shape[-2], x.shape[-1]


def _at_least_one(name: str, pixels: int) -> None:
    if pixels < 1:
        raise ConfigError(f"training.augment: {name} needs 1 or more pixels, not {pixels}")
