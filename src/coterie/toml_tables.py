"""TOML files, and tables checked against a schema; every error says where, and offers the nearest valid key.

A schema is a pydantic model or a dataclass. All tables that users write are checked here: experiments,
settings of algorithms, tables of papers, peers' settings, rosters and cards.
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from coterie.errors import ConfigError
from coterie.registry import nearest

_Schema = TypeVar("_Schema")
_LONGEST_SHOWN = 60  # characters of a wrong value


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
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


def validate(schema: type[_Schema], table: Mapping[str, Any], where: str = "") -> _Schema:
    """An instance of the schema made from a table; raises ConfigError, which begins with `where`."""
    refuse_unknown(table, schema, where)
    try:
        return TypeAdapter(schema).validate_python(dict(table))
    except ValidationError as error:
        raise ConfigError(_at(where) + "; ".join(map(_readable, error.errors()))) from None


def refuse_unknown(table: Mapping[str, Any], schema: Any, where: str = "", section: str = "") -> None:
    """Fail on the first key that the schema does not have, with the nearest one that it has."""
    fields = _fields(schema)
    for key, value in table.items():
        name = section + key
        if key not in fields:
            known = nearest(key, fields) if fields else "it has none"
            raise ConfigError(f"{_at(where)}unknown key {name!r}; {known}")
        kind = fields[key]
        if (_is_schema(kind) or typing.get_origin(kind) is dict) and not isinstance(value, Mapping):
            raise ConfigError(
                f"{_at(where)}{name!r} is a section with keys of its own, not a value: {_shown(value)}"
            )
        if _is_schema(kind):
            refuse_unknown(value, kind, where, f"{name}.")


def _fields(schema: Any) -> dict[str, Any]:
    """The type of each key."""
    if issubclass(schema, BaseModel):
        return {name: field.annotation for name, field in schema.model_fields.items()}
    hints = typing.get_type_hints(schema)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


def _is_schema(kind: Any) -> bool:
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
