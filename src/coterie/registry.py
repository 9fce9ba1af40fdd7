"""Names that users type, such as `dirichlet(0.3)`, and the functions or classes behind them.

The same spelling works on the command line, in TOML and in Python. A factory's signature is its
schema: arguments are converted to the annotated types, and a mistake gets the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from coterie.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_CALL = re.compile(r"^\s*([A-Za-z0-9][\w.+-]*)\s*(?:\((.*)\))?\s*$", re.DOTALL)


def parse_call(text: str, kind: str = "name") -> tuple[str, list[str], dict[str, str]]:
    """Split `name(a,b,key=c)` into its name, positional and keyword arguments, all as strings."""
    match = _CALL.match(text)
    if match is None:
        raise ConfigError(f"{kind} {text!r} is not of the form name or name(argument,...)")
    name, inside = match.groups()
    positional: list[str] = []
    keywords: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in (inside or "").split(","))):
        key, equals, value = part.partition("=")
        if equals:
            keywords[key.strip()] = value.strip()
        elif keywords:
            raise ConfigError(f"{kind} {text!r}: {part!r} follows a key=value argument")
        else:
            positional.append(part)
    return name, positional, keywords


def nearest(name: str, options: Iterable[str]) -> str:
    """A sentence that helps: the closest valid names, or all of them when none is close."""
    spelled = {option.casefold(): option for option in sorted(options)}
    close = difflib.get_close_matches(name.casefold(), spelled, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(spelled[option] for option in close)}?"
    return f"choose from: {', '.join(spelled.values())}"


class Registry(Generic[T]):
    """A catalogue of one kind of thing: data sets, models, partitions, topologies, algorithms."""

    def __init__(self, kind: str, homes: Mapping[str, str] | None = None) -> None:
        """homes: where what a name stands for lives, as `module:name`; imported when it is asked for."""
        self.kind = kind
        self._factories: dict[str, Callable[..., T] | str] = dict(homes or {})

    def register(self, name: str) -> Callable[[F], F]:
        """Decorator: make a function or class available as `name`; defined again, it replaces the former."""

        def add(factory: F) -> F:
            if name in self._factories and not _redefines(factory, self._factories[name]):
                raise ConfigError(
                    f"{self.kind} {name!r} exists already: it is {_described(self._factories[name])}; "
                    "choose another name"
                )
            self._factories[name] = factory
            return factory

        return add

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __contains__(self, name: str) -> bool:
        return name in self._factories

    def require(self, name: str) -> None:
        """Fail if there is no such name. Imports nothing."""
        if name not in self._factories:
            raise ConfigError(f"unknown {self.kind} {name!r}; {nearest(name, self)}")

    def __getitem__(self, name: str) -> Callable[..., T]:
        self.require(name)
        found = self._factories[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self._factories[name] = getattr(import_module(module), attribute)
        return found

    def signature(self, name: str) -> str:
        """How a user writes it: `small-world(k,p=0.1)`."""
        shown = [_show(p) for p in inspect.signature(self[name]).parameters.values()]
        return f"{name}({','.join(shown)})" if shown else name

    def summary(self, name: str) -> str:
        """First line of the factory's docstring."""
        return (inspect.getdoc(self[name]) or "").partition("\n")[0]

    def build(self, text: str) -> T:
        """Build what `text` names, converting arguments by the factory's annotations."""
        name, positional, keywords = parse_call(text, self.kind)
        factory = self[name]
        parameters = inspect.signature(factory).parameters
        for key in keywords:
            if key not in parameters:
                raise ConfigError(f"{self.kind} {name!r} has no argument {key!r}; {nearest(key, parameters)}")
        try:
            bound = inspect.signature(factory).bind(*positional, **keywords)
        except TypeError as error:
            raise ConfigError(f"{self.kind} {text!r}: {error}; write it as {self.signature(name)}") from None
        hints = _hints(factory)
        for key, value in bound.arguments.items():
            convert = TypeAdapter(hints.get(key, str)).validate_python
            try:
                several = parameters[key].kind is inspect.Parameter.VAR_POSITIONAL
                bound.arguments[key] = tuple(map(convert, value)) if several else convert(value)
            except ValueError:  # pydantic.ValidationError is one
                wanted = readable(hints.get(key, str))
                raise ConfigError(f"{self.kind} {text!r}: {key} must be {wanted}, not {value!r}") from None
        return factory(*bound.args, **bound.kwargs)


def _redefines(factory: Callable[..., Any], former: Callable[..., Any] | str) -> bool:
    """Whether a cell of a notebook was run again, perhaps edited, or a module was loaded again."""
    if isinstance(former, str):
        return False
    in_notebook = factory.__module__ == former.__module__ == "__main__"
    return in_notebook or _described(factory) == _described(former)


def _described(factory: Callable[..., Any] | str) -> str:
    return factory if isinstance(factory, str) else f"{factory.__module__}:{factory.__qualname__}"


def readable(hint: Any) -> str:
    """A type as people write it: int, int | None, or the words that are allowed."""
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return hint.__name__ if inspect.isclass(hint) else str(hint).replace("typing.", "")


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    if inspect.isclass(factory) and not dataclasses.is_dataclass(factory):
        return get_type_hints(factory.__init__)
    return get_type_hints(factory)  # a dataclass's fields, each resolved in the module that declares it


def _show(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"{parameter.name},..."
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default}"
