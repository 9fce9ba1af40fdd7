"""Metrics by name: those of a task, those of scikit-learn, and one's own functions."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ConfigError
from coterie.learning.tasks.task import Task, WholeMetric, given
from coterie.metric import Metric
from coterie.registry import call_user_code, fill, load_reference, nearest, parse_call
from coterie.user_code import is_file_reference, reference_parts

Array = NDArray[Any]


def scored_by(task: Task, names: Sequence[str]) -> Task:
    """The task with these metrics, the main one first; without any, with those that it has."""
    if not names:
        return task
    metrics = [metric_named(name, task) for name in names]
    twice = [metric.name for n, metric in enumerate(metrics) if metric.name in [m.name for m in metrics[:n]]]
    if twice:
        raise ConfigError(f"metrics: {twice[0]!r} is named twice")
    return task.scored_by(metrics)


def metric_named(text: str, task: Task) -> Metric:
    """`auc`, or `file.py:function` of (y, predictions), which may have further arguments."""
    if is_file_reference(text):
        return _own(text)
    name = text.strip().lower().replace("-", "_")
    known: dict[str, Metric] = {metric.name: metric for metric in task.offers}
    known |= {metric.name: metric for metric in _FROM_SKLEARN.get(task.targets, ())}
    if name not in known:
        raise ConfigError(f"task {task.name!r} has no metric {text!r}; {nearest(name, known)}")
    if isinstance(known[name], WholeMetric):
        _sklearn()  # find out now that it is missing
    return known[name]


class OwnMetric(WholeMetric):
    """A user's function, which may be wrong."""


def _own(reference: str) -> OwnMetric:
    """A user's function; its attributes `higher_is_better` and `percent` say how to read it."""
    function = load_reference(reference, "metric")
    if not callable(function):
        raise ConfigError(f"metric {reference!r} is {function!r}, not a function of (y, predictions)")
    name, called = getattr(function, "__name__", ""), _with_arguments(function, reference)
    if not name.isidentifier() or name == "loss":
        raise ConfigError(f"metric {reference!r}: give the function a name that is not {name!r}")

    def of_all(y: Array, predictions: Array) -> float:
        try:
            found = called(y, predictions)
        except Exception as error:  # the user's own code, which may raise anything
            raise ConfigError(
                f"metric {reference!r} raised {type(error).__name__}: {error}; it was given {given(y)} "
                f"targets y and {given(predictions)} predictions"
            ) from error
        try:
            return float(found)
        except (TypeError, ValueError):
            raise ConfigError(
                f"metric {reference!r} must return a number, not {type(found).__name__}"
            ) from None

    arguments = re.sub(r"\W+", "_", reference_parts(reference)[2]).strip("_")  # within(0.5): within_0_5
    shown = f"{name}_{arguments}" if arguments else name
    higher, percent = getattr(called, "higher_is_better", True), getattr(called, "percent", False)
    return OwnMetric(shown, bool(higher), bool(percent), of_all=of_all)


def _with_arguments(function: Callable[..., Any], reference: str) -> Callable[[Array, Array], Any]:
    """What is called with y and predictions: the function, or with what `within(0.5)` says beside them.

    Of a class, the object that it makes of these arguments.
    """
    shown, (_, positional, keywords) = f"metric {reference!r}", parse_call(reference, "metric")
    if isinstance(function, type):
        made = call_user_code(function, fill(function, shown, positional, keywords), reference)
        if not callable(made):
            raise ConfigError(f"{shown}: give the class a method __call__(self, y, predictions)")
        return made
    if not positional and not keywords:
        return function
    places = {"y": object(), "predictions": object()}
    bound = fill(function, shown, positional, keywords, places)
    takers = [key for place in places.values() for key, value in bound.arguments.items() if value is place]
    if len(takers) < len(places):
        raise ConfigError(f"{shown} must take y and predictions beside its arguments")

    @functools.wraps(function)
    def called(*two: Array) -> Any:
        filled = {**bound.arguments, **dict(zip(takers, two, strict=True))}
        arguments = inspect.BoundArguments(bound.signature, filled)
        return function(*arguments.args, **arguments.kwargs)

    return called


def _sklearn() -> Any:
    try:
        return importlib.import_module("sklearn.metrics")
    except ImportError:
        raise ConfigError(
            "this metric is computed by scikit-learn, which is not installed: pip install 'coterie[metrics]'"
        ) from None


def _decided(y: Array, p: Array) -> Array:
    """The classes, or the labels as 0 and 1, that are predicted with these probabilities."""
    if y.ndim == 2 or p.shape[1] == 1:
        return (p > 0.5).astype(np.int64).reshape(y.shape)
    return np.asarray(p.argmax(1))


def _balanced_accuracy(y: Array, p: Array) -> float:
    """The mean over the classes that occur of how many of each are right."""
    return float(_sklearn().recall_score(y, _decided(y, p), labels=np.unique(y), average="macro"))


def _macro_f1(y: Array, p: Array) -> float:
    """The mean of F1 over the classes that occur or are predicted, or over all labels."""
    return float(_sklearn().f1_score(y, _decided(y, p), average="macro", zero_division=0.0))


def _one_against_the_rest(score: str) -> Callable[[Array, Array], float]:
    """The mean over the classes, or labels, of which some samples are and some are not; NaN without any."""

    def of_all(y: Array, p: Array) -> float:
        if y.ndim == 1:
            y = y[:, None] if p.shape[1] == 1 else y[:, None] == np.arange(p.shape[1])
        function, found = getattr(_sklearn(), score), []
        for yes, probability in zip(y.T, p.T, strict=True):
            if 0 < int(yes.sum()) < len(yes):
                found.append(float(function(yes, probability)))
        return float(np.mean(found)) if found else float("nan")

    return of_all


def _r2(y: Array, predicted: Array) -> float:
    return float(_sklearn().r2_score(y, predicted)) if len(y) > 1 else float("nan")


_OF_CLASSES = (
    WholeMetric("balanced_accuracy", percent=True, of_all=_balanced_accuracy),
    WholeMetric("macro_f1", percent=True, of_all=_macro_f1),
    WholeMetric("auc", percent=True, of_all=_one_against_the_rest("roc_auc_score")),
    WholeMetric("average_precision", percent=True, of_all=_one_against_the_rest("average_precision_score")),
)
_FROM_SKLEARN: dict[str, tuple[WholeMetric, ...]] = {
    "classes": _OF_CLASSES,
    "labels": _OF_CLASSES[1:],
    "numbers": (WholeMetric("r2", of_all=_r2),),
}
