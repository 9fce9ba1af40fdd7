"""A run's files as arrays, also while they are written: whatever is whole is read, and nothing is changed.

Needs no PyTorch. What cannot be read is a `RunFolderError` that says which file and why.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import RunFolderError
from coterie.reporting.numbers.known import POINTS, Array, Whole
from coterie.sharing import shares_of
from coterie.spreads import Spread, evenly

MOST_BYTES = 64_000_000  # of a file of records; of a longer one, its end
_CLASS = "class "  # before the name of a class in peers.csv
_LINKS = ("round", "exchange", "sender", "receiver", "bytes", "delivered")

_DAMAGED: tuple[type[Exception], ...] = (
    *(ArithmeticError, EOFError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    *(csv.Error, zipfile.BadZipFile, zlib.error),
)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say which file cannot be read, and why."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from None
    except _DAMAGED as error:
        raise RunFolderError(f"{path} cannot be read: {str(error)[:200]}") from None


def read_json(path: Path) -> dict[str, Any]:
    with reading(path):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it holds no table of names and values")
        return found


def read_toml(path: Path) -> dict[str, Any]:
    with reading(path):
        return tomllib.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the whole lines of a CSV file without quotes; of a long file, those at its end."""
    with reading(path):
        header, text, _ = _end_of(path)
        lines = [line.split(",") for line in text.decode("utf-8").splitlines()]
        return header, [line for line in lines if len(line) == len(header)]


def _end_of(path: Path) -> tuple[list[str], bytes, bool]:
    """The header, the whole lines at the end, and whether there are others before them."""
    with open(path, "rb") as file:
        header = file.readline().decode("utf-8").strip().split(",")
        begin, end = file.tell(), file.seek(0, 2)
        cut = end - begin > MOST_BYTES
        file.seek(max(begin, end - MOST_BYTES))
        if cut:
            file.readline()
        text = file.read()
    return header, text[: text.rfind(b"\n") + 1], cut  # the last line may be half written


@dataclass(frozen=True)
class Rounds:
    """rounds.csv: a line for each round that is complete."""

    seconds: list[float]
    bytes: list[int]
    hub_bytes: list[int]
    messages: list[int]

    def __len__(self) -> int:
        return len(self.seconds)


def read_rounds(path: Path) -> Rounds:
    """Nothing, as long as there is no round."""
    if not path.exists():
        return Rounds([], [], [], [])
    header, lines = read_lines(path)
    with reading(path):
        places = [header.index(name) for name in ("seconds", "bytes", "hub_bytes", "messages")]
        seconds, sent, by_hub, messages = ([line[place] for line in lines] for place in places)
        whole = [[int(text) for text in column] for column in (sent, by_hub, messages)]
        return Rounds([float(text) for text in seconds], *whole)


@dataclass(frozen=True)
class Metrics:
    """metrics.csv: what was measured of each peer, in the rounds in which anything was."""

    rounds: list[int]  # counted from 1
    peers: Whole  # whose lines there are, in order
    values: dict[str, Array]  # by column: (rounds, peers), NaN where it was not measured
    main: str  # the name of the main metric


def read_metrics(path: Path, before: int, main: str | None = None) -> Metrics:
    """Of the rounds before this one, which are complete. main: the metric that is wanted; None: the first."""
    if not path.exists():
        return Metrics([], np.zeros(0, np.int64), {}, main or "")
    header, lines = read_lines(path)
    with reading(path):
        measured = [name for name in header if name.endswith(POINTS)]
        first = main or (measured[0].removesuffix(f"_{POINTS[0]}") if measured else "")
        wanted = [f"{first}_{point}" for point in POINTS]
        columns = [header.index(name) for name in wanted if name in header]
        at, whose = header.index("round"), header.index("peer")
        kept = [line for line in lines if any(line[place] for place in columns) and int(line[at]) < before]
        rounds, row = np.unique(np.array([int(line[at]) for line in kept], np.int64), return_inverse=True)
        peers, column = np.unique(
            np.array([int(line[whose]) for line in kept], np.int64), return_inverse=True
        )
        values = {}
        for name, place in zip((name for name in wanted if name in header), columns, strict=True):
            found = np.full((len(rounds), len(peers)), np.nan)
            found[row, column] = [float(line[place] or "nan") for line in kept]
            values[name] = found
        return Metrics((rounds + 1).tolist(), peers, values, first)


