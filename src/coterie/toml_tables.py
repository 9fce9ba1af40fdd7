"""TOML files, and tables checked against a schema; every error says where, and offers the nearest valid key.

A schema is a pydantic model or a dataclass. All tables that users write are checked here: experiments,
settings of algorithms, tables of papers, peers' settings, rosters and cards.
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from coterie.errors import ConfigError
from coterie.registry import nearest

_Schema = TypeVar("_Schema")
_LONGEST_SHOWN = 60  # characters of a wrong value
_LARGEST = 64 << 20  # bytes of a file


def read_text(path: Path, most: int = _LARGEST) -> str:
    """The text of a file that has at most so many bytes."""
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ConfigError(f"{path} has more than {most:,} bytes; is it the right file?")
        return content.decode().replace("\r\n", "\n")  # mail programs write the longer one
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None


def load_toml(path: Path) -> dict[str, Any]:
    """A TOML file's table; the error names the file and the line."""
    return parse(read_text(path), str(path))


def parse(text: str, where: str) -> dict[str, Any]:
    try:
        # Mail programs end lines in \r\n, also inside the text of a certificate.
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where} is not valid here: its tables or lists are nested too deeply") from None


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One table of two; where both say something, what is above holds."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def validate(schema: type[_Schema], table: Mapping[str, Any], where: str = "") -> _Schema:
    """An instance of the schema made from a table; raises ConfigError, which begins with `where`."""
    refuse_unknown(table, schema, where)
    kind: Any = schema
    try:
        made: _Schema = _adapter(kind).validate_python(dict(table))
        return made
    except ValidationError as error:
        raise ConfigError(_at(where) + "; ".join(map(_readable, error.errors()))) from None


@lru_cache(maxsize=64)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    """Made once: it takes as long as a round of a thousand small models."""
    return TypeAdapter(schema)


def refuse_unknown(table: Mapping[str, Any], schema: Any, where: str = "") -> None:
    """Fail on the first key that the schema does not have, with the nearest one that it has."""
    _refuse_unknown(table, schema, where, "", schema)


def _refuse_unknown(table: Mapping[str, Any], schema: Any, where: str, section: str, root: Any) -> None:
    fields = {key.name: key.kind for key in _own_keys(schema)}
    for name, value in table.items():
        shown = section + name
        if name not in fields:
            raise ConfigError(f"{_at(where)}unknown key {shown!r}; {_known(name, fields, root)}")
        kind = fields[name]
        if (is_schema(kind) or typing.get_origin(kind) is dict) and not isinstance(value, Mapping):
            raise ConfigError(
                f"{_at(where)}{shown!r} is a section with keys of its own, not a value: {_shown(value)}"
            )
        if is_schema(kind):
            _refuse_unknown(value, kind, where, f"{shown}.", root)


def _known(name: str, fields: Collection[str], root: Any) -> str:
    """What to write in the place of an unknown key: often it belongs in another section."""
    elsewhere = [key.name for key in keys(root) if key.name.rpartition(".")[2] == name.casefold()]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return nearest(name, fields) if fields else "it has none"


@dataclass(frozen=True)
class Key:
    """What a schema says of one of its keys."""

    name: str  # with its section: training.lr
    kind: Any
    default: Any  # REQUIRED if there is none
    description: str


REQUIRED = object()


def keys(schema: Any) -> Iterator[Key]:
    """All keys of a schema, each section followed by those in it."""
    for key in _own_keys(schema):
        yield key
        if is_schema(key.kind):
            for inner in keys(key.kind):
                yield dataclasses.replace(inner, name=f"{key.name}.{inner.name}")


@lru_cache(maxsize=64)
def _own_keys(schema: Any) -> tuple[Key, ...]:
    return tuple(_read_keys(schema))


def _read_keys(schema: Any) -> Iterator[Key]:
    if issubclass(schema, BaseModel):
        for name, field in schema.model_fields.items():
            default = REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
            yield Key(name, field.annotation, default, field.description or _purpose(field.annotation))
    else:
        hints = typing.get_type_hints(schema)
        for part in dataclasses.fields(schema):
            made = part.default_factory
            default = part.default if made is dataclasses.MISSING else made()
            default = REQUIRED if default is dataclasses.MISSING else default
            description = part.metadata.get("description") or _purpose(hints[part.name])
            yield Key(part.name, hints[part.name], default, description)


def _purpose(kind: Any) -> str:
    """A section says what it is for."""
    return inspect.cleandoc(kind.__doc__ or "") if is_schema(kind) else ""


def is_schema(kind: Any) -> bool:
    """Whether a key of this type is a section with keys of its own."""
    return inspect.isclass(kind) and (dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel))


def _readable(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{place} is missing"
    if not place or isinstance(problem["input"], Mapping):  # a rule about several values
        return f"{_at(place)}{message}"
    return f"{place}: {message} (got {_shown(problem['input'])})"


def _at(place: str) -> str:
    return f"{place}: " if place else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
