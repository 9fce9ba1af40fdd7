"""From what the user typed to a network with reproducible initial weights.

A network of the user's own is an `nn.Module` class or a function that returns a module. It is given what it
asks for: arguments named `shape` and `n_classes`, or two required arguments of any names, or nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from coterie.catalogue import models
from coterie.errors import ConfigError
from coterie.models.architecture import Architecture, Shape, written
from coterie.randomness import digest
from coterie.user_code import is_file_reference, load_reference, split_reference


def build(model: str | Callable[..., nn.Module], shape: Shape, n_classes: int, *, seed: int) -> nn.Module:
    """Build a network for inputs of `shape` (without the batch axis); weights depend on `seed` only.

    `model` is a catalogue name such as `mlp` or `blend-cnn(groups=8)`, or `path/to/file.py:Name` for
    the user's own class or function, or that class or function itself. The global random state of
    torch is left as it was.
    """
    shape = tuple(shape)
    if n_classes < 1 or any(size < 1 for size in shape):
        raise ConfigError(f"model {model!r}: cannot map inputs {written(shape)} to {n_classes} classes")
    architecture, model = _architecture(model)
    # Layers draw their weights from torch's global CPU generator and take no other.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(digest(seed, "init") % 2**63)
        module = _construct(architecture, model, shape, n_classes)
        _check_logits(module, model, shape, n_classes)
    return module


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a tensor was too large; on a CPU, PyTorch has no class of its own for that."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def _architecture(model: str | Callable[..., nn.Module]) -> tuple[Architecture, str]:
    if not isinstance(model, str):
        name = getattr(model, "__name__", "model")
        return _from_factory(model, "this program", name), name
    if is_file_reference(model):
        return _from_factory(load_reference(model, "model"), *split_reference(model)), model
    return models.build(model), model


def _from_factory(factory: Any, file: str, name: str) -> Architecture:
    """A user's class or function, given the arguments that it asks for."""
    if not callable(factory) or (inspect.isclass(factory) and not issubclass(factory, nn.Module)):
        raise ConfigError(
            f"{name} in {file} is {factory!r}, not a torch.nn.Module class or a function that returns one"
        )

    def build(shape: Shape, n_classes: int) -> nn.Module:
        return _from_user(factory, file, name, shape, n_classes)

    return build


def _from_user(factory: Callable[..., Any], file: str, name: str, shape: Shape, n_classes: int) -> nn.Module:
    positional, keywords = _arguments(factory, file, name, shape, n_classes)
    try:
        module = factory(*positional, **keywords)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name} in {file} raised {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name} in {file} returned {type(module).__name__}, not a torch.nn.Module")
    return module


def _arguments(
    factory: Callable[..., Any], file: str, name: str, shape: Shape, n_classes: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    offered = {"shape": shape, "n_classes": n_classes}
    parameters = _signature(factory, file, name).parameters.values()
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    keywords = {p.name: offered[p.name] for p in by_name if p.name in offered}
    # *args and **kwargs ask for nothing: a class without its own __init__ has them from nn.Module.
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind not in variadic]
    if all(p.name in keywords for p in required):
        return (), keywords
    in_order = len(required) == 2 and required[0].name != "n_classes" and required[1].name != "shape"
    if in_order and all(p.kind is not p.KEYWORD_ONLY for p in required):
        return (shape, n_classes), {}
    asked = ", ".join(p.name for p in required)
    raise ConfigError(
        f"{name} in {file} requires ({asked}); Coterie can give (shape, n_classes), either or none"
    )


def _signature(factory: Callable[..., Any], file: str, name: str) -> inspect.Signature:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError) as error:  # functions written in C may have none
        raise ConfigError(
            f"{name} in {file} does not say what arguments it takes ({error}); wrap it in a function of "
            "(shape, n_classes)"
        ) from error


def _construct(architecture: Architecture, model: str, shape: Shape, n_classes: int) -> nn.Module:
    try:
        return architecture(shape, n_classes)
    except (RuntimeError, TypeError, MemoryError) as error:  # what PyTorch says to sizes beyond all bounds
        reason = "it does not fit in memory" if is_out_of_memory(error) else str(error).partition("\n")[0]
        raise ConfigError(f"model {model!r} cannot be built for inputs {written(shape)}: {reason}") from error


def _check_logits(module: nn.Module, model: str, shape: Shape, n_classes: int) -> None:
    """Refuse a network that does not give logits for this data, before any training starts."""
    batch, wanted = (2, *shape), (2, n_classes)
    was_training = module.training
    module.eval()  # a batch of zeros must not enter running statistics
    try:
        with torch.no_grad():
            logits = module(torch.zeros(batch))
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"model {model!r} fails on a batch of shape {batch}: {type(error).__name__}: {error}"
        ) from error
    finally:
        module.train(was_training)
    if not isinstance(logits, Tensor):
        raise ConfigError(f"model {model!r} must return a tensor of logits, not {type(logits).__name__}")
    if tuple(logits.shape) != wanted:
        raise ConfigError(
            f"model {model!r} maps a batch of shape {batch} to {tuple(logits.shape)}; "
            f"logits of shape {wanted} are needed for {n_classes} classes"
        )
