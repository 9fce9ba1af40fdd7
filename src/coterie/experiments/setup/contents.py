"""The files that decide an experiment's results, by their content: what changes them makes it another one.

A user's Python file counts with what it imports from beside it, and with the data files that its text names,
such as "ward.csv", beside it or in the current folder. Besides: a file of edges, a data set's own files, and
the data files of an experiment. A file counts by its bytes; from 64 MB on by its size and the time when it
was changed, which reading so much for every run would cost more than it tells.

The official files of a data set in the catalogue always count by their bytes, and by their place within the
data folder, which may be moved. Only finding these needs PyTorch.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from coterie.catalogue import sources
from coterie.errors import ConfigError, DataError
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment
from coterie.registry import parse_call
from coterie.training import parts_of
from coterie.user_code import (
    data_files,
    files_behind,
    files_named_in,
    is_data_file,
    is_file_reference,
    is_own_data,
    pretrained_folder,
    split_reference,
)

LARGE = 64 * 2**20  # bytes from which a file counts by its size and time
_WORTH_REMEMBERING = 2**20  # bytes; below, the clock of a file system may miss a change, and reading is quick
_MOST_LISTED = 50  # files of a data set; more are listed as one folder


def contents(experiment: Experiment) -> dict[str, str]:
    """A digest of every file that the experiment names or that its Python files need, by path."""
    return {str(path): digest_of(path) for path in sorted(set(_files(experiment)))}


def digest_of_code(file: str) -> str:
    """Of a user's Python file with what it imports from beside it, wherever the folder is."""
    first, *others = (digest_of(path) for path in files_behind(Path(file).expanduser()))
    return hashlib.sha256("\n".join([first, *others]).encode()).hexdigest() if others else first


def data_contents(experiment: Experiment) -> dict[str, str]:
    """A digest of every file that the catalogue's data set is read from, by its place in the data folder.

    Empty for data that are read from none, and where the files are not there: then nothing is known of them.
    """
    if experiment.data == OWN_OBJECT or is_own_data(experiment.data) or not experiment.data_dir:
        return {}
    dataset, folder = sources.build(experiment.data), Path(experiment.data_dir).expanduser()
    if not hasattr(dataset, "files"):
        return {}
    try:
        return _listed(folder, sorted(dataset.files(folder)))
    except DataError:
        return {}


def _listed(folder: Path, files: list[Path]) -> dict[str, str]:
    """The digests of files, or one of them all under the name of their common folder, if they are many."""
    found = {os.path.relpath(path, folder): digest_of_content(path) for path in files}
    if len(found) <= _MOST_LISTED:
        return found
    common = os.path.relpath(os.path.commonpath(files), folder)
    return {common: hashlib.sha256("\n".join(f"{n} {d}" for n, d in found.items()).encode()).hexdigest()}


def digest_of(path: Path) -> str:
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    if status.st_size >= LARGE:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    return digest_of_content(path)


def digest_of_content(path: Path) -> str:
    """Of the bytes, however many."""
    try:
        status = path.stat()
        if status.st_size < _WORTH_REMEMBERING:
            return _hashed(path)
        return _remembered(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read {path}: {error.strerror}")


@functools.lru_cache(maxsize=1024)
def _remembered(path: Path, size: int, changed: int, touched: int) -> str:
    """Many cells have the same files: each is read once in a process, unless it changes meanwhile."""
    return _hashed(path)


def _hashed(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def code_files(experiment: Experiment) -> list[Path]:
    """The user's Python files, with what they import from beside them."""
    e = experiment
    named = (e.algorithm, e.task, *e.metrics, e.data, e.model, e.partition, e.topology, *e.models)
    references = filter(is_file_reference, (*named, *parts_of(e.training.augment)))
    behind = (files_behind(Path(split_reference(text)[0]).expanduser()) for text in references)
    return list(dict.fromkeys(path for files in behind for path in files))


def _files(experiment: Experiment) -> Iterator[Path]:
    e, code = experiment, code_files(experiment)
    yield from code
    yield from (data for file in code for data in files_named_in(file))
    for model in (e.model, *e.models):
        yield from files_of_pretrained(model)
    if is_data_file(e.data):
        yield from data_files(e.data)
    yield from _of_call(e.topology, "edges")
    yield from _of_call(e.data, "huggingface")


def files_of_pretrained(model: str) -> list[Path]:
    """What decides a network `hf:FOLDER`: its configuration and its weights."""
    folder = Path(pretrained_folder(model) or "").expanduser()
    if pretrained_folder(model) is None or not folder.is_dir():
        return []
    return sorted([*folder.glob("config.json"), *folder.glob("*.safetensors")])


def digest_of_pretrained(model: str) -> str:
    """The same on all machines."""
    digests = [f"{file.name} {digest_of_content(file)}" for file in files_of_pretrained(model)]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _of_call(text: str, name: str) -> Iterable[Path]:
    """The file, or the files of the folder, that the first argument of a call names."""
    if text == OWN_OBJECT or is_own_data(text):
        return
    called, positional, keywords = parse_call(text)
    if called == name:
        path = Path(next(iter([*positional, *keywords.values()]), "")).expanduser()
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file())
        elif path.is_file():
            yield path
