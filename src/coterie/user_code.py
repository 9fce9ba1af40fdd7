"""The user's own code, written `path/to/file.py:name`: what it stands for, and calling it.

Networks and data are named so. A file is executed once per version, and may import its neighbours. A version
is the content of the file and of what it imports from beside it.
"""

from __future__ import annotations

import ast
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

_DATA = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".npz", ".npy", ".pt", ".safetensors")
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
    path = path.resolve()
    version = hashlib.sha256(str(path).encode())
    for file in files_behind(path):
        version.update(file.read_bytes())
    return _load(str(path), version.hexdigest()[:16])


def files_behind(file: Path) -> list[Path]:
    """The file, and then what it imports from beside it, and what that imports from there, by name."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path, file.parent)
    return [file, *sorted(found - {file})]


def files_named_in(file: Path) -> list[Path]:
    """The data files whose names stand in a Python file, seen from its folder or from the current one."""
    texts = {
        node.value
        for node in ast.walk(_parsed(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) < 256
    }
    texts = {text for text in texts if text.isprintable() and text.lower().endswith(_DATA)}
    named = {folder / text for text in texts for folder in (file.parent, Path.cwd())}
    return sorted(path for path in named if path.is_file())


def _imported(file: Path, folder: Path) -> list[Path]:
    """The modules that a file imports and that are found below `folder`."""
    found: list[Path] = []
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Import):
            wanted = [(folder, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = [file, *file.parents][node.level] if node.level else folder
            module = node.module or ""
            wanted = [(start, f"{module}.{alias.name}".strip(".")) for alias in node.names]
        else:
            continue
        for start, dotted in wanted:
            for depth in range(dotted.count(".") + 1):
                *packages, name = dotted.split(".")[: depth + 1]
                place = start.joinpath(*packages)
                found += [p for p in (place / f"{name}.py", place / name / "__init__.py") if p.is_file()]
    return found


def _parsed(file: Path) -> ast.Module:
    """An empty module for what is no Python: loading it will say why."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=32)
def _load(path: str, version: str) -> ModuleType:
    """Execute the file once per version: an edited one is loaded again, with its edited neighbours."""
    module_name = f"coterie_user_{Path(path).stem}_{version}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None  # holds for every name ending in .py
    module = importlib.util.module_from_spec(spec)
    _forget(files_behind(Path(path))[1:])
    sys.modules[module_name] = module  # dataclasses and pickle look classes up there
    try:
        with _importing_from(str(Path(path).parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end with sys.exit()
        del sys.modules[module_name]
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _forget(files: list[Path]) -> None:
    """Let the next import execute these files again."""
    paths = {str(file) for file in files}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in paths:
            del sys.modules[name]


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
