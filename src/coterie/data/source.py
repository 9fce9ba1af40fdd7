"""A data set before it is split among peers, and the catalogue of data sets by name."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.catalogue import sources
from coterie.data.federation import Federation
from coterie.data.targets import Groups, Targets
from coterie.errors import ConfigError, DataError
from coterie.inputs import Inputs, Shapes, count, named, shapes_of

Column = tuple[NDArray[Any], NDArray[Any]]

# Far beyond any data set of the papers (200 classes), while a table of peers by classes still fits in memory.
MOST_CLASSES = 1_000_000
_SAMPLES = {torch.float32, torch.int64, torch.uint8, torch.bool}


@dataclass(frozen=True)
class Source:
    """Normalised samples and labels. `columns` hold, per sample, what `natural(column)` splits by."""

    x_train: Inputs  # (n_train, *shape), of one tensor or of several
    y_train: Tensor  # (n_train,) int64, or as `coterie.data.targets` says
    x_test: Inputs
    y_test: Tensor
    n_classes: int
    names: tuple[str, ...] = ()  # of the classes; without any, their numbers
    columns: dict[str, Column] = field(default_factory=dict)  # name -> (train values, test values)
    own_tasks: bool = False  # every peer has a task of its own: only `natural` makes sense
    other_columns: tuple[str, ...] = ()  # not kept, but `natural=<column>` in the data's arguments would
    targets: Targets = "classes"  # what y holds; n_classes then counts labels, numbers or tokens

    def __post_init__(self) -> None:
        refuse_too_many_classes(self.n_classes)
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if count(x) != len(y):
                raise DataError(f"{part} data: {count(x)} samples but {len(y)} labels")
            types = {tensor.dtype for tensor in named(x).values()}
            wanted = torch.float32 if self.targets in ("labels", "numbers") else torch.int64
            if not types <= _SAMPLES or y.dtype != wanted:
                raise DataError(
                    f"{part} data must be samples of float32 or int64 and targets of {wanted}, not "
                    f"{', '.join(map(str, types))} and {y.dtype}; coterie.data.from_arrays converts them"
                )
            if self.targets != "classes":
                continue
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.n_classes:
                raise DataError(
                    f"{part} labels run from {int(y.min())} to {int(y.max())}; "
                    f"{self.n_classes} classes need labels 0 to {self.n_classes - 1}"
                )
        if shapes_of(self.x_train) != shapes_of(self.x_test):
            raise DataError(
                f"train samples have shape {shapes_of(self.x_train)}, "
                f"test samples {shapes_of(self.x_test)}; they must be equal"
            )

    @functools.cached_property
    def groups(self) -> Groups:
        """By what partitions deal samples out: classes, or bins of numbers."""
        return Groups(self.targets, self.n_classes, self.y_train)

    @functools.cached_property
    def group_train(self) -> NDArray[np.int64]:
        """(n_train,) the group of each sample."""
        return self.groups.of(self.y_train).numpy()

    @functools.cached_property
    def group_test(self) -> NDArray[np.int64]:
        """(n_test,) the group of each sample."""
        return self.groups.of(self.y_test).numpy()

    @property
    def group_names(self) -> tuple[str, ...]:
        return self.groups.names(self.class_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.names or tuple(map(str, range(self.n_classes)))

    @property
    def shape(self) -> Shapes:
        """Shape of one sample; of each of its inputs, where it has several."""
        return shapes_of(self.x_train)


def refuse_too_many_classes(n_classes: int) -> None:
    """Labels that are identifiers would make a class of every number up to the largest."""
    if n_classes > MOST_CLASSES:
        raise DataError(
            f"{n_classes:,} classes (the largest label + 1) are more than the {MOST_CLASSES:,} that Coterie "
            "takes; number the labels 0, 1, 2, ..., or give from_arrays names, such as y.astype(str)"
        )


class DataSet(Protocol):
    """What stands behind a name such as `mnist`: how to load it and what goes well with it.

    One that reads files also has `files(data_dir)`, which names them, so that a run can tell when they are no
    longer those that it began with; a DataError if they are not there.
    """

    @property
    def default_model(self) -> str: ...

    @property
    def default_partition(self) -> str: ...

    @property
    def needs_files(self) -> bool: ...

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source: ...


@runtime_checkable
class Generated(Protocol):
    """A data set whose samples are computed when they are needed: a pure function of seed and peer."""

    def deal(
        self,
        peers: int,
        seed: int,
        *,
        validation: float,
        samples_per_peer: int | None,
        test_samples_per_peer: int | None,
    ) -> Federation:
        """Everyone's data; arguments as those of `coterie.data.split`."""
        ...

    def total_bytes(self, peers: int, seed: int) -> int:
        """Of the samples of all peers, if they were all in memory."""
        ...


def load(data: str, *, data_dir: str | Path | None = None, peers: int, seed: int) -> Source:
    """Load the data set that `data` names, such as `mnist` or `synthetic(0.5,0.5)`.

    Files are looked for in `data_dir`, or in the folder that the environment variable COTERIE_DATA
    names. Nothing is downloaded.
    """
    if peers < 1:
        raise ConfigError(f"peers must be at least 1, not {peers}")
    dataset: DataSet = sources.build(data)
    folder = data_dir if data_dir is not None else os.environ.get("COTERIE_DATA") or None
    path = None if folder is None else Path(folder).expanduser()
    if dataset.needs_files:
        if path is None:
            raise DataError(
                f"data set {data!r} is read from files: set data_dir (or the environment variable "
                "COTERIE_DATA) to the folder that holds them"
            )
        if not path.is_dir():
            raise DataError(f"the data folder {path} does not exist; data set {data!r} is read from it")
    return dataset.load(path, peers, seed)


def hold_out(groups: NDArray[Any], fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark about `fraction` of each group for testing; a group of two or more keeps both parts."""
    if not 0.0 < fraction < 1.0:
        raise ConfigError(f"the test fraction must lie between 0 and 1, not {fraction}")
    held = np.zeros(len(groups), dtype=bool)
    _, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    shuffled = rng.permutation(len(groups))
    order = shuffled[np.argsort(codes[shuffled], kind="stable")]
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    wanted = np.clip(np.rint(fraction * counts), np.minimum(1, counts - 1), np.maximum(counts - 1, 0))
    held[order] = rank < np.repeat(wanted, counts)
    return held
