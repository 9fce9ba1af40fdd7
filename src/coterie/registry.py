"""Names that users type, such as `dirichlet(0.3)`, and the functions or classes behind them.

The same spelling works on the command line, in TOML and in Python. A factory's signature is its
schema: arguments are converted to the annotated types, and a mistake gets the nearest valid name.
Wherever a name of a catalogue may stand, `file.py:Name(arguments)` may stand for the user's own code.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from coterie.errors import ConfigError, CoterieError
from coterie.user_code import (
    data_file_parts,
    described,
    is_data_file,
    is_file_reference,
    module_of,
    reference_parts,
    split_reference,
)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_CALL = re.compile(r"^\s*([A-Za-z0-9][\w.+-]*)\s*(?:\((.*)\))?\s*$", re.DOTALL)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def parse_call(text: str, kind: str = "name") -> tuple[str, list[str], dict[str, str]]:
    """Split `name(a,b,key=c)` into its name, positional and keyword arguments, all as strings.

    The name may be `file.py:Name`.
    """
    if is_data_file(text):
        name, inside = data_file_parts(text)
        inside = inside[1:-1]
    elif is_file_reference(text):
        file, entry, inside = reference_parts(text)
        name, inside = f"{file}:{entry}" if entry else file, inside[1:-1]
    elif (match := _CALL.match(text)) is not None:
        name, inside = match[1], match[2] or ""
    else:
        raise ConfigError(f"{kind} {text!r} is not of the form name or name(argument,...)")
    positional: list[str] = []
    keywords: dict[str, str] = {}
    for part in filter(None, map(str.strip, split_outside_brackets(inside))):
        key, equals, value = part.partition("=")
        if equals:
            keywords[key.strip()] = value.strip()
        elif keywords:
            raise ConfigError(f"{kind} {text!r}: {part!r} follows a key=value argument")
        else:
            positional.append(part)
    return name, positional, keywords


def split_outside_brackets(text: str) -> list[str]:
    """The parts between commas; `mlp(64),nets.py:Net(4,8)` has two: those in brackets do not count."""
    parts, depth = [""], 0
    for character in text:
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def nearest(name: str, options: Iterable[str]) -> str:
    """A sentence that helps: the closest valid names, or all of them when none is close."""
    spelled = {option.casefold(): option for option in sorted(options)}
    close = difflib.get_close_matches(name.casefold(), spelled, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(spelled[option] for option in close)}?"
    return f"choose from: {', '.join(spelled.values())}"


class Registry(Generic[T]):
    """A catalogue of one kind of thing: data sets, models, partitions, topologies, algorithms."""

    def __init__(self, kind: str, homes: Mapping[str, str] | None = None, check: str = "") -> None:
        """homes: where what a name stands for lives, as `module:name`; imported when it is asked for.

        check: where the function lives that refuses what cannot be of this kind. It is called with what a
        user's file defines and with its name in messages.
        """
        self.kind = kind
        self._factories: dict[str, Callable[..., T] | str] = dict(homes or {})
        self._check = check

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

    def register_by_class(self, cls: type[Any]) -> str:
        """Make a class available under its own name, numbered if another class has that: `Mine-2`."""
        numbered = (cls.__name__ if n == 1 else f"{cls.__name__}-{n}" for n in itertools.count(1))
        free = (n for n in numbered if n not in self or _redefines(cls, self._factories[n]))
        name = next(free)
        self.register(name)(cls)
        return name

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __contains__(self, name: str) -> bool:
        return name in self._factories

    def require(self, name: str) -> None:
        """Fail if there is no such name. Imports nothing, so that what is in a user's file is not seen."""
        if name not in self._factories and not is_file_reference(name):
            raise ConfigError(f"unknown {self.kind} {name!r}; {nearest(name, self)}")

    def __getitem__(self, name: str) -> Callable[..., T]:
        self.require(name)
        if is_file_reference(name):
            return self._of_user(name)
        found = self._factories[name]
        if isinstance(found, str):
            found = self._factories[name] = _at_home(found)
        return found

    def _of_user(self, reference: str) -> Callable[..., T]:
        found = load_reference(reference, self.kind)
        file, name = split_reference(reference)
        if not callable(found):
            raise ConfigError(
                f"{self.kind} {reference!r}: {name} in {file} is {found!r}, not a class or function"
            )
        if self._check:
            _at_home(self._check)(found, f"{self.kind} {reference!r}: {name} in {file}")
        return found  # type: ignore[no-any-return]

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
        arguments = fill(factory, f"{self.kind} {text!r}", positional, keywords)
        if is_file_reference(name):
            own: T = call_user_code(factory, arguments, name)
            return own
        return factory(*arguments.args, **arguments.kwargs)


def load_reference(reference: str, what: str) -> Any:
    """The class, function or value that `file.py:Name` stands for. what: "model", for messages."""
    file, name = split_reference(reference)
    namespace = vars(module_of(Path(file)))
    known = [key for key, value in namespace.items() if _defined_here(value, namespace["__name__"])]
    if not name:
        example = known[0] if known else "name"
        raise ConfigError(f"{what} {reference!r} must name a class or function: {file}:{example}")
    if name not in namespace:
        hint = nearest(name, known) if known else "it defines no class or function at all"
        raise ConfigError(f"{what} {reference!r}: {file} defines no {name}; {hint}")
    return namespace[name]


