"""A user's own data: arrays to be partitioned, or data that already belong to peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from coterie.data.federation import Federation, Split, at
from coterie.data.own.setting_aside import set_aside
from coterie.data.own.several import Raw, collected, joined, samples, size, some
from coterie.data.own.values import codes_of, one_per_sample, plain_array, refuse_doubtful_classes
from coterie.data.source import Column, Source, hold_out, refuse_too_many_classes
from coterie.data.targets import Targets, read_targets, same_width, targets_of, task_of_labels, width_of
from coterie.errors import ConfigError, DataError
from coterie.inputs import Inputs
from coterie.randomness import numpy_generator

Pair = tuple[Raw, Tensor]


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    columns: Mapping[str, Any] | None = None,
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    n_classes: int | None = None,
    class_names: Sequence[str] = (),
    task: str = "classification",
) -> Source:
    """A source made of your own arrays or tensors, to be split among peers by any partition.

    task: what y is for. A regression has a number, or several, for each sample; "multi-label" a row of 0 and
    1; "next-token" a whole number at each position, -100 where there is none. Labels of classes may be whole
    numbers from 0, or names. Numbers that are hardly classes, such as amounts or 1 to k, are refused unless
    `n_classes` or `class_names` is given. Without a test set, `test_fraction` of the samples is held out,
    evenly over the values of the first column, or over the labels. With a test set, each column is a pair
    (train values, test values). x may be several arrays, in a dict or a tuple, and sequences of different
    lengths, which are padded. Whole numbers stay what they are, others become float32.
    """
    if (x_test is None) != (y_test is None):
        raise ConfigError("from_arrays: give both x_test and y_test, or neither")
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigError(f"from_arrays: columns must be a dict of names, not {type(columns).__name__}")
    targets = targets_of(task)
    labels, names = _targets(y, y_test, targets)
    features = _features(x, x_test, labels)
    names = tuple(class_names) or names
    given = dict(columns or {})
    if x_test is not None:
        table = {name: _pair_of_columns(name, values) for name, values in given.items()}
        parts = (features[0], labels[0], features[1], labels[1])
    else:
        values = {name: one_per_sample(column, f"column {name!r}") for name, column in given.items()}
        for name, column in values.items():
            if len(column) != len(labels[0]):
                raise DataError(f"column {name!r} has {len(column)} values for {len(labels[0])} samples")
        groups = next(iter(values.values()), _strata(labels[0], targets))
        held = hold_out(groups, test_fraction, numpy_generator(seed, "hold-out"))
        table = {name: (column[~held], column[held]) for name, column in values.items()}
        test, train = torch.from_numpy(held), torch.from_numpy(~held)
        parts = (at(features[0], train), labels[0][train], at(features[0], test), labels[0][test])
    for name, (train_values, test_values) in table.items():
        if (len(train_values), len(test_values)) != (len(parts[1]), len(parts[3])):
            raise DataError(
                f"column {name!r} has {len(train_values)} + {len(test_values)} values for "
                f"{len(parts[1])} training and {len(parts[3])} test samples"
            )
    where = "y" if y_test is None else "y and y_test"
    classes = _classes_of(torch.cat(labels), n_classes, names, targets, where)
    names = names if len(names) == classes else ()
    return Source(*parts, n_classes=classes, names=names, columns=table, targets=targets)


def from_peers(
    datasets: Sequence[Any] | Mapping[str, Any],
    *,
    test_fraction: float = 0.2,
    validation: float = 0.0,
    seed: int = 0,
    n_classes: int | None = None,
    class_names: Sequence[str] = (),
    common_test: Any = None,
    task: str = "classification",
) -> Federation:
    """The federation of peers that each bring their own data: a list, or a dict by their names.

    Each item is (x, y); (x_train, y_train, x_test, y_test); a `torch.utils.data.Dataset`; or a dict
    with `train` and perhaps `validation` and `test`, each (x, y) or a Dataset. What a peer does not
    bring is held out from its training data: about so many of its samples, each by what it holds, so that
    more samples or another order move none (see `coterie.data.own.setting_aside`). `common_test` is a test
    set for all: (x, y) or Dataset. task: what y is for, as in `from_arrays`.
    """
    targets = targets_of(task)
    names = tuple(map(str, datasets)) if isinstance(datasets, Mapping) else ()
    if isinstance(datasets, Mapping):
        _refuse_one_peer(datasets)
        datasets = list(datasets.values())
    _refuse_what_is_no_list(datasets)
    if not len(datasets):
        raise DataError("from_peers needs the data of at least one peer")
    parts: list[list[Pair]] = [[], [], []]
    for peer, item in enumerate(datasets):
        who = _who(peer, names)
        for target, part in zip(
            parts, _three_parts(item, who, test_fraction, validation, seed, targets), strict=True
        ):
            target.append(part)
    kinds = ("train", "validation", "test")
    flat = {
        f"{_who(peer, names)}, {kind}": pair
        for kind, part in zip(kinds, parts, strict=True)
        for peer, pair in enumerate(part)
    }
    if common_test is not None:
        flat["common_test"] = _pair(common_test, "common_test", targets)
    filled = {who: pair for who, pair in flat.items() if len(pair[1])}
    x = joined({who: x for who, (x, _) in filled.items()})
    y = torch.cat(same_width([y for _, y in filled.values()], targets, list(filled)))
    classes = _classes_of(y, n_classes, class_names, targets, "all peers' labels together")
    sizes = [torch.tensor([len(labels) for _, labels in part]) for part in parts]
    starts = np.cumsum([0, *(int(size.sum()) for size in sizes)])
    train, held, test = (
        Split.from_sizes(torch.arange(first, last), size)
        for first, last, size in zip(starts, starts[1:], sizes, strict=False)
    )
    return Federation(
        x=x,
        y=y,
        train=train,
        validation=held,
        test=test,
        common_test=None if common_test is None else torch.arange(int(starts[-1]), len(y)),
        n_classes=classes,
        class_names=tuple(class_names) or tuple(map(str, range(classes))),
        targets=targets,
        names=names,
    )


def _who(peer: int, names: Sequence[str]) -> str:
    return f"peer {names[peer] if names else peer}"


def _refuse_one_peer(datasets: Mapping[str, Any]) -> None:
    if datasets and set(datasets) <= {"train", "validation", "test"}:
        raise ConfigError(
            "this dict holds the data of one peer, by what they are for; pass a list with one such dict per "
            "peer, or a dict by the peers' names"
        )


def _strata(y: Tensor, targets: Targets) -> NDArray[Any]:
    """(n,) what is held out evenly over: classes; all other targets are one group."""
    return y.numpy() if targets == "classes" else np.zeros(len(y), dtype=np.int64)


def _classes_of(
    y: Tensor, n_classes: int | None, class_names: Sequence[str], targets: Targets, where: str
) -> int:
    """How many classes these labels are of, or labels or numbers a sample has; refuses what is none."""
    width = width_of(y, targets)
    if targets in ("labels", "numbers"):
        if n_classes not in (None, width):
            raise DataError(f"a sample has {width} {targets}, and n_classes is {n_classes}")
        return width
    if targets == "classes" and int(y.min()) < 0:
        raise DataError(f"labels are counted from 0, and one is {int(y.min())}")
    classes = n_classes or max(len(class_names), width)
    refuse_too_many_classes(classes)
    if targets == "classes" and not (n_classes or class_names):
        refuse_doubtful_classes(y, where)
    if int(y.max()) >= classes:
        raise DataError(f"labels run from {int(y.min())} to {int(y.max())}, but there are {classes} classes")
    return classes


def _refuse_what_is_no_list(datasets: Any) -> None:
    if isinstance(datasets, Dataset):  # it may have a length, that of its samples
        raise ConfigError(
            f"the data are a single {type(datasets).__name__}; pass a list with one Dataset per peer, or "
            "from_arrays(x, y) to have samples split among peers"
        )
    if not isinstance(datasets, Sequence):
        raise ConfigError(
            "data must be a name, from_arrays(...), from_peers(...) or a list with one data set per peer, "
            f"not {type(datasets).__name__}"
        )


def _three_parts(
    item: Any,
    who: str,
    test_fraction: float,
    validation: float,
    seed: int,
    targets: Targets,
) -> tuple[Pair, Pair, Pair]:
    """(train, validation, test) of one peer."""
    given: dict[str, Any]
    if isinstance(item, Mapping):
        given = dict(item)
        if "train" not in given or set(given) - {"train", "validation", "test"}:
            raise ConfigError(
                f"{who}: a dict needs 'train' and may have 'validation' and 'test', not {list(given)}"
            )
    elif isinstance(item, (tuple, list)) and len(item) == 4:
        given = {"train": (item[0], item[1]), "test": (item[2], item[3])}
    else:
        given = {"train": item}
    pairs = {name: _pair(value, f"{who}, {name}", targets) for name, value in given.items()}
    train = pairs["train"]
    test = pairs.get("test")
    if test is None:
        train, test = _hold_out_pair(train, test_fraction, seed, "test")
    held = pairs.get("validation") or _chosen(train, torch.zeros(len(train[1]), dtype=torch.bool))
    if validation > 0.0 and "validation" not in pairs:
        train, held = _hold_out_pair(train, validation, seed, "validation")
    if not len(train[1]) or not len(test[1]):
        hint = "" if "test" in pairs else "; equal samples stay together, so bring more, or a test set"
        raise DataError(
            f"{who} has {len(train[1])} training and {len(test[1])} test samples; it needs one of each{hint}"
        )
    return train, held, test


def _hold_out_pair(pair: Pair, fraction: float, seed: int, purpose: str) -> tuple[Pair, Pair]:
    mask = set_aside(pair[0], fraction, seed, purpose)
    return _chosen(pair, ~mask), _chosen(pair, mask)


def _chosen(pair: Pair, mask: Tensor) -> Pair:
    return some(pair[0], mask), pair[1][mask]


def _pair(value: Any, who: str, targets: Targets) -> Pair:
    if isinstance(value, Dataset):
        value = _read(value, who, targets)
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        array = isinstance(value, (np.ndarray, Tensor))  # as if somebody's x were the data of a peer
        hint = "; data for all peers together are coterie.from_arrays(x, y)" if array else ""
        raise ConfigError(
            f"{who}: expected (x, y), (x_train, y_train, x_test, y_test), a dict or a Dataset{hint}"
        )
    y = _classes(value[1], who) if targets == "classes" else read_targets(value[1], targets, f"{who}: y")
    x = samples(value[0], f"{who}: x", len(y))
    _refuse_unequal(x, y, who)
    return x, y


def _classes(values: Any, who: str) -> Tensor:
    labels = plain_array(values, f"{who}: y")
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise DataError(
            f"{who}: labels must be one whole number per sample, not {labels.dtype} of shape "
            f"{labels.shape}{task_of_labels(labels)}"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _features(x: Any, x_test: Any, labels: Sequence[Tensor]) -> list[Inputs]:
    """x, and x_test where there is one; sequences are padded to the longest of both."""
    given = {"x": x} if x_test is None else {"x": x, "x_test": x_test}
    read = {name: samples(part, name, len(y)) for (name, part), y in zip(given.items(), labels, strict=True)}
    for (name, part), y in zip(read.items(), labels, strict=True):
        _refuse_unequal(part, y, f"{name} and {name.replace('x', 'y')}")
    pool, first = joined(read), len(labels[0])
    return [at(pool, slice(first)), at(pool, slice(first, None))]


def _refuse_unequal(x: Raw, y: Tensor, who: str) -> None:
    if size(x) != len(y):
        raise DataError(f"{who}: {size(x)} samples but {len(y)} labels")


def _read(dataset: Dataset[Any], who: str, targets: Targets) -> tuple[Raw, Any]:
    """All samples of a torch data set, which must yield (array, or dict or tuple of arrays; label)."""
    try:
        pairs = [(x, int(y) if targets == "classes" else np.asarray(y)) for x, y in _items(dataset)]
    except Exception as error:  # the Dataset is the user's own code, which may raise anything
        raise DataError(
            f"{who}: the Dataset must yield (sample, label) pairs: {type(error).__name__}: {error}"
        ) from error
    if not pairs:
        raise DataError(f"{who}: the Dataset is empty")
    return collected([x for x, _ in pairs], who), [y for _, y in pairs]


def _items(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, IterableDataset):
        return iter(dataset)
    return (dataset[i] for i in range(len(dataset)))


def _targets(y: Any, y_test: Any, targets: Targets) -> tuple[list[Tensor], tuple[str, ...]]:
    """y, and y_test where there is one; and the class names if y holds names."""
    if targets == "classes":
        return _labels(y, y_test)
    given = {"y": y} if y_test is None else {"y": y, "y_test": y_test}
    read = [read_targets(values, targets, name) for name, values in given.items()]
    return same_width(read, targets, list(given)), ()


def _labels(y: Any, y_test: Any) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels as int64, and the class names if the labels were names."""
    given = {"y": y} if y_test is None else {"y": y, "y_test": y_test}
    arrays = [one_per_sample(labels, name) for name, labels in given.items()]
    if all(np.issubdtype(labels.dtype, np.integer) for labels in arrays):
        return [torch.from_numpy(labels.astype(np.int64)) for labels in arrays], ()
    if any(np.issubdtype(labels.dtype, np.floating) for labels in arrays):
        raise DataError(
            "labels must be whole numbers or names, not floating-point numbers; for numbers to predict, say "
            'task="regression"'
        )
    names, codes = codes_of(np.concatenate(arrays), " and ".join(given))
    pieces = np.split(codes, [len(arrays[0])])[: len(arrays)]
    return [torch.from_numpy(piece) for piece in pieces], tuple(map(str, names))


def _pair_of_columns(name: str, values: Any) -> Column:
    if not isinstance(values, (tuple, list)) or len(values) != 2:
        raise ConfigError(f"column {name!r}: with a test set, give (train values, test values)")
    where = f"column {name!r}"
    return one_per_sample(values[0], f"{where}, train"), one_per_sample(values[1], f"{where}, test")
