"""The user's own code, written `path/to/file.py:name`: what it stands for, and calling it.

Networks and data are named so. A file is executed once per version, and may import its neighbours.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie.errors import ConfigError, DataError
from coterie.registry import nearest

_REFERENCE = re.compile(r"(?P<file>.+\.py)(?::(?P<name>[^:]*))?", re.DOTALL)


def is_file_reference(text: str) -> bool:
    """Whether the text names the user's own code rather than an entry of a catalogue."""
    return _REFERENCE.fullmatch(text) is not None


def split_reference(reference: str) -> tuple[str, str]:
    """`nets.py:Small` -> ("nets.py", "Small"); the name may be missing."""
    match = _REFERENCE.fullmatch(reference)
    assert match is not None, "call is_file_reference first"
    return match["file"], match["name"] or ""


def load_reference(reference: str, what: str) -> Any:
    """The class, function or value that a reference stands for. what: "model", for messages."""
    file, name = split_reference(reference)
    namespace = vars(_module(Path(file)))
    known = [key for key, value in namespace.items() if _defined_here(value, namespace["__name__"])]
    if not name:
        example = known[0] if known else "name"
        raise ConfigError(f"{what} {reference!r} must name a class or function: {file}:{example}")
    if name not in namespace:
        hint = nearest(name, known) if known else "it defines no class or function at all"
        raise ConfigError(f"{what} {reference!r}: {file} defines no {name}; {hint}")
    return namespace[name]


def call_for_data(reference: str, *arguments: Any) -> Any:
    """What the user's function returns; whatever it raises is an error of the data."""
    function = load_reference(reference, "data")
    file, name = split_reference(reference)
    if not callable(function):
        raise ConfigError(f"data {reference!r}: {name} in {file} is {function!r}, not a function")
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise DataError(f"{name} in {file} raised {type(error).__name__}: {error}") from error


def _module(path: Path) -> ModuleType:
    """The user's Python file, executed once per version of the file."""
    path = path.expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    return _load(str(path.resolve()), path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _load(path: str, modified: int) -> ModuleType:
    """Execute the file once per version: `modified` makes an edited file load again."""
    version = hashlib.sha256(f"{modified} {path}".encode()).hexdigest()[:16]
    module_name = f"coterie_user_{Path(path).stem}_{version}"
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
