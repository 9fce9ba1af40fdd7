"""From an experiment's text, or from a user's own objects, to data, model, topology and algorithm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie.catalogue import partitions, sources, tasks
from coterie.data import Federation, Partition, Source, from_peers, load, split
from coterie.data.federation import example
from coterie.data.own.code import call_for_data
from coterie.data.own.files import load_files
from coterie.data.partitions.iid import Natural
from coterie.data.source import Generated
from coterie.errors import ConfigError, DataError
from coterie.experiments.setup.config import VALIDATION, build_algorithm, reads_files, refuse_kept_memory
from coterie.experiments.setup.groups import require_groups
from coterie.experiments.setup.lying import guarded, with_false_labels
from coterie.experiments.setup.networks import (
    GivenModel,
    OtherNetwork,
    check_networks,
    network,
    networks,
)
from coterie.experiments.setup.room import require_memory_for_data, require_memory_for_files
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment, attendance
from coterie.inputs import named
from coterie.learning import Augmented, Task, pinned_threads, require_precision
from coterie.learning.tasks import loss_of, scored_by, try_task
from coterie.protocol import Algorithm
from coterie.protocol.wrapping import InBytes
from coterie.randomness import digest
from coterie.registry import parse_call
from coterie.topology import Attendance, Churn, MessageLoss, Topology, make
from coterie.user_code import data_files, is_data_file, is_file_reference, is_own_data, split_reference

_MOST_NAMED = 10  # peers in a note


@dataclass(frozen=True)
class Objects:
    """What a user passed as Python objects instead of names; None: use the experiment's text."""

    algorithm: Algorithm[Any] | None = None
    data: Any = None  # Federation, Source, or one data set per peer
    dealt: Federation | None = None  # what `deal` gave for this experiment before
    model: GivenModel = None
    partition: Partition | None = None
    topology: Any = None


@dataclass(frozen=True)
class Prepared:
    """Everything that a simulation needs."""

    experiment: Experiment  # with the partition `own` if the data belonged to peers before
    algorithm: Algorithm[Any]
    federation: Federation
    module: nn.Module
    topology: Topology
    task: Task
    own_module: Callable[[int], nn.Module] | None  # set when every node has its own initial weights
    other_networks: dict[str, OtherNetwork]  # than `module`, by their names in the experiment's `models`


@pinned_threads(1)
def prepare(experiment: Experiment, objects: Objects | None = None, *, trains: bool = True) -> Prepared:
    """Load and build; everything that can be wrong with an experiment is found here.

    trains: or only reads what was trained elsewhere, so that its device need not be here.
    """
    objects = objects or Objects()
    _require_objects(experiment, objects)
    algorithm = guarded(experiment, objects.algorithm or build_algorithm(experiment))
    algorithm = InBytes(algorithm) if experiment.payload == "8-bit" else algorithm
    refuse_kept_memory(experiment, algorithm.facts)
    task = task_of(experiment)
    topology = _topology(experiment, objects)
    _check_topology(experiment, algorithm, topology)
    if experiment.execution.sealing != "plain":
        require_groups(experiment, algorithm, topology)
    federation, experiment = deal(experiment, objects)
    if algorithm.facts.clusters and federation.clusters is None:
        raise ConfigError(
            f"algorithm {experiment.algorithm!r} must be told the true clusters, and partition "
            f"{experiment.partition!r} has none; use rotations(4), label-groups(...) or label-pairs(5)"
        )
    _check_task(experiment, algorithm, task, federation)
    federation = with_false_labels(experiment, federation)
    _check_stopping(experiment, federation)
    federation, module, other_networks = networks(experiment, objects.model, federation, task)
    check_networks(experiment, algorithm, federation, module, other_networks)
    augmented = Augmented.named(experiment.training.augment)
    if augmented is not None:
        augmented.check(example(federation.x))
    device = _device(experiment.execution.device, needed=trains and not experiment.execution.on_ray)
    require_precision(experiment.execution.precision, device)
    federation = federation.to(device)
    for one in (module, *(other.module for other in other_networks.values())):
        one.to(device)  # what is frozen computes there; what trains is copied there by its node
    own = None
    if experiment.init == "independent":
        tried = example(federation.x)
        other_of = {peer: name for name, other in other_networks.items() for peer in other.peers}

        def own(node: int) -> nn.Module:
            seed = digest(experiment.seed, "own-init", node)
            return network(experiment, objects.model, federation, task, tried, seed, other_of.get(node))

    return Prepared(experiment, algorithm, federation, module, topology, task, own, other_networks)


def _require_objects(experiment: Experiment, objects: Objects) -> None:
    """Say which Python objects a run was given that nobody passes now: a folder cannot hold them."""
    missing = [
        key
        for key in ("data", "model", "topology")
        if getattr(experiment, key) == OWN_OBJECT and getattr(objects, key) is None
    ]
    if objects.dealt is not None and "data" in missing:
        missing.remove("data")
    if missing:
        raise ConfigError(
            f"this run was given Python objects of your own, which its folder cannot hold: pass them again, "
            f"{', '.join(f'{key}=...' for key in missing)}, to coterie.open(folder, ...) or to "
            "coterie.simulate(resume_from=folder, ...)"
        )


