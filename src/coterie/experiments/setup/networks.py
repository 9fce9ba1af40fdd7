"""The networks of an experiment: built for its data, tried on samples of it, and checked with each other."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import nn

from coterie.data import Federation
from coterie.data.federation import example
from coterie.errors import ConfigError
from coterie.experiments.setup.schema import Experiment, dealt_out
from coterie.inputs import Inputs, answer, arguments, each
from coterie.learning import Task, check_module, model_tree
from coterie.models import build, check_shared, find_layer, head_names, output_of
from coterie.protocol import Algorithm

GivenModel: TypeAlias = nn.Module | Callable[..., nn.Module] | None
"""A model that was passed as a Python object; None: the experiment names it."""


@dataclass(frozen=True)
class OtherNetwork:
    """A network that only some peers have."""

    peers: list[int]
    module: nn.Module


def networks(
    experiment: Experiment, given: GivenModel, federation: Federation, task: Task
) -> tuple[Federation, nn.Module, dict[str, OtherNetwork]]:
    """The networks, and the data in the numbers that they compute with.

    Whole numbers stay whole where the networks take them, as an embedding does. A single tensor of them, such
    as pixels, is otherwise given as real numbers.
    """
    tried = example(federation.x)
    if not isinstance(tried, torch.Tensor) or tried.is_floating_point():
        return federation, *_built(experiment, given, federation, task, tried)
    whole = torch.int64 if tried.dtype == torch.uint8 else tried.dtype
    try:
        networks, taken = _built(experiment, given, federation, task, tried.to(whole)), whole
    except ConfigError as error:
        try:
            networks, taken = _built(experiment, given, federation, task, tried.float()), torch.float32
        except ConfigError as other:
            if str(other) == str(error):
                raise
            raise ConfigError(f"with whole numbers, {error}; with real numbers, {other}") from error
    return dataclasses.replace(federation, x=each(lambda x: x.to(taken), federation.x)), *networks


def _built(
    experiment: Experiment, given: GivenModel, federation: Federation, task: Task, tried: Inputs
) -> tuple[nn.Module, dict[str, OtherNetwork]]:
    """The network of most peers, and those that only some have."""
    seed = experiment.seed
    others = {
        name: OtherNetwork(peers, network(experiment, given, federation, task, tried, seed, name))
        for name, peers in dealt_out(experiment.models, experiment.peers).items()
    }
    return network(experiment, given, federation, task, tried, seed), others


def check_networks(
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


def network(
    experiment: Experiment,
    given: GivenModel,
    federation: Federation,
    task: Task,
    tried: Inputs,
    seed: int,
    other: str | None = None,
) -> nn.Module:
    """The network of the experiment, or that of the name `other` in its `models`. tried: on these samples."""
    model: Any = other
    if other is None:
        model = experiment.model if given is None else given
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
