"""The user's own files: `path/to/file.py:Name(arguments)` as text, and the module that such a file makes.

A file is executed once per version, and may import its neighbours. A version is the content of the file and
of what it imports from beside it. What a name in a file stands for, `coterie.registry` finds and calls.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from coterie.errors import ConfigError, DataError

_DATA = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".npz", ".npy", ".pt", ".safetensors")
_REFERENCE = re.compile(r"\s*(?P<file>.+?\.py)(?::(?P<name>[^:()]*))?(?P<arguments>\(.*\))?\s*", re.DOTALL)


_DATA_FILE = re.compile(r"\s*(?P<file>[^()]+\.(?:csv|npz|parquet))\s*(?P<arguments>\(.*\))?\s*", re.DOTALL)


def is_data_file(text: str) -> bool:
    """Whether the text names files of the user's own data: `ward.csv(label=ill)`, `wards/*.npz`."""
    return _DATA_FILE.fullmatch(text) is not None


def data_file_parts(text: str) -> tuple[str, str]:
    """`ward.csv(label=ill)` -> ("ward.csv", "(label=ill)"); the second may be empty."""
    match = _DATA_FILE.fullmatch(text)
    assert match is not None, "call is_data_file first"
    return match["file"].strip(), match["arguments"] or ""


def is_pattern(file: str) -> bool:
    """Whether a name stands for several files, such as `wards/*.csv`."""
    return glob.has_magic(file) and not Path(file).exists()


def data_files(text: str) -> list[Path]:
    """The files that a text names, by name; an error if there are none."""
    file = data_file_parts(text)[0]
    if not is_pattern(file):
        if not Path(file).is_file():
            raise DataError(f"there is no file {file}")
        return [Path(file)]
    found = sorted(path for path in map(Path, glob.glob(file, recursive=True)) if path.is_file())
    if not found:
        raise DataError(f"no file matches {file}; quote a pattern so that the shell leaves it alone")
    return found


def peers_in_files(paths: list[Path]) -> list[str]:
    """The peers of several files: their names without endings; with folders where two would be alike."""
    stems = [path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    return ["-".join(path.with_suffix("").parts[-2:]) for path in paths]


def is_own_data(text: str) -> bool:
    """Whether data are the user's own, in files or by code, rather than a data set of the catalogue."""
    return is_data_file(text) or is_file_reference(text)


def is_file_reference(text: str) -> bool:
    """Whether the text names the user's own code rather than an entry of a catalogue."""
    return _REFERENCE.fullmatch(text) is not None


def pretrained_folder(text: str) -> str | None:
    """The folder in `hf:FOLDER`, where a pretrained model is; None for any other text."""
    return text.removeprefix("hf:").strip() if text.startswith("hf:") else None


def split_reference(reference: str) -> tuple[str, str]:
    """`nets.py:Small(32)` -> ("nets.py", "Small"); the name may be missing."""
    file, name, _ = reference_parts(reference)
    return file, name


def reference_parts(reference: str) -> tuple[str, str, str]:
    """`nets.py:Small(32)` -> ("nets.py", "Small", "(32)"); the last two may be empty."""
    match = _REFERENCE.fullmatch(reference)
    assert match is not None, "call is_file_reference first"
    return match["file"], (match["name"] or "").strip(), match["arguments"] or ""


def located(text: str, base: Path) -> str:
    """The text with the path in it made absolute, starting from `base`; other texts are as they were."""
    folder = pretrained_folder(text)
    if folder is not None:
        return f"hf:{base / Path(folder).expanduser()}"
    if is_data_file(text):
        file, arguments = data_file_parts(text)
        return f"{base / Path(file).expanduser()}{arguments}"
    if not is_file_reference(text):
        return text
    file, name, arguments = reference_parts(text)
    return f"{base / Path(file).expanduser()}{':' if name else ''}{name}{arguments}"


def in_short(text: str) -> str:
    """A user's own file by its name alone, for people: nets.py:Small(32); other texts are as they were."""
    folder = pretrained_folder(text)
    if folder is not None:
        return f"hf:{Path(folder).name}"
    if is_data_file(text):
        file, arguments = data_file_parts(text)
        place = f"{Path(file).parent.name}/" if is_pattern(file) else ""
        return f"{place}{Path(file).name}{arguments}"
    if not is_file_reference(text):
        return text
    file, name, arguments = reference_parts(text)
    return f"{Path(file).name}{':' if name else ''}{name}{arguments}"


def described(error: BaseException, file: str) -> str:
    """`ValueError: too many (line 7)`, with the line if the error came up in this file of the user's."""
    file = str(Path(file).expanduser().resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{line}"


def module_of(path: Path) -> ModuleType:
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
    _forget_what_is_beside(Path(path))
    sys.modules[module_name] = module  # dataclasses and pickle look classes up there
    try:
        with _importing_from(str(Path(path).parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end with sys.exit()
        del sys.modules[module_name]
        raise ConfigError(f"{path} cannot be loaded: {described(error, path)}") from error
    return module


_BESIDE: set[str] = set()  # files that users' files import from beside them


def _forget_what_is_beside(file: Path) -> None:
    """Let its imports execute its own neighbours, as they are now: another folder may have had namesakes."""
    own = files_behind(file)[1:]
    names = {_dotted(path.relative_to(file.parent)) for path in own}
    _BESIDE.update(map(str, own))
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if place in _BESIDE and (name in names or Path(place) in own):
            del sys.modules[name]


def _dotted(path: Path) -> str:
    """`tools/__init__.py` -> "tools"."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Let the file import its neighbours, as it could if the user ran it."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
