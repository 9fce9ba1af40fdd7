"""The files that decide an experiment's results, by their content: what changes them makes it another one.

A user's Python file counts with what it imports from beside it, and with the data files that its text names,
such as "ward.csv", beside it or in the current folder. Besides: a file of edges, and a data set's own files.
A file counts by its bytes; from 64 MB on by its size and the time when it was changed, which reading so much
for every run would cost more than it tells. Needs no PyTorch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from coterie.errors import ConfigError
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment
from coterie.registry import parse_call
from coterie.training import parts_of
from coterie.user_code import files_behind, files_named_in, is_file_reference, split_reference

LARGE = 64 * 2**20  # bytes from which a file counts by its size and time
_WORTH_REMEMBERING = 2**20  # bytes; below, the clock of a file system may miss a change, and reading is quick


def contents(experiment: Experiment) -> dict[str, str]:
    """A digest of every file that the experiment names or that its Python files need, by path."""
    return {str(path): digest_of(path) for path in sorted(set(_files(experiment)))}


def digest_of_code(file: str) -> str:
    """Of a user's Python file with what it imports from beside it, wherever the folder is."""
    first, *others = (digest_of(path) for path in files_behind(Path(file).expanduser()))
    return hashlib.sha256("\n".join([first, *others]).encode()).hexdigest() if others else first


def digest_of(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size >= LARGE:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        if status.st_size >= _WORTH_REMEMBERING:
            return _remembered(path, status.st_size, status.st_mtime_ns)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


@functools.lru_cache(maxsize=1024)
def _remembered(path: Path, size: int, changed: int) -> str:
    """Many cells have the same files."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files(experiment: Experiment) -> Iterator[Path]:
    e = experiment
    named = (e.algorithm, e.data, e.model, e.partition, e.topology, *e.models)
    for text in (*named, *parts_of(e.training.augment)):
        if is_file_reference(text):
            code = files_behind(Path(split_reference(text)[0]).expanduser())
            yield from code
            yield from (data for file in code for data in files_named_in(file))
    yield from _of_call(e.topology, "edges")
    yield from _of_call(e.data, "huggingface")


def _of_call(text: str, name: str) -> Iterable[Path]:
    """The file, or the files of the folder, that the first argument of a call names."""
    if text == OWN_OBJECT or is_file_reference(text):
        return
    called, positional, keywords = parse_call(text)
    if called == name:
        path = Path(next(iter([*positional, *keywords.values()]), "")).expanduser()
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file())
        elif path.is_file():
            yield path