def call_user_code(
    factory: Callable[..., Any],
    arguments: inspect.BoundArguments,
    reference: str,
    error_class: type[CoterieError] = ConfigError,
) -> Any:
    """What the user's class or function gives; whatever it raises is an error that names it."""
    file, name = split_reference(reference)
    try:
        return factory(*arguments.args, **arguments.kwargs)
    except CoterieError as error:
        raise error_class(f"{name} in {file}: {error}") from error
    except (Exception, SystemExit) as error:
        raise error_class(f"{name} in {file} raised {described(error, file)}") from error


def fill(
    factory: Callable[..., Any],
    shown: str,
    positional: Sequence[str],
    keywords: Mapping[str, str],
    offers: Mapping[str, Any] = _NOTHING,
) -> inspect.BoundArguments:
    """The arguments of a factory: those that the user wrote, converted by its annotations, and the offers.

    offers: what Coterie gives to the parameters of these names, or, if there are none of these names, to the
    first required ones, if there are enough. What the user writes is for the others. shown: for messages.
    """
    signature = _signature(factory, shown)
    taken = _takers(signature, keywords, offers)
    own = signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in taken])
    _refuse_unknown_keywords(own, shown, keywords, taken)
    try:
        bound = own.bind(*positional, **keywords)
    except TypeError as error:
        gives = f"; Coterie gives {', '.join(offers)}" if offers else ""
        raise ConfigError(f"{shown}: {error}; {_takes(own)}{gives}") from None
    hints = hints_of(factory, shown) if bound.arguments else {}
    for key, value in bound.arguments.items():
        bound.arguments[key] = _converted(value, own.parameters[key], hints, shown)
    values = {**taken, **bound.arguments}
    return inspect.BoundArguments(
        signature, {key: values[key] for key in signature.parameters if key in values}
    )


def _takers(
    signature: inspect.Signature, keywords: Mapping[str, str], offers: Mapping[str, Any]
) -> dict[str, Any]:
    """Which parameters take what is offered."""
    parameters = [p for p in signature.parameters.values() if p.kind not in _VARIADIC]
    named = {p.name: offers[p.name] for p in parameters if p.name in offers}
    required = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind is not p.KEYWORD_ONLY and p.name not in keywords
    ]
    if named or len(required) < len(offers):
        return named
    return dict(zip(required, offers.values(), strict=False))


def _refuse_unknown_keywords(
    own: inspect.Signature, shown: str, keywords: Iterable[str], taken: Mapping[str, Any]
) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in own.parameters.values()):
        return
    for key in keywords:
        if key in taken:
            raise ConfigError(f"{shown}: {key} is given by Coterie; leave it out")
        if key not in own.parameters:
            known = nearest(key, own.parameters) if own.parameters else _takes(own)
            raise ConfigError(f"{shown} has no argument {key!r}; {known}")


def _converted(value: Any, parameter: inspect.Parameter, hints: Mapping[str, Any], shown: str) -> Any:
    """What the user wrote, as the type that the parameter wants; several for *arguments and **arguments."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return tuple(_convert(text, parameter, hints, shown) for text in value)
    if parameter.kind is parameter.VAR_KEYWORD:
        return {key: _convert(text, parameter, hints, shown) for key, text in value.items()}
    return _convert(value, parameter, hints, shown)


def _convert(text: str, parameter: inspect.Parameter, hints: Mapping[str, Any], shown: str) -> Any:
    value = _toml_value(text)
    if parameter.name not in hints and not isinstance(parameter.default, (int, float, str)):
        return value  # nothing says what it should be
    by_default = int | float if type(parameter.default) is int else type(parameter.default)
    hint = hints.get(parameter.name, by_default)
    for candidate in (text, value):
        try:
            return TypeAdapter(hint).validate_python(candidate)
        except ValueError:  # pydantic.ValidationError is one
            continue
    raise ConfigError(f"{shown}: {parameter.name} must be {readable(hint)}, not {text!r}")


def _toml_value(text: str) -> Any:
    """A number, true, false or [a list] as TOML has them; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # also of numbers with thousands of digits
        return text


def _signature(factory: Callable[..., Any], shown: str) -> inspect.Signature:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError) as error:  # functions written in C may have none
        raise ConfigError(
            f"{shown} does not say what arguments it takes ({error}); wrap it in a function that does"
        ) from error


def _at_home(home: str) -> Any:
    """What lives at `module:name`."""
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)


def _defined_here(value: Any, module_name: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module_name


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
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return readable(parts[0])
    if kind is Literal:
        return " or ".join(map(str, parts))
    if kind in (Union, UnionType):
        words = any(get_origin(part) is Literal for part in parts)
        return (" or " if words else " | ").join(map(readable, parts))
    if inspect.isclass(kind):
        return f"{kind.__name__}[{', '.join(map(readable, parts))}]"
    if hint in (None, NoneType, Ellipsis):
        return "..." if hint is Ellipsis else "None"
    return hint.__name__ if inspect.isclass(hint) else str(hint).replace("typing.", "")


def hints_of(factory: Callable[..., Any], shown: str) -> dict[str, Any]:
    """The type of each argument; a dataclass's fields are each resolved in the module that declares them."""
    plain_class = inspect.isclass(factory) and not dataclasses.is_dataclass(factory)
    try:
        return get_type_hints(factory.__init__ if plain_class else factory)
    except TypeError:  # a callable object, which has none
        return {}
    except (NameError, AttributeError) as error:
        raise ConfigError(f"{shown}: the annotations of its arguments cannot be read: {error}") from None


def _takes(signature: inspect.Signature) -> str:
    shown = ",".join(map(_show, signature.parameters.values()))
    return f"its arguments are ({shown})" if shown else "it takes no arguments"


def _show(parameter: inspect.Parameter) -> str:
    if parameter.kind in _VARIADIC:
        return f"{parameter.name},..."
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default}"