def read_spreads(path: Path, before: int) -> dict[tuple[int, str], Spread]:
    """distributions.csv, by round, counted from 0, and column; of the rounds before this one."""
    if not path.exists():
        return {}
    header, lines = read_lines(path)
    with reading(path):
        found = [dict(zip(header, line, strict=True)) for line in lines]
        return {
            (int(line["round"]), line["column"]): Spread.read(line)
            for line in found
            if int(line["round"]) < before
        }


@dataclass(frozen=True)
class Messages:
    """links.csv: a line for each message. Rounds count from 0 here."""

    table: Whole  # (messages, columns of links.csv)
    cut: bool = False  # the file is long: these are the messages at its end

    def column(self, name: str) -> Whole:
        return np.asarray(self.table[:, _LINKS.index(name)])

    def until(self, round: int) -> Messages:
        """Those of the rounds before this one; they are in the order of rounds."""
        return Messages(self.table[: np.searchsorted(self.column("round"), round)], self.cut)

    def since(self, round: int) -> Messages:
        return Messages(self.table[np.searchsorted(self.column("round"), round) :], self.cut)

    def arrived(self, peers: int) -> Messages:
        """Those that carried something from one peer to another; a hub is none."""
        among = (self.column("sender") < peers) & (self.column("receiver") < peers)
        return Messages(
            self.table[among & (self.column("delivered") > 0) & (self.column("bytes") > 0)], self.cut
        )


def read_messages(path: Path, before: int) -> Messages:
    """Of the rounds before this one, which are complete."""
    table = np.zeros((0, len(_LINKS)), np.int64)
    if not path.exists():
        return Messages(table)
    with reading(path):
        header, text, cut = _end_of(path)
        if tuple(header) != _LINKS:
            raise ValueError(f"its columns are not {', '.join(_LINKS)}")
        if text:
            table = np.loadtxt(io.BytesIO(text), np.int64, delimiter=",", ndmin=2)
        if (table < 0).any() or (np.diff(table[:, 0]) < 0).any():
            raise ValueError("its lines are not those of one round after the other")
        if cut and len(table):
            table = table[table[:, 0] > table[0, 0]]  # whose first messages are missing
        return Messages(table, cut).until(before)


@dataclass(frozen=True)
class People:
    """peers.csv: who takes part; of very many without names, those that are listed."""

    numbers: Whole  # of the peers here, ascending
    names: list[str]  # empty: they have numbers only
    train: list[int]
    clusters: Whole | None
    classes: list[str]
    labels: Whole | None  # (peers, classes) training samples

    def places(self, peers: int | Whole) -> Whole:
        """Where these peers are here."""
        return np.asarray(np.searchsorted(self.numbers, peers))


def read_people(path: Path, peers: int) -> People:
    """What versions did not write down is unknown, as is a file that is missing or damaged."""
    unknown = People(np.zeros(0, np.int64), [], [], None, [], None)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, csv.Error):
        with open(path, newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        numbers = [int(line["peer"]) for line in lines]
        if numbers not in (list(range(peers)), evenly(peers).tolist()):
            return unknown
        names = [line["name"] for line in lines]
        clusters = [line.get("cluster") or "" for line in lines]
        columns = [name for name in lines[0] if name and name.startswith(_CLASS)]
        labels = np.array([[int(line[name]) for name in columns] for line in lines]) if columns else None
        return People(
            np.array(numbers),
            names if all(names) else [],
            [int(line["train"]) for line in lines],
            np.array([int(text) for text in clusters]) if all(clusters) else None,
            [name.removeprefix(_CLASS) for name in columns],
            labels,
        )
    return unknown


def read_shares(folder: Path, peers: int) -> Array | None:
    """The weights that the algorithm learned, as shares of each row; None if there are none."""
    path = folder / "shares.npz"
    if not path.is_file():
        return None
    with reading(path), open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
        dense = np.zeros((peers, peers))
        dense[found["receivers"], found["senders"]] = found["shares"]
        return dense


def read_weights(path: Path, peers: int, before: int) -> dict[int, Array]:
    """By round, counted from 1: weights that the algorithm wrote down, as shares of each row."""
    found: dict[int, Array] = {}
    if not path.exists() or path.stat().st_size > MOST_BYTES:
        return found
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if '"collaboration"' not in line[:80]:
                continue
            with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
                entry = json.loads(line)
                weights = np.array(entry["values"], float)
                if (
                    entry["name"] == "collaboration"
                    and weights.shape == (peers, peers)
                    and entry["round"] < before
                ):
                    found[int(entry["round"]) + 1] = shares_of(np.nan_to_num(weights))
    return found
