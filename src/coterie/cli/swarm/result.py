"""The result of a swarm: the keys of a run's, and `swarm` with what only real peers have. Imports PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.catalogue import algorithms
from coterie.experiments.real_peers.joining import executor_of
from coterie.experiments.runs.records import WORK
from coterie.experiments.runs.result import result_of
from coterie.experiments.setup.prepare import task_of
from coterie.experiments.setup.schema import Experiment
from coterie.metric import VALIDATION
from coterie.simulation import POINTS


def swarm_result(
    experiment: Experiment, processes: Sequence[dict[str, Any]], mode: str, seconds: float, home: Path | None
) -> dict[str, Any]:
    """processes: what each peer printed, in the order of their numbers, then the hub if there is one.

    Real peers do not know everyone's clusters and have no common test set: what follows from them is null.
    Their bytes are those of whole messages, so a little more than a simulation's, which counts values only.
    """
    whole = [one for one in processes if not one["failed"]]
    metric, peers = task_of(experiment).metrics[0], processes[: experiment.peers]
    common = result_of(
        experiment,
        names=experiment.names,
        rounds=min((one["rounds"] for one in whole), default=0),
        point=algorithms[experiment.algorithm].facts.measured,  # type: ignore[attr-defined]
        metric=metric,
        scores={point: _scores(peers, metric.name, point) for point in POINTS},
        on_common=None,
        validation={p: _scores(peers, f"{VALIDATION}{metric.name}", p) for p in POINTS},
        bytes_sent=_numbers([one.get("bytes_out") for one in processes]),
        work={name: _numbers([one.get(name) for one in peers]) for name in WORK},
        own_cluster_share=None,
        seen_in_clear=None,
        executor=executor_of(experiment),
        seconds=max((one["seconds"] for one in whole), default=0.0),  # of the rounds of the slowest
        run_dir=home,
    )
    totals = {key: sum(one[key] for one in whole) for key in ("bytes_in", "bytes_out")}
    return {**common, "swarm": {"mode": mode, "seconds": seconds, **totals, "processes": list(processes)}}


def _scores(peers: Sequence[dict[str, Any]], name: str, point: str) -> Tensor:
    return _numbers([(one.get(name) or {}).get(point) for one in peers])


def _numbers(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([float("nan") if value is None else value for value in values], dtype=torch.double)
