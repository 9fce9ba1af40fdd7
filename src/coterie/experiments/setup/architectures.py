"""Checks of an experiment's networks against its algorithm: named layers, and networks that differ."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import nn

from coterie.errors import ConfigError
from coterie.learning import model_tree
from coterie.models import find_layer, output_of


def check_layer(networks: Mapping[str, nn.Module], layer: str, shape: tuple[int, ...]) -> None:
    """Refuse a layer that some network lacks, or that is not of the same size in all."""
    sizes: dict[str, int] = {}
    for name, network in networks.items():
        try:
            sizes[name] = find_layer(network, layer, shape).features
        except ConfigError as error:
            raise ConfigError(f"settings.layer with model {name!r}: {error}") from None
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{size} in {name!r}" for name, size in sizes.items())
        raise ConfigError(
            f"settings.layer {layer!r} returns different numbers of features ({shown}), which cannot be "
            "compared; leave it out to compare logits"
        )


def check_networks(
    networks: Mapping[str, nn.Module], layer: str | None, shape: tuple[int, ...], batchnorm: str
) -> None:
    """Refuse networks among which a received model could not be evaluated."""
    for (one, a), (other, b) in combinations(networks.items(), 2):
        if batchnorm == "local" and _buffers(a) != _buffers(b):
            raise ConfigError(
                "batchnorm 'local' keeps running statistics at home, without which a model of another "
                f"architecture cannot be evaluated ({one!r}, {other!r} in models); use batchnorm 'average'"
            )
        if _part(a, layer, shape) == _part(b, layer, shape) and not _same(a, b, layer, shape):
            raise ConfigError(
                f"models {one!r} and {other!r} have parameters of the same names and shapes but compute "
                "different outputs, so that nobody could tell which a received model is; rename a layer"
            )


def _buffers(network: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in network.named_buffers() if value.is_floating_point()}


def _part(network: nn.Module, layer: str | None, shape: tuple[int, ...]) -> dict[str, torch.Size]:
    """Names and shapes of what the compared outputs depend on."""
    tree = model_tree(network)
    names = tree if layer is None else find_layer(network, layer, shape).needs
    return {name: tree[name].shape for name in names}


def _same(a: nn.Module, b: nn.Module, layer: str | None, shape: tuple[int, ...]) -> bool:
    """Whether both give the same outputs when they have the same parameters."""
    values = {name: value[0] for name, value in model_tree(a).items()}
    batch = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    outputs = []
    for network in (a, b):
        own = {name: value for name, value in values.items() if name in model_tree(network)}
        training = network.training
        network.eval()

        def run(network: nn.Module = network, own: dict[str, torch.Tensor] = own) -> torch.Tensor:
            logits: torch.Tensor = torch.func.functional_call(network, own, (batch,))
            return logits

        with torch.no_grad():
            outputs.append(run() if layer is None else output_of(network, layer, run))
        network.train(training)
    return torch.allclose(outputs[0], outputs[1])
