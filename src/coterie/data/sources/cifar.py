"""CIFAR-10 and CIFAR-100 in their "binary version", packed or unpacked.

The "python version" is a pickle, which runs what it contains, so it is refused.
"""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.data.source import Source
from coterie.data.sources.files import DAMAGED, read_bytes, scaled
from coterie.errors import DataError

_PIXELS = 3 * 32 * 32
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class _Cifar:
    """Where the files are; a record is `label_bytes` bytes, the last one the label, and 3,072 pixels."""

    name: str
    folders: tuple[str, ...]
    train: str  # pattern of file names
    test: str
    names: str
    label_bytes: int
    classes: int

    def load(self, data_dir: Path, class_names: tuple[str, ...] = ()) -> Source:
        place, files = self._read(data_dir)
        train, test = (self._part(files, pattern, place) for pattern in (self.train, self.test))
        stored = _words(files.get(self.names, b""))
        names = stored if len(stored) == self.classes else class_names
        return Source(*train, *test, n_classes=self.classes, names=names)

    def _part(self, files: dict[str, bytes], pattern: str, place: str) -> tuple[Tensor, Tensor]:
        matching = sorted(name for name in files if re.fullmatch(pattern, name))
        if not matching:
            wanted = pattern.replace("\\d+", "1").replace("\\", "")
            raise DataError(
                f"{place} has no file {wanted}; it has {', '.join(sorted(files)) or 'no .bin files'}"
            )
        return self._records(
            b"".join(self._whole(files[name], f"{place}: {name}") for name in matching), place
        )

    def files(self, data_dir: Path) -> list[Path]:
        """The archive, or what is in the folder."""
        place = self._place(data_dir)
        if place.is_file():
            return [place]
        return [file for file in place.iterdir() if file.suffix in (".bin", ".txt")]

    def _read(self, data_dir: Path) -> tuple[str, dict[str, bytes]]:
        place = self._place(data_dir)
        if place.is_file():
            return str(place), _unpack(place)
        return str(place), {file.name: read_bytes(file) for file in self.files(data_dir)}

    def _place(self, data_dir: Path) -> Path:
        folders = [place for name in self.folders for place in (data_dir / name, data_dir / self.name / name)]
        archives = [
            f"{self.name}-binary.tar.gz",
            f"{self.name}/{self.name}-binary.tar.gz",
            f"{self.name}-binary.tar",
        ]
        found = [folder for folder in folders if folder.is_dir()]
        found += [data_dir / archive for archive in archives if (data_dir / archive).is_file()]
        if found:
            return found[0]
        hint = ""
        if any((data_dir / f"{self.name}{end}").exists() for end in ("-python.tar.gz", "-batches-py")):
            hint = "; the python version is a pickle and is not read, download the binary version"
        raise DataError(
            f"{self.name} not found in {data_dir}; expected {archives[0]} or folder {self.folders[0]}{hint}"
        )

    def _whole(self, content: bytes, where: str) -> bytes:
        record = self.label_bytes + _PIXELS
        if not content or len(content) % record:
            raise DataError(
                f"{where} has {len(content)} bytes, not a multiple of {record} "
                f"({self.label_bytes} label + {_PIXELS} pixel bytes a record); it is truncated or damaged"
            )
        return content

    def _records(self, content: bytes, place: str) -> tuple[Tensor, Tensor]:
        records = np.frombuffer(content, np.uint8).reshape(-1, self.label_bytes + _PIXELS)
        labels = records[:, self.label_bytes - 1].astype(np.int64)
        if labels.max() >= self.classes:
            raise DataError(f"{place} holds the label {labels.max()}; expected 0 to {self.classes - 1}")
        images = records[:, self.label_bytes :].copy().reshape(-1, 3, 32, 32)
        return scaled(images, 0.5, 0.5), torch.from_numpy(labels)


def _words(content: bytes) -> tuple[str, ...]:
    """Class names, or none: what cannot be read is no reason to refuse the images."""
    try:
        return tuple(content.decode().split())
    except UnicodeDecodeError:
        return ()


def _unpack(archive: Path) -> dict[str, bytes]:
    """The .bin and .txt files of an archive, read in place: nothing is written to disk."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if member.isfile() and name.endswith((".bin", ".txt")):
                    content = tar.extractfile(member)
                    assert content is not None
                    files[name] = content.read()
    except (tarfile.TarError, *DAMAGED) as error:
        raise DataError(f"{archive} is truncated or damaged ({error}); download it again") from error
    return files


_CIFAR10 = _Cifar(
    "cifar-10",
    ("cifar-10-batches-bin", "cifar-10-binary"),
    r"data_batch_\d+\.bin",
    r"test_batch\.bin",
    "batches.meta.txt",
    label_bytes=1,
    classes=10,
)
_CIFAR100 = _Cifar(
    "cifar-100",
    ("cifar-100-binary",),
    r"train\.bin",
    r"test\.bin",
    "fine_label_names.txt",
    label_bytes=2,
    classes=100,
)


@dataclass(frozen=True)
class Cifar10:
    """Ten kinds of objects, 32x32 colour, pixels scaled to -1..1 (mean 0.5, deviation 0.5)."""

    default_model: ClassVar[str] = "ppdl-cnn"
    default_partition: ClassVar[str] = "dirichlet(0.3)"
    needs_files: ClassVar[bool] = True

    def files(self, data_dir: Path) -> list[Path]:
        return _CIFAR10.files(data_dir)

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        assert data_dir is not None
        return _CIFAR10.load(data_dir, CIFAR10_NAMES)


@dataclass(frozen=True)
class Cifar100:
    """A hundred kinds of objects (fine labels), 32x32 colour, pixels scaled to -1..1."""

    default_model: ClassVar[str] = "blend-cnn"
    default_partition: ClassVar[str] = "dirichlet(0.3)"
    needs_files: ClassVar[bool] = True

    def files(self, data_dir: Path) -> list[Path]:
        return _CIFAR100.files(data_dir)

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        assert data_dir is not None
        return _CIFAR100.load(data_dir)
