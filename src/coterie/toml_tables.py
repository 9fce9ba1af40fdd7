"""TOML texts checked against a schema; every error says where, and offers the nearest valid key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from coterie.errors import ConfigError
from coterie.registry import nearest

M = TypeVar("M", bound=BaseModel)
_LONGEST_SHOWN = 60  # characters of a wrong value


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None


def parse(text: str, where: str) -> dict[str, Any]:
    try:
        # Mail programs end lines in \r\n, also inside the text of a certificate.
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None


def validate(cls: type[M], table: Mapping[str, Any], where: str) -> M:
    """An instance of `cls` made from a table; raises ConfigError."""
    for key in table:
        if key not in cls.model_fields:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(key, cls.model_fields)}")
    try:
        return cls.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(map(_readable, error.errors()))}") from None


def _readable(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{place} is missing"
    if not place or isinstance(problem["input"], Mapping):  # a rule about several values
        return str(message)
    shown = repr(problem["input"])
    if len(shown) > _LONGEST_SHOWN:
        shown = shown[:_LONGEST_SHOWN] + "..."
    return f"{place}: {message} (got {shown})"