def _check_stopping(experiment: Experiment, federation: Federation) -> None:
    if experiment.stopping.validates and not bool(federation.validation.sizes.any()):
        raise ConfigError(
            "[stopping] decides by validation data, and no peer has any; set some aside with "
            "splitting.validation = 0.2"
        )


def task_of(experiment: Experiment) -> Task:
    """What is learned, with the metrics that the experiment asks for."""
    return scored_by(tasks.build(experiment.task), experiment.metrics)


def _check_task(
    experiment: Experiment, algorithm: Algorithm[Any], task: Task, federation: Federation
) -> None:
    """Refuse data of another task, and an algorithm that makes no sense for this one."""
    if federation.targets != task.targets:
        fitting = [name for name in tasks if tasks[name].targets == federation.targets]  # type: ignore[attr-defined]
        raise DataError(
            f"task {experiment.task!r} is learned from {task.targets}, and the data has "
            f"{federation.targets}; choose task {' or '.join(map(repr, fitting))}, or data made with "
            f"from_arrays(..., task={experiment.task!r})"
        )
    task.check(federation)
    algorithm.check_task(task)
    loss_of(task, experiment.training, federation)  # what it cannot have is refused
    try_task(task, federation)


def _topology(experiment: Experiment, objects: Objects) -> Topology:
    given = experiment.topology if objects.topology is None else objects.topology
    topology = (
        given if isinstance(given, Topology) else make(given, peers=experiment.peers, seed=experiment.seed)
    )
    peers = topology.nodes - (topology.hub is not None)
    if peers != experiment.peers:
        raise ConfigError(f"the given topology is for {peers} peers, the experiment for {experiment.peers}")
    joins, leaves = attendance(experiment)
    if joins or leaves:
        topology = Attendance(topology, joins, leaves)
    if experiment.faults.churn:
        topology = Churn(topology, experiment.faults.churn, experiment.seed)
    if experiment.faults.loss:
        topology = MessageLoss(topology, experiment.faults.loss, experiment.seed)
    return topology


def note_of_isolation(experiment: Experiment) -> str:
    """What users should know when the graph leaves peers alone for the whole run; else empty."""
    if experiment.topology == OWN_OBJECT or experiment.peers == 1:
        return ""
    topology = make(experiment.topology, peers=experiment.peers, seed=experiment.seed)
    if topology.time_varying:
        return ""
    alone = (topology.graph(0).in_degree[: experiment.peers] == 0).nonzero().flatten().tolist()
    if not alone:
        return ""
    who = f"peer{'s' if len(alone) > 1 else ''} {', '.join(map(str, alone[:_MOST_NAMED]))}"
    more = f" and {len(alone) - _MOST_NAMED} more" if len(alone) > _MOST_NAMED else ""
    return (
        f"note: nobody sends to {who}{more} in topology {experiment.topology!r} of seed {experiment.seed}: "
        f"{'they learn' if len(alone) > 1 else 'it learns'} alone"
    )


def _check_topology(experiment: Experiment, algorithm: Algorithm[Any], topology: Topology) -> None:
    if algorithm.facts.hub and topology.hub is None:
        raise ConfigError(
            f"algorithm {experiment.algorithm!r} goes through a hub and needs topology 'star', "
            f"not {experiment.topology!r}"
        )
    if algorithm.needs_both_ways() and topology.directed:
        raise ConfigError(
            f"algorithm {experiment.algorithm!r} as set needs links that go both ways, and topology "
            f"{experiment.topology!r} is directed; use one such as ring or random-regular(4)"
        )


@pinned_threads(1)
def deal(experiment: Experiment, objects: Objects) -> tuple[Federation, Experiment]:
    """Everyone's data; and the experiment, whose partition is `own` if they belonged to peers before."""
    federation = objects.dealt
    if federation is None:
        federation, experiment = _deal(experiment, objects)
    if federation.peers != experiment.peers:
        raise DataError(
            f"the data has {federation.peers} peers but the experiment {experiment.peers}; "
            f"set peers = {federation.peers}"
        )
    _refuse_nan(federation)
    if experiment.names:
        federation = dataclasses.replace(federation, names=experiment.names)
    return federation, experiment


