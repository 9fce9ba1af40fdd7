"""From what the user typed to a network with reproducible initial weights.

A network of the user's own is an `nn.Module` class or a function that returns a module. It is given what it
asks for: arguments named `shape` and `n_classes`, or else its first two required arguments, or nothing. Its
other arguments are those that the user writes in parentheses: `nets.py:Net(hidden=32)`. `shape` is that of a
sample; where it has several inputs, a tuple or a dict of their shapes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from coterie.catalogue import adapters, models, pretrained
from coterie.errors import ConfigError
from coterie.inputs import Inputs, Shapes, answer, arguments, count, named
from coterie.models.architecture import Architecture, written
from coterie.randomness import digest
from coterie.registry import fill, load_reference, parse_call
from coterie.user_code import described, is_file_reference, pretrained_folder


def build(
    model: str | Callable[..., nn.Module],
    shape: Shapes,
    n_classes: int,
    *,
    seed: int,
    example: Inputs | None = None,
    positions: tuple[int, ...] = (),
    adapter: str = "",
) -> nn.Module:
    """Build a network for inputs of `shape` (without the batch axis); weights depend on `seed` only.

    `model` is a catalogue name such as `mlp` or `blend-cnn(groups=8)`, or `path/to/file.py:Name` for
    the user's own class or function, or that class or function itself; `hf:folder` is a pretrained one. The
    global random state of torch is left as it was. example: samples that the network is tried with; default:
    one tensor of ones. n_classes: how many outputs the task needs. positions: of a sequence, with outputs at
    each. adapter: such as `lora(r=8)`, beside which the rest is frozen.
    """
    if example is None:
        example = torch.ones(2, *shape)
    if n_classes < 1 or any(0 in part.shape for part in named(example).values()):
        raise ConfigError(f"model {model!r}: cannot map inputs {written(shape)} to {n_classes} classes")
    architecture, model = _architecture(model, example, bool(positions))
    # Layers draw their weights from torch's global CPU generator and take no other.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(digest(seed, "init") % 2**63)
        module = _construct(architecture, model, shape, n_classes)
        if adapter:
            module = adapters.build(adapter).adapted(module)
        _check_logits(module, model, example, (*positions, n_classes))
    return module


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a tensor was too large; on a CPU, PyTorch has no class of its own for that."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def _architecture(
    model: str | Callable[..., nn.Module], example: Inputs, at_each_position: bool
) -> tuple[Architecture, str]:
    if not isinstance(model, str):
        name = getattr(model, "__name__", "model")
        return _from_factory(model, f"this program:{name}", [], {}), name
    folder = pretrained_folder(model)
    if folder is not None:
        return pretrained["hf"](folder, at_each_position), model
    if is_file_reference(model):
        reference, positional, keywords = parse_call(model, "model")
        return _from_factory(load_reference(reference, "model"), reference, positional, keywords), model
    if not isinstance(example, Tensor):
        raise ConfigError(
            f"model {model!r} takes one array per sample, and a sample here has {_listed(example)}; use a "
            "module of your own, whose forward takes them"
        )
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

    def build(shape: Shapes, n_classes: int) -> nn.Module:
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


def _construct(architecture: Architecture, model: str, shape: Shapes, n_classes: int) -> nn.Module:
    try:
        return architecture(shape, n_classes)
    except (RuntimeError, TypeError, MemoryError) as error:  # what PyTorch says to sizes beyond all bounds
        reason = "it does not fit in memory" if is_out_of_memory(error) else str(error).partition("\n")[0]
        raise ConfigError(f"model {model!r} cannot be built for inputs {written(shape)}: {reason}") from error


def _check_logits(module: nn.Module, model: str, example: Inputs, outputs: tuple[int, ...]) -> None:
    """Refuse a network that does not give logits for this data, before any training starts."""
    given, by_name = arguments(example)
    _check_arguments(module, model, example)
    batch, wanted = _batch(example), (count(example), *outputs)
    was_training = module.training
    module.eval()  # the example must not enter running statistics
    try:
        with torch.no_grad():
            output = module(*given, **by_name)
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {error}{_hint(error, example)}"
        raise ConfigError(f"model {model!r} fails on a batch of {batch}: {problem}") from error
    finally:
        module.train(was_training)
    try:
        logits = answer(output)
    except ConfigError as error:
        raise ConfigError(f"model {model!r}: {error}") from None
    if tuple(logits.shape) != wanted:
        raise ConfigError(
            f"model {model!r} maps a batch of {batch} to {tuple(logits.shape)}; "
            f"logits of shape {wanted} are needed for {outputs[-1]} classes"
        )


def _check_arguments(module: nn.Module, model: str, example: Inputs) -> None:
    """Refuse a network whose forward does not take these inputs."""
    given, by_name = arguments(example)
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*given, **by_name)
    except TypeError as error:
        raise ConfigError(
            f"model {model!r} has forward{signature}, and a sample here has {_listed(example)}: {error}; "
            "inputs of a dict are given by their names, those of a tuple by position"
        ) from None


def _listed(example: Inputs) -> str:
    """The inputs by name; those by position are counted."""
    by_position, by_name = arguments(example)
    counted = f"{len(by_position)} input{'s' * (len(by_position) > 1)} by position"
    return " and ".join([counted] * bool(by_position) + list(by_name))


def _batch(example: Inputs) -> str:
    if isinstance(example, Tensor):
        return f"shape {tuple(example.shape)}"
    return ", ".join(f"{name} {tuple(part.shape)}" for name, part in example.items())


def _hint(error: BaseException, example: Inputs) -> str:
    """What an index beyond the end most often means."""
    whole = [part for part in named(example).values() if not part.is_floating_point()]
    if not isinstance(error, IndexError) or not whole:
        return ""
    largest = max(int(part.max()) for part in whole)
    return f"; the data has whole numbers up to {largest}: an embedding for them needs {largest + 1} entries"
