"""From what the user typed to a network with reproducible initial weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from coterie.catalogue import models
from coterie.errors import ConfigError
from coterie.models.catalogue import Architecture, Shape, written
from coterie.randomness import digest
from coterie.user_code import from_factory, is_user_file, load_architecture


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
        return from_factory(model, "this program", name), name
    return load_architecture(model) if is_user_file(model) else models.build(model), model


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
