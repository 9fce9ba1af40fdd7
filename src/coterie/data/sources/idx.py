"""MNIST, Fashion-MNIST and EMNIST from their IDX files.

An IDX file is two zero bytes, a type byte (8: unsigned bytes), the number of dimensions, one
big-endian 32-bit size for each, then the values.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.source import Source
from coterie.data.sources.files import find, read_bytes, scaled
from coterie.errors import DataError

_UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes."""
    content = read_bytes(path)
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, _UNSIGNED_BYTE, dimensions)):
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions: it starts with "
            f"{content[:4].hex(' ')}, expected 00 00 08 {dimensions:02x}"
        )
    if len(content) < header:
        raise DataError(f"{path} ends within its header, after {len(content)} of {header} bytes")
    sizes = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(sizes):
        raise DataError(
            f"{path} announces {' x '.join(map(str, sizes))} = {math.prod(sizes)} values but holds "
            f"{len(content) - header}; it is truncated or damaged"
        )
    # A copy, because the bytes object cannot be written to and torch insists that it can.
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes).copy()


def read_pair(images: Path, labels: Path, classes: int) -> tuple[NDArray[np.uint8], Tensor]:
    """Images and labels that belong together."""
    pixels, numbers = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(numbers):
        raise DataError(f"{images} holds {len(pixels)} images but {labels} holds {len(numbers)} labels")
    if not pixels.size:
        raise DataError(
            f"{images} holds {' x '.join(map(str, pixels.shape))} pixels; expected at least one image"
        )
    if numbers.max() >= classes:
        raise DataError(f"{labels} holds the label {numbers.max()}; expected 0 to {classes - 1}")
    return pixels, torch.from_numpy(numbers.astype(np.int64))


@dataclass(frozen=True)
class _Idx:
    """Where a data set's four files are and how its pixels are normalised."""

    folders: tuple[str, ...]
    train: str  # with {part} for `images` + dimensions, or `labels` + dimensions
    test: str
    mean: float
    std: float
    classes: int = 10
    transposed: bool = False

    def load(self, data_dir: Path, class_names: tuple[str, ...]) -> Source:
        train, test = self._part(data_dir, self.train), self._part(data_dir, self.test)
        if train[0].shape[1:] != test[0].shape[1:]:
            images = [self._find(data_dir, pattern, "images", 3) for pattern in (self.train, self.test)]
            sizes = [" x ".join(map(str, part[0].shape[2:])) for part in (train, test)]
            raise DataError(
                f"{images[0]} holds images of {sizes[0]} pixels, {images[1]} of {sizes[1]}; expected one size"
            )
        return Source(*train, *test, n_classes=self.classes, names=class_names)

    def files(self, data_dir: Path) -> list[Path]:
        kinds = (("images", 3), ("labels", 1))
        return [self._find(data_dir, part, *kind) for part in (self.train, self.test) for kind in kinds]

    def _part(self, data_dir: Path, pattern: str) -> tuple[Tensor, Tensor]:
        images, labels = (
            self._find(data_dir, pattern, "images", 3),
            self._find(data_dir, pattern, "labels", 1),
        )
        pixels, numbers = read_pair(images, labels, self.classes)
        if self.transposed:
            pixels = np.ascontiguousarray(pixels.transpose(0, 2, 1))
        return scaled(pixels, self.mean, self.std).unsqueeze(1), numbers

    def _find(self, data_dir: Path, pattern: str, part: str, dimensions: int) -> Path:
        # The same files are spelled train-images-idx3-ubyte and train-images.idx3-ubyte.
        names = [pattern.format(f"{part}{dot}idx{dimensions}-ubyte") for dot in "-."]
        candidates = [f"{folder}/{name}" for folder in self.folders for name in names]
        return find(data_dir, candidates, f"{self.folders[0]} {part}")


_MNIST = _Idx(("mnist", "MNIST/raw"), "train-{}", "t10k-{}", mean=0.1307, std=0.3081)
_FASHION = _Idx(("fashion-mnist", "FashionMNIST/raw"), "train-{}", "t10k-{}", mean=0.5, std=0.5)
_EMNIST = _Idx(
    ("emnist", "EMNIST/raw", "gzip"),
    "emnist-balanced-train-{}",
    "emnist-balanced-test-{}",
    mean=0.5,
    std=0.5,
    classes=47,
    transposed=True,
)
_FASHION_NAMES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle-boot",
)


@dataclass(frozen=True)
class Mnist:
    """Handwritten digits, 28x28, normalised with mean 0.1307 and deviation 0.3081."""

    default_model: ClassVar[str] = "mlp"
    default_partition: ClassVar[str] = "digit-pairs(0.5)"
    needs_files: ClassVar[bool] = True

    def files(self, data_dir: Path) -> list[Path]:
        return _MNIST.files(data_dir)

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        assert data_dir is not None
        return _MNIST.load(data_dir, ())


@dataclass(frozen=True)
class FashionMnist:
    """Ten kinds of clothes, 28x28, pixels scaled to -1..1 (mean 0.5, deviation 0.5)."""

    default_model: ClassVar[str] = "mlp"
    default_partition: ClassVar[str] = "dirichlet(0.3)"
    needs_files: ClassVar[bool] = True

    def files(self, data_dir: Path) -> list[Path]:
        return _FASHION.files(data_dir)

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        assert data_dir is not None
        return _FASHION.load(data_dir, _FASHION_NAMES)


@dataclass(frozen=True)
class Emnist:
    """EMNIST balanced, 47 letters and digits, 28x28, pixels scaled to -1..1.

    The official files store every image transposed; here they stand upright.
    """

    default_model: ClassVar[str] = "emnist-cnn-bn"
    default_partition: ClassVar[str] = "dirichlet(0.1)"
    needs_files: ClassVar[bool] = True

    def files(self, data_dir: Path) -> list[Path]:
        return [*_EMNIST.files(data_dir), *_mappings(data_dir)[:1]]

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        assert data_dir is not None
        return _EMNIST.load(data_dir, _characters(data_dir))


def _mappings(data_dir: Path) -> list[Path]:
    """The mapping files that are there, of which the first counts."""
    places = (data_dir / folder / "emnist-balanced-mapping.txt" for folder in _EMNIST.folders)
    return [path for path in places if path.exists()]


def _characters(data_dir: Path) -> tuple[str, ...]:
    """Class names from the mapping file (label, ASCII code); none if the file was not downloaded."""
    for path in _mappings(data_dir)[:1]:
        try:
            rows = (line.split() for line in path.read_text().splitlines() if line.strip())
            table = {int(row[0]): int(row[1]) for row in rows}
            return tuple(chr(table[label]) for label in range(_EMNIST.classes))
        except (IndexError, KeyError, ValueError) as error:
            raise DataError(f"{path}: expected 47 lines, each a label and an ASCII code ({error})") from error
    return ()
