"""From what the user typed to a network with reproducible initial weights.

A network of the user's own is an `nn.Module` class or a function that returns a module. It is given what it
asks for: arguments named `shape` and `n_classes`, or else its first two required arguments, or nothing. Its
other arguments are those that the user writes in parentheses: `nets.py:Net(hidden=32)`.
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
from coterie.registry import fill, load_reference, parse_call
from coterie.user_code import described, is_file_reference


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
        return _from_factory(model, f"this program:{name}", [], {}), name
    if is_file_reference(model):
        reference, positional, keywords = parse_call(model, "model")
        return _from_factory(load_reference(reference, "model"), reference, positional, keywords), model
    return models.build(model), model


def _from_factory(
    factory: Any, reference: str, positional: list[str], keywords: dict[str, str]
) -> Architecture:
    """A user's class or function, given what it asks for and what the user wrote in parentheses."""
    file, _, name = reference.rpartition(":")
    shown = f"{name} in {file}"
    if not callable(factory) or (inspect.isclass(factory) and not issubclass(factory, nn.Module)):
        raise ConfigError(
            f"{shown} is {factory!r}, not a torch.nn.Module class or a function that returns one"
        )

    def build(shape: Shape, n_classes: int) -> nn.Module:
        offers = {"shape": shape, "n_classes": n_classes}
        module = _called(factory, shown, file, fill(factory, shown, positional, keywords, offers))
        if callable(module) and not isinstance(module, nn.Module):  # as the catalogue's are: mlp(64)
            module = _called(module, shown, file, fill(module, shown, [], {}, offers))
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{shown} returned {type(module).__name__}, not a torch.nn.Module")
        return module

    return build


def _called(factory: Callable[..., Any], shown: str, file: str, arguments: inspect.BoundArguments) -> Any:
    try:
        return factory(*arguments.args, **arguments.kwargs)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{shown} raised {described(error, file)}") from error


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
