"""Networks from the user's own Python file, written `path/to/file.py:Name`.

`Name` is an `nn.Module` class or a function that returns a module. It is given what it asks for:
arguments named `shape` and `n_classes`, or two required arguments of any names, or nothing.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

from coterie.errors import ConfigError
from coterie.randomness import digest
from coterie.registry import nearest

if TYPE_CHECKING:
    from coterie.models.catalogue import Architecture, Shape

_USER_FILE = re.compile(r"^(?P<file>.+\.py)(?::(?P<name>\w*))?$", re.DOTALL)


def is_user_file(model: str) -> bool:
    """Whether the text names a Python file rather than a catalogue entry."""
    return _USER_FILE.match(model) is not None


def load_architecture(model: str) -> Architecture:
    """The class or function that `path/to/file.py:Name` names, as a function of (shape, n_classes)."""
    match = _USER_FILE.match(model)
    assert match is not None, "call is_user_file first"
    file, name = match["file"], match["name"]
    namespace = vars(load_module(Path(file)))
    candidates = [key for key, value in namespace.items() if _defined_here(value, namespace["__name__"])]
    if not name:
        example = candidates[0] if candidates else "Name"
        raise ConfigError(f"model {model!r} must name a class or function: {file}:{example}")
    if name not in namespace:
        raise ConfigError(f"model {model!r}: {file} defines no {name}; {_offer(name, candidates)}")
    return from_factory(namespace[name], file, name)


def from_factory(factory: Any, file: str, name: str) -> Architecture:
    """A user's class or function, given the arguments that it asks for."""
    if not callable(factory) or (inspect.isclass(factory) and not issubclass(factory, nn.Module)):
        raise ConfigError(
            f"{name} in {file} is {factory!r}, not a torch.nn.Module class or a function that returns one"
        )

    def build(shape: Shape, n_classes: int) -> nn.Module:
        return _construct(factory, file, name, shape, n_classes)

    return build


def load_module(path: Path) -> ModuleType:
    """The user's Python file, executed once per version of the file."""
    path = path.expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    return _load(str(path.resolve()), path.stat().st_mtime_ns)


def _construct(factory: Callable[..., Any], file: str, name: str, shape: Shape, n_classes: int) -> nn.Module:
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


@lru_cache(maxsize=32)
def _load(path: str, modified: int) -> ModuleType:
    """Execute the file once per version: `modified` makes an edited file load again."""
    module_name = f"coterie_user_{Path(path).stem}_{digest(modified, path):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None  # holds for every name ending in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look classes up there
    try:
        with _importing_from(str(Path(path).parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end with sys.exit()
        del sys.modules[module_name]
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Let the file import its neighbours, as it could if the user ran it."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _defined_here(value: Any, module_name: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module_name


def _offer(name: str, candidates: list[str]) -> str:
    return nearest(name, candidates) if candidates else "it defines no class or function at all"
