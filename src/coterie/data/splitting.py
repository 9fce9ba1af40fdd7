"""`split`: from a source and a partition to the data of every peer.

The order of work: the partition gives every training sample an owner; each peer's samples are capped
and a validation part is taken, both in proportion to its labels; test samples follow the labels that
are left in its training part; the pool keeps only what somebody uses.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.catalogue import partitions
from coterie.data.federation import Federation, Split, at
from coterie.data.partitions.iid import Natural
from coterie.data.partitions.partition import (
    NOBODY,
    Assignment,
    Ints,
    Partition,
    by_class,
    checked,
    refuse_sequences,
    require_partition,
    runs,
)
from coterie.data.source import Source
from coterie.errors import ConfigError, DataError
from coterie.inputs import Inputs, named
from coterie.randomness import numpy_generator

Ragged = tuple[Ints, Ints]  # samples of peer 0, of peer 1, ...; and how many each has


def split(
    source: Source,
    partition: str | Partition,
    *,
    peers: int,
    seed: int,
    validation: float = 0.0,
    samples_per_peer: int | None = None,
    test_samples_per_peer: int | None = None,
    common_test_samples: int = 1000,
) -> Federation:
    """Split `source` among `peers` peers.

    `samples_per_peer` caps each peer's samples before the fraction `validation` of them is set aside.
    Each peer has, per label, its training share of `test_samples_per_peer` test samples, rounded up;
    without it, of the number of test samples per peer. Peers may share test samples, never training
    samples. `common_test_samples` is the size of the class-balanced test set for all (0 for none).
    """
    _check(peers, validation, samples_per_peer, test_samples_per_peer)
    rule = partitions.build(partition) if isinstance(partition, str) else partition
    require_partition(rule)
    refuse_sequences(rule, partition, source)
    if source.own_tasks and not isinstance(rule, Natural):
        raise ConfigError(
            f"in this data set every peer has its own task: split it by natural, not {partition}"
        )
    assigned = rule.assign(source, peers, numpy_generator(seed, "partition"))
    assignment = checked(assigned, partition, source, peers)
    training = _training(source, assignment.owner, peers, seed)
    if samples_per_peer is not None:
        training, _ = _divide(training, np.minimum(training[1], samples_per_peer), seed, "partition-cap")
    held = (training[0][:0], np.zeros(peers, dtype=np.int64))
    if validation > 0.0:
        training, held = _divide(
            training, training_sizes(training[1], validation), seed, "partition-validation"
        )
    test = _test(source, assignment, training, peers, seed, test_samples_per_peer)
    common = _common_test(source, assignment, training[0], common_test_samples, seed)
    return _pool(source, assignment, _shuffled(training, seed), _shuffled(held, seed), test, common)


def _check(peers: int, validation: float, samples: int | None, test_samples: int | None) -> None:
    if peers < 1:
        raise ConfigError(f"peers must be at least 1, not {peers}")
    if not 0.0 <= validation < 1.0:
        raise ConfigError(f"validation must be a fraction from 0 to below 1, not {validation}")
    for name, value in (("samples_per_peer", samples), ("test_samples_per_peer", test_samples)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")


def _training(source: Source, owner: Ints, peers: int, seed: int) -> Ragged:
    """Samples by peer, within a peer by label, within a label at random."""
    order = by_class(source.group_train, numpy_generator(seed, "partition-order"))
    order = order[owner[order] != NOBODY]
    order = order[np.argsort(owner[order], kind="stable")]
    sizes = np.bincount(owner[order], minlength=peers).astype(np.int64)
    _refuse_empty(sizes, "training")
    return order, sizes


def _refuse_empty(sizes: Ints, part: str) -> None:
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        raise DataError(
            f"{len(empty)} of {len(sizes)} peers would have no {part} sample (the first is peer {empty[0]}); "
            "use fewer peers, a milder partition or more data"
        )


def training_sizes(sizes: Ints, validation: float) -> Ints:
    """What is left for training when each peer gives up at least one sample for validation."""
    if (sizes < 2).any():
        raise DataError(
            f"{int((sizes < 2).sum())} of {len(sizes)} peers have a single training sample, and a validation "
            "part needs a second; set validation to 0, or use fewer peers"
        )
    held: Ints = np.clip(np.rint(validation * sizes), 1, sizes - 1).astype(np.int64)
    return sizes - held


def _divide(samples: Ragged, keep: Ints, seed: int, purpose: str) -> tuple[Ragged, Ragged]:
    """Keep keep[i] samples of peer i, evenly spaced among its samples sorted by label; and the rest.

    Even spacing from a random start keeps every label's share to within one sample.
    """
    index, sizes = samples
    start = numpy_generator(seed, purpose).integers(0, np.maximum(sizes, 1))
    rank, k, n = runs(sizes), np.repeat(keep, sizes), np.repeat(sizes, sizes)
    begin = rank * k + np.repeat(start, sizes)
    kept = (begin + k) // n > begin // n
    return (index[kept], keep), (index[~kept], sizes - keep)


def _test(
    source: Source, assignment: Assignment, training: Ragged, peers: int, seed: int, each: int | None
) -> Ragged:
    if assignment.test_owner is not None:
        owner = assignment.test_owner
        order = np.flatnonzero(owner != NOBODY)
        order = order[np.argsort(owner[order], kind="stable")]
        sizes = np.bincount(owner[order], minlength=peers).astype(np.int64)
        if each is not None:
            (order, sizes), _ = _divide((order, sizes), np.minimum(sizes, each), seed, "partition-test")
    else:
        order, sizes = _matching_test(source, training, peers, seed, each)
    _refuse_empty(sizes, "test")
    return order, sizes


def _matching_test(source: Source, training: Ragged, peers: int, seed: int, each: int | None) -> Ragged:
    """Per peer and label ceil(training share * n_test / peers) distinct samples, as far as there are any."""
    classes, y_test = source.groups.count, source.group_test
    index, sizes = training
    cells = np.repeat(np.arange(peers), sizes) * classes + source.group_train[index]
    share = np.bincount(cells, minlength=peers * classes).reshape(peers, classes).astype(np.int64)
    # In whole numbers, so that ceil never rounds a share up that is exact.
    total, parts = (len(y_test), peers) if each is None else (each, 1)
    wanted = -(-share * total // (sizes[:, None] * parts))
    stock = np.bincount(y_test, minlength=classes).astype(np.int64)
    wanted = np.minimum(wanted, stock)
    # Each peer reads on cyclically from a random place of the shuffled samples of a label.
    rng = numpy_generator(seed, "partition-test")
    order = by_class(y_test, rng)
    counts = wanted.ravel()
    start = rng.integers(0, np.maximum(stock, 1), size=(peers, classes)).ravel()
    available = np.repeat(np.tile(stock, peers), counts)
    position = (runs(counts) + np.repeat(start, counts)) % np.maximum(available, 1)
    first = np.repeat(np.tile(np.cumsum(stock) - stock, peers), counts)
    return order[first + position], wanted.sum(1)


def _common_test(
    source: Source, assignment: Assignment, training: Ints, samples: int, seed: int
) -> Ints | None:
    """Equally many test samples of every class that somebody learns."""
    if samples < 1 or not assignment.common_test:
        return None
    y_test = source.group_test
    stock = np.bincount(y_test, minlength=source.groups.count).astype(np.int64)
    learnt = np.bincount(source.group_train[training], minlength=source.groups.count) > 0
    classes = np.flatnonzero(learnt & (stock > 0))
    if not len(classes):
        return None
    each = min(max(1, samples // len(classes)), int(stock[classes].min()))
    first = (np.cumsum(stock) - stock)[classes]
    order = by_class(y_test, numpy_generator(seed, "common-test"))
    chosen: Ints = order[(first[:, None] + np.arange(each)).ravel()]
    return chosen


def _shuffled(samples: Ragged, seed: int) -> Ragged:
    """Random order within each peer, so that no reader depends on labels being sorted."""
    index, sizes = samples
    order = numpy_generator(seed, "partition-shuffle").permutation(len(index))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return index[order[np.argsort(owner[order], kind="stable")]], sizes


def _pool(
    source: Source, assignment: Assignment, train: Ragged, held: Ragged, test: Ragged, common: Ints | None
) -> Federation:
    """Store each (sample, rotation) that somebody uses once, and point all lists at it."""
    peers, n_train = len(train[1]), len(source.y_train)
    n = n_train + len(source.y_test)
    degrees = assignment.degrees if assignment.degrees is not None else np.zeros(peers)
    angles, turn = np.unique(degrees, return_inverse=True)
    keys = [
        np.repeat(turn, sizes) * n + index + shift
        for (index, sizes), shift in ((train, 0), (held, 0), (test, n_train))
    ]
    if common is not None:
        keys.append(common + n_train)
    all_keys = np.concatenate(keys)
    used = np.zeros(len(angles) * n, dtype=bool)
    used[all_keys] = True
    pool, place = np.flatnonzero(used), (np.cumsum(used) - 1)[all_keys]
    x, y = _gather(source, pool, angles, n)
    # A peer's training samples lie side by side, so that its batches are found in cache.
    others = np.ones(len(pool), dtype=bool)
    others[place[: len(keys[0])]] = False
    order = np.concatenate((place[: len(keys[0])], np.flatnonzero(others)))
    in_order = torch.from_numpy(order)
    x, y = at(x, in_order), y[in_order]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    place = rank[place]
    lists = [torch.from_numpy(part) for part in np.split(place, np.cumsum([len(k) for k in keys])[:-1])]
    splits = [
        Split.from_sizes(part, torch.from_numpy(sizes))
        for part, (_, sizes) in zip(lists, (train, held, test), strict=False)
    ]
    clusters = assignment.clusters
    return Federation(
        x=x,
        y=y,
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        common_test=None if common is None else lists[3],
        n_classes=source.n_classes,
        class_names=source.class_names,
        targets=source.targets,
        clusters=None if clusters is None else torch.from_numpy(clusters),
        dropped=int((assignment.owner == NOBODY).sum()),
        names=assignment.names,
    )


def _gather(source: Source, pool: Ints, angles: NDArray[np.float64], n: int) -> tuple[Inputs, Tensor]:
    """The samples of a pool whose keys are rotation * n + sample, in the order of the keys."""

    def gather(train: Tensor, test: Tensor, turned: bool) -> Tensor:
        n_train, result = len(train), train.new_empty((len(pool), *train.shape[1:]))
        for turn, angle in enumerate(angles):
            start, middle, end = np.searchsorted(pool, [turn * n, turn * n + n_train, (turn + 1) * n])
            for part, first, given in (
                (slice(start, middle), turn * n, train),
                (slice(middle, end), turn * n + n_train, test),
            ):
                torch.index_select(given, 0, torch.from_numpy(pool[part] - first), out=result[part])
                if angle and turned:
                    result[part] = rotate(result[part], float(angle))
        return result

    y = gather(source.y_train, source.y_test, turned=False)
    train, test = named(source.x_train), named(source.x_test)
    x = {name: gather(train[name], test[name], turned=True) for name in train}
    return (x["0"] if isinstance(source.x_train, Tensor) else x), y


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn images (..., height, width) counter-clockwise about their centre.

    Nearest neighbour, zeros where nothing was: applied to normalised images, so a zero is the mean
    grey. Multiples of 90 degrees of square images are exact.
    """
    if images.dim() < 3:
        raise DataError(f"only images can be rotated; these samples have shape {tuple(images.shape[1:])}")
    height, width = images.shape[-2:]
    quarter, rest = divmod(degrees % 360.0, 90.0)
    if rest == 0.0 and (height == width or quarter % 2 == 0):
        return torch.rot90(images, int(quarter), dims=(-2, -1))
    angle = math.radians(degrees)
    rows = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float64)[None, :] - (width - 1) / 2
    # Where each target pixel comes from; rows grow downwards, hence the signs.
    from_row = (math.cos(angle) * rows + math.sin(angle) * columns + (height - 1) / 2).round().long()
    from_column = (-math.sin(angle) * rows + math.cos(angle) * columns + (width - 1) / 2).round().long()
    inside = (from_row >= 0) & (from_row < height) & (from_column >= 0) & (from_column < width)
    flat = from_row.clamp(0, height - 1) * width + from_column.clamp(0, width - 1)
    turned = images.flatten(-2)[..., flat.flatten()].view(images.shape)
    return turned * inside