def _deal(experiment: Experiment, objects: Objects) -> tuple[Federation, Experiment]:
    data = objects.data
    if data is None and is_file_reference(experiment.data):
        data = call_user_data(experiment.data, experiment.data_dir, experiment.peers, experiment.seed)
    if data is None and is_data_file(experiment.data):
        require_memory_for_files(experiment, data_files(experiment.data))
        data = load_files(
            experiment.data,
            experiment.partition,
            seed=experiment.seed,
            n_classes=experiment.classes,
            task=experiment.task,
        )
    if data is None and objects.partition is None:
        data = _generated(experiment)
        if data is not None:
            return data, experiment
    if data is None:
        if experiment.data_dir and reads_files(experiment.data):
            named_files = sources.build(experiment.data).files(Path(experiment.data_dir))
            require_memory_for_files(experiment, named_files)
        data = load(
            experiment.data, data_dir=experiment.data_dir, peers=experiment.peers, seed=experiment.seed
        )
    if isinstance(data, Source):
        return _split(data, experiment, objects.partition), experiment
    _refuse_to_split(data, experiment, objects.partition)
    if not isinstance(data, Federation):
        data = from_peers(
            data,
            validation=experiment.splitting.validation,
            seed=experiment.seed,
            n_classes=experiment.classes,
            task=experiment.task,
        )
    return data, experiment.model_copy(update={"partition": OWN_OBJECT})


def _generated(experiment: Experiment) -> Federation | None:
    """The data of a set whose samples are made when needed; None: they are loaded and split."""
    partition = partitions.build(experiment.partition)
    dataset = sources.build(experiment.data)
    if not isinstance(dataset, Generated):
        return None
    if partition not in (Natural(), Natural("peer")):
        require_memory_for_data(experiment, dataset.total_bytes(experiment.peers, experiment.seed))
        return None
    return dataset.deal(
        experiment.peers,
        experiment.seed,
        validation=experiment.splitting.validation,
        samples_per_peer=experiment.splitting.samples_per_peer,
        test_samples_per_peer=experiment.splitting.test_samples_per_peer,
    )


def _split(source: Source, experiment: Experiment, partition: Partition | None) -> Federation:
    return split(
        source,
        partition or experiment.partition,
        peers=experiment.peers,
        seed=experiment.seed,
        validation=experiment.splitting.validation,
        samples_per_peer=experiment.splitting.samples_per_peer,
        test_samples_per_peer=experiment.splitting.test_samples_per_peer,
        common_test_samples=experiment.evaluation.global_samples,
    )


def _refuse_to_split(data: Any, experiment: Experiment, partition: Partition | None) -> None:
    """Refuse what says how samples are dealt out where the data already say whose they are."""
    harmless, unasked = {"natural", OWN_OBJECT}, {0.0}
    if is_own_data(experiment.data):  # filled in before anyone knew what the user's function returns
        harmless.add("iid")
        unasked.add(VALIDATION)
    splitting = experiment.splitting
    held = splitting.validation not in unasked and isinstance(data, Federation)  # a list is split here
    given = {
        "partition": partition is not None or parse_call(experiment.partition)[0] not in harmless,
        "splitting.samples_per_peer": splitting.samples_per_peer is not None,
        "splitting.test_samples_per_peer": splitting.test_samples_per_peer is not None,
        "splitting.validation": held,
    }
    refused = [name for name, is_set in given.items() if is_set]
    if refused:
        raise ConfigError(
            f"the data already belong to peers: leave out {', '.join(refused)}; from_arrays(...) makes data "
            "to be split among peers, and from_peers(..., validation=...) sets validation samples aside"
        )


def _refuse_nan(data: Federation) -> None:
    """NaN or infinite inputs would only show as a loss that is no number."""
    real = [part for part in named(data.x).values() if part.is_floating_point() and part.numel()]
    if all(math.isfinite(value) for part in real for value in part.aminmax()):
        return
    bad = torch.stack([~part.reshape(len(part), -1).isfinite().all(dim=1) for part in real]).any(dim=0)
    owners = [part.owner[bad[part.index]] for part in (data.train, data.validation, data.test)]
    peers = torch.cat(owners).unique().tolist()
    whose = f", first those of peer {peers[0]}" if peers else ""
    raise DataError(f"{int(bad.sum())} samples have NaN or infinite values{whose}; clean or drop them")


def call_user_data(reference: str, data_dir: str | None, peers: int, seed: int) -> Any:
    """What the user's `load(peers, seed)` returns: a Source, a Federation, or one data set per peer.

    A class is a data set as those of the catalogue are: it has a method `load(data_dir, peers, seed)`.
    """
    folder = None if data_dir is None else Path(data_dir)
    data = call_for_data(reference, {"data_dir": folder, "peers": peers, "seed": seed})
    if not isinstance(data, (Source, Federation, Sequence, Mapping)):
        file, name = split_reference(reference)
        raise DataError(
            f"{name} in {file} returned {type(data).__name__}; return coterie.from_arrays(...) for data to "
            "be partitioned, or a list or a dict with one data set per peer"
        )
    return data


def _device(name: str, needed: bool) -> torch.device:
    """The device, or the CPU where there is none and others compute."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # `meta` has shapes only, and no numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        if not needed:
            return torch.device("cpu")
        first_sentence = str(error).partition("\n")[0].partition(". ")[0]  # of up to a thousand characters
        raise ConfigError(f"execution.device {name!r} cannot be used: {first_sentence}") from None
    return device
