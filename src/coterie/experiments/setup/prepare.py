"""From an experiment's text, or from a user's own objects, to data, model, topology and algorithm."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie.catalogue import tasks
from coterie.data import Federation, Partition, Source, from_peers, load, split
from coterie.data.federation import example
from coterie.data.own.code import call_for_data
from coterie.data.own.files import load_files
from coterie.errors import ConfigError, DataError
from coterie.experiments.setup.config import VALIDATION, build_algorithm, refuse_kept_memory
from coterie.experiments.setup.lying import guarded, with_false_labels
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment, dealt_out
from coterie.inputs import Inputs, answer, arguments, each, named
from coterie.learning import Augmented, Task, check_module, model_tree, require_precision
from coterie.learning.tasks import loss_of, scored_by
from coterie.models import build, check_shared, find_layer, head_names, output_of
from coterie.protocol import Algorithm
from coterie.randomness import digest
from coterie.registry import parse_call
from coterie.topology import Churn, MessageLoss, Topology, make
from coterie.user_code import is_data_file, is_file_reference, is_own_data, split_reference

_MOST_NAMED = 10  # peers in a note


@dataclass(frozen=True)
class Objects:
    """What a user passed as Python objects instead of names; None: use the experiment's text."""

    algorithm: Algorithm[Any] | None = None
    data: Any = None  # Federation, Source, or one data set per peer
    dealt: Federation | None = None  # what `deal` gave for this experiment before
    model: nn.Module | Callable[..., nn.Module] | None = None
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


@dataclass(frozen=True)
class OtherNetwork:
    """A network that only some peers have."""

    peers: list[int]
    module: nn.Module


def prepare(experiment: Experiment, objects: Objects | None = None) -> Prepared:
    """Load and build; everything that can be wrong with an experiment is found here."""
    objects = objects or Objects()
    algorithm = guarded(experiment, objects.algorithm or build_algorithm(experiment))
    refuse_kept_memory(experiment, algorithm.facts)
    task = task_of(experiment)
    topology = _topology(experiment, objects)
    _check_topology(experiment, algorithm, topology)
    federation, experiment = deal(experiment, objects)
    if algorithm.facts.clusters and federation.clusters is None:
        raise ConfigError(
            f"algorithm {experiment.algorithm!r} must be told the true clusters, and partition "
            f"{experiment.partition!r} has none; use rotations(4), label-groups(...) or label-pairs(5)"
        )
    _check_task(experiment, algorithm, task, federation)
    federation = with_false_labels(experiment, federation)
    _check_stopping(experiment, federation)
    federation, module, other_networks = _networks(experiment, objects, federation, task)
    _check_networks(experiment, algorithm, federation, module, other_networks)
    augmented = Augmented.named(experiment.training.augment)
    if augmented is not None:
        augmented.check(example(federation.x))
    device = _device(experiment.execution.device)
    require_precision(experiment.execution.precision, device)
    federation = federation.to(device)
    for network in (module, *(other.module for other in other_networks.values())):
        network.to(device)  # what is frozen computes there; what trains is copied there by its node
    own = None
    if experiment.init == "independent":
        tried = example(federation.x)
        other_of = {peer: name for name, other in other_networks.items() for peer in other.peers}

        def own(node: int) -> nn.Module:
            seed = digest(experiment.seed, "own-init", node)
            return _module(experiment, objects, federation, task, tried, seed, other_of.get(node))

    return Prepared(experiment, algorithm, federation, module, topology, task, own, other_networks)


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
        raise DataError(
            f"task {experiment.task!r} is learned from {task.targets}, and the data has "
            f"{federation.targets}; choose another task, or data made with "
            f"from_arrays(..., task={experiment.task!r})"
        )
    task.check(federation)
    algorithm.check_task(task)
    loss_of(task, experiment.training, federation)  # what it cannot have is refused


def _networks(
    experiment: Experiment, objects: Objects, federation: Federation, task: Task
) -> tuple[Federation, nn.Module, dict[str, OtherNetwork]]:
    """The networks, and the data in the numbers that they compute with.

    Whole numbers stay whole where the networks take them, as an embedding does. A single tensor of them, such
    as pixels, is otherwise given as real numbers.
    """
    tried = example(federation.x)
    if not isinstance(tried, torch.Tensor) or tried.is_floating_point():
        return federation, *_built(experiment, objects, federation, task, tried)
    whole = torch.int64 if tried.dtype == torch.uint8 else tried.dtype
    try:
        networks, taken = _built(experiment, objects, federation, task, tried.to(whole)), whole
    except ConfigError as error:
        try:
            networks, taken = _built(experiment, objects, federation, task, tried.float()), torch.float32
        except ConfigError as other:
            if str(other) == str(error):
                raise
            raise ConfigError(f"with whole numbers, {error}; with real numbers, {other}") from error
    return dataclasses.replace(federation, x=each(lambda x: x.to(taken), federation.x)), *networks


def _built(
    experiment: Experiment, objects: Objects, federation: Federation, task: Task, tried: Inputs
) -> tuple[nn.Module, dict[str, OtherNetwork]]:
    """The network of most peers, and those that only some have."""
    seed = experiment.seed
    others = {
        name: OtherNetwork(peers, _module(experiment, objects, federation, task, tried, seed, name))
        for name, peers in dealt_out(experiment.models, experiment.peers).items()
    }
    return _module(experiment, objects, federation, task, tried, seed), others


