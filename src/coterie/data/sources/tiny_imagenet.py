"""Tiny ImageNet from its zip file or the unpacked folder; needs Pillow to decode JPEG."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.source import Source
from coterie.data.sources.files import as_text, scaled
from coterie.errors import ConfigError, DataError

_ROOT = "tiny-imagenet-200"
_SIDE = 64
Listing = list[tuple[str, int]]  # (file, label)
Read = Callable[[str], bytes]


@dataclass(frozen=True)
class TinyImagenet:
    """200 kinds of objects, 64x64 colour, pixels scaled to -1..1; the official val part is the test set.

    `per_class` reads only that many training images of each class: all of them take 5 GB.
    """

    default_model: ClassVar[str] = "resnet18-gn"
    default_partition: ClassVar[str] = "dirichlet(0.3)"
    needs_files: ClassVar[bool] = True

    per_class: int | None = None

    def __post_init__(self) -> None:
        if self.per_class is not None and self.per_class < 1:
            raise ConfigError(f"tiny-imagenet: per_class must be at least 1, not {self.per_class}")

    def files(self, data_dir: Path) -> list[Path]:
        place = _place(data_dir)
        return [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        assert data_dir is not None
        with _opened(data_dir) as (place, names, read):
            wnids = _text(read, "wnids.txt", place).split()
            label = {wnid: number for number, wnid in enumerate(wnids)}
            train, test = _train(names, label, self.per_class), _validation(read, names, label, place)
            for part, listing in (("training", train), ("validation", test)):
                if not listing:
                    raise DataError(f"{place} holds no {part} images of the classes in wnids.txt")
            decoded, decoded_test = _decode(train, read, place), _decode(test, read, place)
            words = _words(read, names, place)
        return Source(
            *decoded,
            *decoded_test,
            n_classes=len(wnids),
            names=tuple(words.get(wnid, wnid) for wnid in wnids),
        )


def _place(data_dir: Path) -> Path:
    """The unpacked folder, or the zip file."""
    for folder in (data_dir / _ROOT, data_dir / "tiny-imagenet", data_dir / "tiny-imagenet" / _ROOT):
        if (folder / "wnids.txt").is_file():
            return folder
    for archive in (data_dir / f"{_ROOT}.zip", data_dir / "tiny-imagenet" / f"{_ROOT}.zip"):
        if archive.is_file():
            return archive
    raise DataError(f"tiny-imagenet not found in {data_dir}; expected {_ROOT}.zip or the folder {_ROOT}")


@contextmanager
def _opened(data_dir: Path) -> Iterator[tuple[Path, list[str], Read]]:
    """The place of the data, the files in it, and a function that reads one: alike for zip and folder."""
    place = _place(data_dir)
    if place.is_dir():
        names = sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())
        yield place, names, lambda name: (place / name).read_bytes()
        return
    try:
        with zipfile.ZipFile(place) as packed:
            inside = (name for name in packed.namelist() if not name.endswith("/"))
            names = sorted(name.removeprefix(f"{_ROOT}/") for name in inside)
            yield place, names, lambda name: packed.read(f"{_ROOT}/{name}")
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{place} is truncated or damaged ({error}); download it again") from error


def _text(read: Read, name: str, place: Path) -> str:
    try:
        return as_text(read(name), f"{place}: {name}")
    except (KeyError, FileNotFoundError):
        raise DataError(f"{place} has no file {name}") from None


def _train(names: list[str], label: dict[str, int], per_class: int | None) -> Listing:
    listing: Listing = []
    seen: dict[str, int] = {}
    for name in names:
        parts = name.split("/")
        if len(parts) != 4 or parts[0] != "train" or parts[2] != "images" or parts[1] not in label:
            continue
        seen[parts[1]] = seen.get(parts[1], 0) + 1
        if per_class is None or seen[parts[1]] <= per_class:
            listing.append((name, label[parts[1]]))
    return listing


def _validation(read: Read, names: list[str], label: dict[str, int], place: Path) -> Listing:
    """`val_annotations.txt` has a line per image: file, class, box. (The test part has no labels.)"""
    listing: Listing = []
    for line in _text(read, "val/val_annotations.txt", place).splitlines():
        fields = line.split("\t")
        if len(fields) >= 2 and fields[1] in label:
            listing.append((f"val/images/{fields[0]}", label[fields[1]]))
    missing = {name for name, _ in listing} - set(names)
    if missing:
        raise DataError(
            f"{place}: val_annotations.txt lists {len(missing)} missing images, such as {min(missing)}"
        )
    return listing


def _words(read: Read, names: list[str], place: Path) -> dict[str, str]:
    if "words.txt" not in names:
        return {}
    lines = (line.partition("\t") for line in _text(read, "words.txt", place).splitlines())
    return {wnid: words.split(",")[0].strip() for wnid, _, words in lines}


def _decode(listing: Listing, read: Read, place: Path) -> tuple[Tensor, Tensor]:
    decode = jpeg_decoder()
    images = np.empty((len(listing), 3, _SIDE, _SIDE), dtype=np.uint8)
    for row, (name, _) in enumerate(listing):
        try:
            pixels = decode(read(name))
        except (OSError, SyntaxError) as error:
            raise DataError(f"{place}: {name} is not a readable image ({error})") from error
        if pixels.shape != (_SIDE, _SIDE, 3):
            raise DataError(f"{place}: {name} has {pixels.shape[1]}x{pixels.shape[0]} pixels, expected 64x64")
        images[row] = pixels.transpose(2, 0, 1)
    return scaled(images, 0.5, 0.5), torch.tensor([label for _, label in listing])


def jpeg_decoder() -> Callable[[bytes], NDArray[np.uint8]]:
    """A function from the bytes of an image file to (height, width, 3); some images are grey."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("reading image files needs Pillow: pip install pillow") from None
    return lambda content: np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
