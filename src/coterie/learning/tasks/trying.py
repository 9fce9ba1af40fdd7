"""What users wrote themselves, tried on a peer's test targets before anything trains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.data import Federation
from coterie.errors import ConfigError, CoterieError
from coterie.learning.tasks.metrics import OwnMetric
from coterie.learning.tasks.task import MeanMetric, Task, given

_OURS = "coterie."


def try_task(task: Task, federation: Federation) -> None:
    """Compute the losses and metrics of one's own task, and one's own metrics, for outputs at random."""
    own = [metric for metric in task.metrics if isinstance(metric, OwnMetric)]
    own_task = not type(task).__module__.startswith(_OURS)
    tested = federation.test.sizes.nonzero().flatten()[:1]
    if not (own or own_task) or not len(tested):
        return
    held = federation.held(federation.test, tested)
    y = held.targets(held.places(torch.arange(int(federation.test.sizes[tested])))).cpu()  # (1, n, ...)
    shape, generator = task.output_shape(federation), torch.Generator().manual_seed(0)
    outputs = torch.randn(1, y.shape[1], *shape, generator=generator)
    if own_task:
        _try_losses(task, outputs, y)
    if own:
        predictions = task.predictions(outputs)[0].numpy()
        for metric in own:
            metric.of_all(y[0].numpy(), predictions)


def _try_losses(task: Task, outputs: Tensor, y: Tensor) -> None:
    if not task.metrics:
        raise ConfigError(
            f"task {task.name!r} offers no metric, so that nothing can be scored; list some in its `offers`, "
            "or derive it from a task that has some"
        )
    counted = task.counted(y, torch.ones(y.shape[:2])).shape
    _try(task, "losses", lambda: task.losses(outputs, y), outputs, y, counted)
    for metric in task.metrics:
        if isinstance(metric, MeanMetric):
            of_samples = metric.of_samples
            _try(task, metric.name, lambda of=of_samples: of(task, outputs, y), outputs, y, counted)  # type: ignore[misc]


def _try(
    task: Task, what: str, compute: Callable[[], Tensor], outputs: Tensor, y: Tensor, wanted: torch.Size
) -> None:
    """One number for each sample, or for each position of it, is what has to come out."""
    took = f"it was given {given(outputs)} outputs and {given(y)} targets"
    try:
        found = compute()
    except CoterieError:
        raise
    except Exception as error:  # the user's own code, which may raise anything
        raise ConfigError(
            f"{what} of task {task.name!r} raised {type(error).__name__}: {error}; {took}"
        ) from error
    if not isinstance(found, Tensor) or found.shape != wanted:
        shown = given(found) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"{what} of task {task.name!r} must give a tensor of shape {tuple(wanted)}, a number for each "
            f"sample, not {shown}; {took}"
        )
