"""The parts of a network, by name: what is frozen, what a peer's model is made of, what of it travels.

A parameter that needs no gradient is frozen. It exists once in a process, and is never sent, mixed or saved.
A buffer goes with its layer: it is frozen where all parameters of its layer are, and such a layer runs as in
evaluation, for its statistics must stay what they are. In a network with frozen parameters, buffers that no
state dict holds (`persistent=False`) count as constants, and are frozen, too. All else is the peer's model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from coterie.errors import ConfigError

NEW_LAYERS = "coterie_new_layers"
"""Attribute of a pretrained network: names of layers that begin with random weights, such as a classifier."""
_SHOWN = 6  # names in an error


def model_tree(module: nn.Module) -> dict[str, Tensor]:
    """What peers' models are made of: parameters that train and floating-point buffers, one row, copied.

    Integer buffers (`num_batches_tracked`) are never averaged, so they are left out.
    """
    frozen, named = frozen_names(module), [*module.named_parameters(), *module.named_buffers()]
    return {
        name: value.detach().clone()[None]
        for name, value in named
        if value.is_floating_point() and name not in frozen
    }


def frozen_names(module: nn.Module) -> frozenset[str]:
    """Parameters that do not train, and the floating-point buffers that stay as they are with them."""
    frozen = {name for name, value in module.named_parameters() if not value.requires_grad}
    if not frozen:
        return frozenset()
    for prefix, layer in module.named_modules():
        still = _is_still(layer)
        for name, value in layer.named_buffers(recurse=False):
            if value.is_floating_point() and (still or name in layer._non_persistent_buffers_set):
                frozen.add(f"{prefix}.{name}" if prefix else name)
    return frozenset(frozen)


def still_layers(module: nn.Module) -> list[str]:
    """Layers that run as in evaluation while others train: those with buffers and frozen parameters only."""
    return [name for name, layer in module.named_modules() if _is_still(layer) and _has_statistics(layer)]


def copy_of(module: nn.Module) -> nn.Module:
    """A copy of what trains around the same frozen tensors, which need not be there twice."""
    frozen, named = frozen_names(module), [*module.named_parameters(), *module.named_buffers()]
    return copy.deepcopy(module, {id(value): value for name, value in named if name in frozen})


def _is_still(layer: nn.Module) -> bool:
    own = list(layer.parameters(recurse=False))
    return bool(own) and not any(value.requires_grad for value in own)


def _has_statistics(layer: nn.Module) -> bool:
    return any(value.is_floating_point() for value in layer.buffers(recurse=False))


@dataclass(frozen=True)
class Parts:
    """The names of a peer's model. By default its head is the last linear layer."""

    body: tuple[str, ...]
    head: tuple[str, ...]
    at_home: tuple[str, ...]  # of these, what never travels, because `shared` leaves it out

    @classmethod
    def of(cls, module: nn.Module, shared: str = "") -> Parts:
        """shared: patterns of what travels; the rest is then the head, and stays at home."""
        names = tuple(model_tree(module))
        head = tuple(n for n in names if n not in matching(names, shared)) if shared else head_names(module)
        body = tuple(name for name in names if name not in head)
        return cls(body, head, head if shared else ())


def head_names(module: nn.Module) -> tuple[str, ...]:
    """Parameters of the last `nn.Linear`, as in the papers; empty where there is none, or it is frozen."""
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)][-1:]
    names = [name for name, value in module.named_parameters() if value.requires_grad]
    # A module that is itself one nn.Linear is named "" by torch.
    return tuple(name for name in names for last in linear if not last or name.startswith(f"{last}."))


def matching(names: Iterable[str], patterns: str, where: str = "shared") -> tuple[str, ...]:
    """The names that a text such as `lora_A|classifier` matches.

    A pattern stands for whole parts of a dotted name, at any place in it; `*` and `?` as in file names. After
    an exclamation mark it takes names away, from all if it is the first. where: the setting, for errors.
    """
    names, several = tuple(names), _split(patterns, where)
    chosen = set(names) if several[0].startswith("!") else set()
    for pattern in several:
        found = {name for name in names if _matches(name, pattern)}
        chosen = chosen - found if pattern.startswith("!") else chosen | found
    return tuple(name for name in names if name in chosen)


def _split(patterns: str, where: str = "shared") -> list[str]:
    several = [pattern for part in patterns.split("|") if (pattern := part.strip()).lstrip("!")]
    if not several:
        raise ConfigError(f"{where} {patterns!r} holds no pattern; write it as lora_A|classifier")
    return several


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(f".{name}.", f"*.{pattern.removeprefix('!').strip('.')}.*")


def check_shared(networks: Mapping[str, nn.Module], shared: str) -> None:
    """Refuse patterns that match nothing of any network, and such as leave nothing to share."""
    trees = [tuple(model_tree(network)) for network in networks.values()]
    names = [name for tree in trees for name in tree]
    for pattern in _split(shared):
        if not any(_matches(name, pattern) for name in names):
            raise ConfigError(_no_match(pattern, names, networks))
    for network, tree in zip(networks, trees, strict=True):
        if not matching(tree, shared):
            raise ConfigError(
                f"shared {shared!r} lets nothing of model {network!r} travel; with algorithm 'local', "
                "nothing does"
            )


def _no_match(pattern: str, names: list[str], networks: Mapping[str, nn.Module]) -> str:
    frozen = [n for network in networks.values() for n in frozen_names(network) if _matches(n, pattern)]
    known = f"what trains: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
    if frozen:
        return (
            f"shared: {pattern!r} matches only frozen parameters, such as {min(frozen)}, which never travel; "
            f"{known}"
        )
    return f"shared: {pattern!r} matches no parameter of the model; {known}"
