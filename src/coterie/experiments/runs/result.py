"""A run as plain data: what `--json` prints. A simulation and real peers have the same keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.experiments.setup.schema import Experiment
from coterie.metric import Metric
from coterie.protocol import Point
from coterie.spreads import Spread, listed


def result_of(
    experiment: Experiment,
    *,
    names: Sequence[str] = (),
    rounds: int,
    point: Point,
    metric: Metric,
    scores: Mapping[str, Tensor | None],
    on_common: Tensor | None,
    validation: Mapping[str, Tensor | None],
    bytes_sent: Tensor,
    work: Mapping[str, Tensor],
    own_cluster_share: float | None,
    seen_in_clear: Tensor | None,
    executor: str,
    seconds: float,
    run_dir: Path | None,
    stopped: str | None = None,
) -> dict[str, Any]:
    """What was run, and what came of it.

    names: of the peers; empty if they have none.
    metric: the task's main one. scores: it of the personal models when last measured, (peers,), by point of
    the round. on_common: it on the common test set. validation: as `scores`, on each peer's validation data.
    bytes_sent: (nodes,) by the peers, then by a hub if there is one; NaN where it is not known.
    work: gradient steps and samples seen, (peers,) each, in all rounds; NaN where they are not known.
    seen_in_clear: (peers,) models of others that each saw one by one; None: they are not counted.
    stopped: why the run ended before its last round, if it did.
    """
    sent = bytes_sent.double()
    known, of_all = [values[~values.isnan()] for values in (sent[: experiment.peers], sent)]
    return {
        "algorithm": experiment.algorithm,
        "settings": dict(experiment.settings),
        "data": experiment.data,
        "model": experiment.model,
        "models": dict(experiment.models),
        "partition": experiment.partition,
        "topology": experiment.topology,
        "peers": experiment.peers,
        "names": list(names) or None,
        "rounds": rounds,
        "stopped": stopped,
        "reported": experiment.stopping.keep,
        "seed": experiment.seed,
        "work": experiment.training.work,
        "point": point,
        "task": experiment.task,
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "percent": metric.percent,
        f"personal_{metric.name}": distribution(scores.get(point), metric),
        f"personal_{metric.name}_after_local": distribution(scores.get("after_local"), metric),
        f"personal_{metric.name}_after_mixing": distribution(scores.get("after_mixing"), metric),
        f"global_{metric.name}": distribution(on_common, metric),
        f"validation_{metric.name}": distribution(validation.get(point), metric),
        f"validation_{metric.name}_after_local": distribution(validation.get("after_local"), metric),
        f"validation_{metric.name}_after_mixing": distribution(validation.get("after_mixing"), metric),
        "bytes_sent_per_peer": float(known.mean()) if len(known) else None,
        "bytes_sent_busiest": float(of_all.max()) if len(of_all) else None,
        **{f"{name}_per_peer": _range(values) for name, values in work.items()},
        "own_cluster_share": own_cluster_share,
        "seen_in_clear_per_peer": None if seen_in_clear is None else _range(seen_in_clear.double()),
        "executor": executor,
        "seconds": seconds,
        "seconds_per_round": seconds / max(1, rounds),
        "run_dir": None if run_dir is None else str(run_dir),
    }


def _range(values: Tensor) -> dict[str, float] | None:
    known = values[~values.isnan()].double()
    if not len(known):
        return None
    return {"mean": float(known.mean()), "min": float(known.min()), "max": float(known.max())}


def distribution(values: Tensor | None, metric: Metric) -> dict[str, Any] | None:
    """Mean, standard deviation and worst decile over peers: one mean hides who was hurt.

    The worst decile is the mean of the worst tenth of the peers, at least one. Of very many peers,
    quantiles say the rest, and `per_peer` has the values of those in `sample`.
    """
    if values is None:
        return None
    known = values[~values.isnan()].double()
    if not len(known):
        return None
    worst = known.sort(descending=not metric.higher_is_better).values
    found = {
        "mean": float(known.mean()),
        "std": float(known.std(unbiased=False)),
        "worst_decile": float(worst[: max(1, math.ceil(len(known) / 10))].mean()),
    }
    some = listed(len(values))
    if some is None:
        return {**found, "per_peer": _numbers(values)}
    spread = Spread.of(known)
    assert spread is not None
    sample = {"sample": some.tolist(), "per_peer": _numbers(values[some])}
    return {**found, "quantiles": spread.named_quantiles(), **sample}


def _numbers(values: Tensor) -> list[float | None]:
    """None: not measured."""
    return [None if math.isnan(value) else value for value in values.tolist()]