def _check_networks(
    experiment: Experiment,
    algorithm: Algorithm[Any],
    federation: Federation,
    module: nn.Module,
    other_networks: dict[str, OtherNetwork],
) -> None:
    """Refuse networks that cannot be right, alone or together."""
    networks = {name: other.module for name, other in other_networks.items()}
    if sum(len(other.peers) for other in other_networks.values()) < experiment.peers:
        networks = {experiment.model: module, **networks}
    for network in networks.values():
        check_module(network)
    _check_parts(experiment, algorithm, networks)
    layer = algorithm.compared_layer()
    if layer is not None:
        _check_layer(networks, layer, example(federation.x))
    _check_together(networks, layer, federation.x, experiment.batchnorm)


def _check_parts(
    experiment: Experiment, algorithm: Algorithm[Any], networks: Mapping[str, nn.Module]
) -> None:
    """Refuse patterns of `shared` that match nothing, and a method that keeps a head where there is none."""
    if experiment.shared:
        check_shared(networks, experiment.shared)
    elif algorithm.facts.partial:
        for name, network in networks.items():
            if not head_names(network):
                raise ConfigError(
                    f"algorithm {experiment.algorithm!r} keeps the last linear layer at home, and model "
                    f"{name!r} has none that trains; say what travels instead, such as shared = 'lora_A'"
                )


def _check_layer(networks: Mapping[str, nn.Module], layer: str, tried: Inputs) -> None:
    """Refuse a layer that some network lacks, or that is not of the same size in all."""
    sizes: dict[str, int] = {}
    for name, network in networks.items():
        try:
            sizes[name] = find_layer(network, layer, tried).features
        except ConfigError as error:
            raise ConfigError(f"settings.layer with model {name!r}: {error}") from None
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{size} in {name!r}" for name, size in sizes.items())
        raise ConfigError(
            f"settings.layer {layer!r} returns different numbers of features ({shown}), which cannot be "
            "compared; leave it out to compare logits"
        )


def _check_together(networks: Mapping[str, nn.Module], layer: str | None, x: Inputs, batchnorm: str) -> None:
    """Refuse networks among which a received model could not be evaluated."""
    for (one, a), (other, b) in combinations(networks.items(), 2):
        if batchnorm == "local" and _buffers(a) != _buffers(b):
            raise ConfigError(
                "batchnorm 'local' keeps running statistics at home, without which a model of another "
                f"architecture cannot be evaluated ({one!r}, {other!r} in models); use batchnorm 'average'"
            )
        if _part(a, layer, x) == _part(b, layer, x) and not _same(a, b, layer, x):
            raise ConfigError(
                f"models {one!r} and {other!r} have parameters of the same names and shapes but compute "
                "different outputs, so that nobody could tell which a received model is; rename a layer"
            )


def _buffers(network: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in network.named_buffers() if value.is_floating_point()}


def _part(network: nn.Module, layer: str | None, x: Inputs) -> dict[str, torch.Size]:
    """Names and shapes of what the compared outputs depend on."""
    tree = model_tree(network)
    names = tree if layer is None else find_layer(network, layer, example(x)).needs
    return {name: tree[name].shape for name in names}


def _same(a: nn.Module, b: nn.Module, layer: str | None, x: Inputs) -> bool:
    """Whether both give the same outputs when they have the same parameters."""
    values = {name: value[0] for name, value in model_tree(a).items()}
    batch = example(x)
    if isinstance(batch, torch.Tensor) and batch.is_floating_point():
        batch = torch.randn(8, *batch.shape[1:], generator=torch.Generator().manual_seed(0))
    outputs = []
    for network in (a, b):
        own = {name: value for name, value in values.items() if name in model_tree(network)}
        training = network.training
        network.eval()

        def run(network: nn.Module = network, own: dict[str, torch.Tensor] = own) -> torch.Tensor:
            return answer(torch.func.functional_call(network, own, *arguments(batch)))

        with torch.no_grad():
            outputs.append(run() if layer is None else output_of(network, layer, run))
        network.train(training)
    return torch.allclose(outputs[0], outputs[1])


def _topology(experiment: Experiment, objects: Objects) -> Topology:
    given = experiment.topology if objects.topology is None else objects.topology
    topology = (
        given if isinstance(given, Topology) else make(given, peers=experiment.peers, seed=experiment.seed)
    )
    peers = topology.nodes - (topology.hub is not None)
    if peers != experiment.peers:
        raise ConfigError(f"the given topology is for {peers} peers, the experiment for {experiment.peers}")
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
        data = load_files(
            experiment.data,
            experiment.partition,
            seed=experiment.seed,
            n_classes=experiment.classes,
            task=experiment.task,
        )
    if data is None:
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


def _module(
    experiment: Experiment,
    objects: Objects,
    federation: Federation,
    task: Task,
    tried: Inputs,
    seed: int,
    other: str | None = None,
) -> nn.Module:
    """The network of the experiment, or that of the name `other` in its `models`. tried: on these samples."""
    model: Any = other
    if other is None:
        model = experiment.model if objects.model is None else objects.model
    if isinstance(model, nn.Module):
        if experiment.init == "independent":
            raise ConfigError(
                "init 'independent' needs a model class or name, not a module that already has weights"
            )
        model = _as_factory(copy.deepcopy(model) if experiment.adapter else model)
    *positions, outputs = task.output_shape(federation)
    return build(
        model,
        federation.shape,
        outputs,
        seed=seed,
        example=tried,
        positions=tuple(positions),
        adapter=experiment.adapter,
    )


def _as_factory(module: nn.Module) -> Callable[[], nn.Module]:
    """A user's module as something that can be built, so that it takes the same checks."""

    def given() -> nn.Module:
        return module

    given.__name__ = type(module).__name__
    return given


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # `meta` has shapes only, and no numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        first_sentence = str(error).partition("\n")[0].partition(". ")[0]  # of up to a thousand characters
        raise ConfigError(f"execution.device {name!r} cannot be used: {first_sentence}") from None
    return device
