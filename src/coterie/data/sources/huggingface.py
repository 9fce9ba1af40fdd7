"""Data sets that the `datasets` package of Hugging Face reads: Parquet files or a folder of them.

Installed with `pip install coterie[huggingface]`. Columns are found by their features: an image
column and a class label, or all numeric columns as one feature vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.own.in_memory import from_arrays
from coterie.data.own.several import Raw, samples
from coterie.data.own.values import one_per_sample
from coterie.data.source import Source
from coterie.data.sources.tiny_imagenet import jpeg_decoder
from coterie.errors import ConfigError, DataError
from coterie.registry import nearest

_USUAL_LABELS = ("label", "labels", "fine_label", "target", "y", "class")


@dataclass(frozen=True)
class HuggingFace:
    """A data set of the Hugging Face `datasets` package: a name, a Parquet file or a folder of them.

    `x` and `label` name columns where guessing fails; `config` picks one of several versions; `natural`
    names a column to keep for the partition of that name. Images are scaled to -1..1, numbers are not.
    """

    default_model: ClassVar[str] = "mlp"
    default_partition: ClassVar[str] = "dirichlet(0.5)"
    needs_files: ClassVar[bool] = False

    name: str
    x: str | None = None
    label: str | None = None
    config: str | None = None
    natural: str | None = None
    test: float = 0.2

    def files(self, data_dir: Path) -> list[Path]:
        """What is in the data folder; a path of one's own counts as a file that the experiment names."""
        place = _place(self.name, data_dir)
        if place is None or place == Path(self.name).expanduser():
            return []
        return [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        parts = _open(self.name, self.config, data_dir)
        train = parts.get("train") or next(iter(parts.values()))
        test = next((parts[name] for name in ("test", "validation", "valid") if name in parts), None)
        test = None if test is train else test
        label = self._label(train.features)
        features = self._features(train.features, label)
        class_names = tuple(getattr(train.features[label], "names", None) or ())
        if self.natural is not None:
            self._require(self.natural, train.features)
        try:
            source = self._read(
                [train] if test is None else [train, test], features, label, class_names, seed
            )
        except DataError as error:
            raise DataError(f"huggingface({self.name}): {error}") from error
        return replace(
            source, other_columns=tuple(name for name in train.features if name not in (self.natural, label))
        )

    def _read(
        self, tables: list[Any], features: list[str], label: str, class_names: tuple[str, ...], seed: int
    ) -> Source:
        """The source of one table, or of one for training and one for testing."""
        x = [read_features(table, features) for table in tables]
        y = [_values(table, label) for table in tables]
        columns: dict[str, Any] = {}
        if self.natural is not None:
            values = [_values(table, self.natural) for table in tables]
            columns[self.natural] = values[0] if len(tables) == 1 else values
        x_test, y_test = (x[1], y[1]) if len(tables) == 2 else (None, None)
        return from_arrays(
            x[0],
            y[0],
            x_test,
            y_test,
            columns,
            test_fraction=self.test,
            seed=seed,
            class_names=class_names,
        )

    def _require(self, column: str, features: dict[str, Any]) -> None:
        if column not in features:
            raise ConfigError(
                f"huggingface({self.name}) has no column {column!r}; {nearest(column, features)}"
            )

    def _label(self, features: dict[str, Any]) -> str:
        if self.label is not None:
            self._require(self.label, features)
            return self.label
        marked = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
        if len(marked) == 1:
            return marked[0]
        for usual in _USUAL_LABELS:
            if usual in features:
                return usual
        raise ConfigError(
            f"huggingface({self.name}): which column is the label? Write label=<one of {', '.join(features)}>"
        )

    def _features(self, features: dict[str, Any], label: str) -> list[str]:
        if self.x is not None:
            self._require(self.x, features)
            return [self.x]
        images = [name for name, feature in features.items() if is_image(feature)]
        if images:
            return images[:1]
        numbers = [
            name
            for name, feature in features.items()
            if name not in (label, self.natural) and is_number(feature)
        ]
        if not numbers:
            raise ConfigError(
                f"huggingface({self.name}): no image or number; write x=<one of {', '.join(features)}>"
            )
        return numbers


def _open(name: str, config: str | None, data_dir: Path | None) -> dict[str, Any]:
    """Splits by name. A path, also below `data_dir`, is preferred to a name on the hub."""
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ConfigError(
            "huggingface(...) needs the package `datasets`: pip install coterie[huggingface]"
        ) from None
    local = _place(name, data_dir)
    try:
        if local is not None and local.is_file():
            return dict(datasets.load_dataset("parquet", data_files=str(local)))
        return dict(datasets.load_dataset(name if local is None else str(local), config))
    except datasets.exceptions.DatasetGenerationError as error:  # its own text says no more than that
        raise DataError(
            f"huggingface({name}) is damaged or has no rows: {error.__cause__ or error}"
        ) from error
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"huggingface({name}): {error}") from error


def _place(name: str, data_dir: Path | None) -> Path | None:
    """The file or folder of this name; None: it is a name on the hub."""
    places = [Path(name).expanduser(), *([] if data_dir is None else [data_dir / name])]
    return next((place for place in places if place.exists()), None)


def is_image(feature: Any) -> bool:
    """An image, as a feature of that name or as the dict of bytes and path that Parquet stores."""
    return type(feature).__name__ == "Image" or (isinstance(feature, dict) and "bytes" in feature)


def is_number(feature: Any) -> bool:
    """One number a row."""
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "bool"))


def read_features(table: Any, columns: list[str]) -> Raw:
    """Images (rows, channels, height, width), numbers (rows, columns), or a column of lists, as of tokens."""
    if len(columns) == 1 and is_image(table.features[columns[0]]):
        return torch.from_numpy(_images(table[columns[0]], columns[0]))
    if len(columns) == 1 and not is_number(table.features[columns[0]]):
        return samples(list(table[columns[0]]), f"column {columns[0]!r}", len(table))
    values = [np.asarray(table[column], dtype=np.float32) for column in columns]
    return torch.from_numpy(np.stack(values, axis=1))


def _values(table: Any, column: str) -> NDArray[Any]:
    return one_per_sample(table[column], f"column {column!r}")


def _images(column: Iterable[Any], name: str) -> NDArray[np.float32]:
    decode = jpeg_decoder()
    stack: list[NDArray[Any]] = []
    try:
        for image in column:
            pixels = decode(image["bytes"]) if isinstance(image, dict) else np.asarray(image)
            stack.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    except (OSError, SyntaxError, TypeError, ValueError) as error:
        raise DataError(f"column {name!r}: row {len(stack)} is not a readable image ({error})") from error
    if len({pixels.shape for pixels in stack}) != 1:
        shapes = sorted({pixels.shape for pixels in stack})
        raise DataError(f"column {name!r}: all images must have one shape; found {shapes[:4]}")
    return np.stack(stack).astype(np.float32) / 127.5 - 1.0
