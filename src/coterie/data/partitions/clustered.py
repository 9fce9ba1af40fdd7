"""Partitions with clusters of peers that share a task: the covariate and label shifts of PPDL and DAC."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from coterie.data.partitions.iid import shuffle_evenly
from coterie.data.partitions.partition import (
    Assignment,
    ByClass,
    Ints,
    class_stock,
    even_sizes,
    owners,
    proportional_sizes,
)
from coterie.data.source import Source
from coterie.errors import ConfigError, DataError
from coterie.registry import nearest

NAMED_GROUPS = {
    "animals": ("bird", "cat", "deer", "dog", "frog", "horse"),
    "vehicles": ("airplane", "automobile", "ship", "truck"),
}
"""Groups of CIFAR-10 classes; any other data set with these class names may use them."""

_MOST_CLUSTERS = 100_000  # each needs a peer of its own, and far fewer already differ by less than a pixel
_MOST_DIGITS = 15  # of a number that a user typed; every one of them is a float without rounding


@dataclass(frozen=True)
class Rotations:
    """Clusters of peers whose images are all turned by the same angle."""

    degrees: tuple[float, ...]
    weights: tuple[float, ...]

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        if not isinstance(source.x_train, Tensor) or len(source.shape) < 2:
            raise DataError(f"rotations needs images; the samples of this data set have shape {source.shape}")
        sizes = proportional_sizes(np.array(self.weights), peers)
        clusters = np.repeat(np.arange(len(sizes)), sizes)
        owner = shuffle_evenly(source, peers, rng)
        return Assignment(
            owner, clusters=clusters, degrees=np.array(self.degrees)[clusters], common_test=False
        )


def rotations(*angles: str) -> Rotations:
    """Clusters by rotated images: rotations(4), or angle:peers as in rotations(0:70,180:20,350:5,10:5)."""
    if not angles:
        raise ConfigError(
            "rotations needs a number of clusters or angles: rotations(4) or rotations(0:70,180:30)"
        )
    if len(angles) == 1 and ":" not in angles[0]:
        clusters = _whole(angles[0], "rotations: the number of clusters")
        if clusters > _MOST_CLUSTERS:
            raise ConfigError(
                f"rotations: at most {_MOST_CLUSTERS:,} clusters are possible, not {clusters:,}"
            )
        return Rotations(tuple(360.0 * i / clusters for i in range(clusters)), (1.0,) * clusters)
    degrees, weights = [], []
    for text in angles:
        angle, weight = _weighted(text, "rotations")
        try:
            degrees.append(float(angle) % 360.0)
        except ValueError:
            raise ConfigError(f"rotations: {angle!r} is not an angle in degrees") from None
        weights.append(weight)
    if len(set(degrees)) < len(degrees) or not all(map(math.isfinite, degrees)):
        raise ConfigError(
            f"rotations: the angles {', '.join(angles)} must be finite and differ from each other"
        )
    return Rotations(tuple(degrees), tuple(weights))


@dataclass(frozen=True)
class LabelGroups(ByClass):
    """Clusters of peers that know only their group of labels."""

    groups: tuple[str, ...]
    weights: tuple[float, ...]

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        members = np.zeros((len(self.groups), source.groups.count), dtype=bool)
        for row, group in enumerate(self.groups):
            members[row, group_labels(group, source)] = True
        sizes = proportional_sizes(np.array(self.weights), peers)
        return share_labels(source, members, np.repeat(np.arange(len(sizes)), sizes), rng)


def label_groups(*groups: str) -> LabelGroups:
    """Clusters by labels: label-groups(animals:60,vehicles:40) or label-groups(0+1+8+9,2+3+4+5+6+7)."""
    if not groups:
        raise ConfigError(
            "label-groups needs groups: label-groups(animals,vehicles) or label-groups(0+1,2+3)"
        )
    named = [_weighted(text, "label-groups") for text in groups]
    return LabelGroups(tuple(name for name, _ in named), tuple(weight for _, weight in named))


@dataclass(frozen=True)
class LabelPairs(ByClass):
    """Labels paired at random, one cluster of peers for each pair, equally many samples of both."""

    clusters: int = 5

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        present = np.flatnonzero(class_stock(source))
        if not 1 <= self.clusters <= len(present) // 2:
            raise DataError(
                f"label-pairs({self.clusters}) needs {2 * self.clusters} {source.groups.called}; there are "
                f"{len(present)}, enough for 1 to {len(present) // 2} clusters"
            )
        pairs = rng.permutation(present)[: 2 * self.clusters].reshape(-1, 2)
        members = np.zeros((self.clusters, source.groups.count), dtype=bool)
        members[np.arange(self.clusters)[:, None], pairs] = True
        sizes = proportional_sizes(np.ones(self.clusters), peers)
        return share_labels(source, members, np.repeat(np.arange(self.clusters), sizes), rng)


def share_labels(source: Source, members: np.ndarray, clusters: Ints, rng: np.random.Generator) -> Assignment:
    """Share the samples of each label equally among all peers whose cluster knows that label."""
    stock = class_stock(source)
    counts = np.zeros((len(clusters), len(stock)), dtype=np.int64)
    for k in np.flatnonzero(members.any(0)):
        peers = np.flatnonzero(members[clusters, k])
        counts[peers, k] = rng.permutation(even_sizes(int(stock[k]), len(peers)))
    return Assignment(owners(source, counts, rng), clusters=clusters)


def group_labels(group: str, source: Source) -> list[int]:
    """The labels of `animals`, `cat+dog` or `3+5`."""
    parts = NAMED_GROUPS[group] if group in NAMED_GROUPS else tuple(part.strip() for part in group.split("+"))
    labels = []
    for part in parts:
        if part in source.group_names:
            labels.append(source.group_names.index(part))
        elif _is_whole(part) and int(part) < source.groups.count:
            labels.append(int(part))
        else:
            hint = nearest(part, (*source.group_names, *NAMED_GROUPS))
            raise ConfigError(
                f"label-groups: {part!r} in group {group!r} is neither a label from 0 to "
                f"{source.groups.count - 1} nor a class of this data set; {hint}"
            )
    return labels


def _weighted(text: str, what: str) -> tuple[str, float]:
    """`name:count` or `name`, which counts once."""
    name, colon, count = text.rpartition(":")
    return (
        (name.strip(), float(_whole(count, f"{what}: the count in {text!r}")))
        if colon
        else (text.strip(), 1.0)
    )


def _whole(text: str, what: str) -> int:
    if not (_is_whole(text.strip()) and int(text) > 0):
        raise ConfigError(
            f"{what} must be a whole number above 0 of at most {_MOST_DIGITS} digits, not {text!r}"
        )
    return int(text)


def _is_whole(text: str) -> bool:
    """Digits that `int` takes, unlike ², in a number that is not absurdly long."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
