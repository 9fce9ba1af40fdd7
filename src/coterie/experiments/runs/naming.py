"""Names of run folders, and how to go on in one. A folder appears when its run starts, not here."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from coterie.errors import (
    DamagedRunError,
    OtherRunError,
    RunFailedError,
    RunFolderError,
    RunInUseError,
)
from coterie.user_code import in_short, is_data_file, is_file_reference, reference_parts

RUNS = Path("runs")
CELLS = "cells"  # within the folder of a sweep or of reproductions: a folder for each cell


def new_folder(*parts: str) -> Path:
    """runs/<date-time>-<parts>, with a number if that exists."""
    name = "-".join([datetime.now().strftime("%Y%m%d-%H%M%S"), *map(slug, parts)])
    return unused(RUNS / name)


def unused(path: Path) -> Path:
    return path.with_name(first_free(path.name, lambda name: path.with_name(name).exists()))


def first_free(name: str, taken: Callable[[str], bool]) -> str:
    """The name, or with the first of -2, -3, ... that is not taken."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(free for free in names if not taken(free))


def refuse_existing(folder: Path, command: str) -> None:
    """A folder that holds anything is never written to."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(
            f"{folder} exists already; choose another folder, or continue that run with "
            f"`coterie {command} --resume {folder}`"
        )


def slug(text: str) -> str:
    """`random-gossip(3)` as part of a file's name: random-gossip-3; of `/a/file.py:Name` file-Name."""
    if is_file_reference(text):
        file, name, arguments = reference_parts(text)
        text = f"{Path(file).stem}-{name}{arguments}"
    elif is_data_file(text):
        text = in_short(text)
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "x"


@contextmanager
def going_on(folder: Path, command: str) -> Iterator[None]:
    """Say how to go on when a run stops after it has started, which is when its folder exists."""
    try:
        yield
    except KeyboardInterrupt:
        if (folder / "config.toml").exists():
            raise KeyboardInterrupt(f"go on with: {command}") from None
        raise
    except (DamagedRunError, RunInUseError, OtherRunError):
        raise  # it cannot go on, or it does already, or it is none of ours
    except RunFolderError as error:
        if (folder / "config.toml").exists():
            raise RunFailedError(f"{error}; go on with: {command}") from None
        raise
    except OSError as error:
        if error.errno == errno.EPIPE or not (folder / "config.toml").exists():
            raise
        raise RunFailedError(
            f"cannot write to {error.filename or folder}: {error.strerror}; what was written before is "
            f"intact; go on with: {command}"
        ) from None
