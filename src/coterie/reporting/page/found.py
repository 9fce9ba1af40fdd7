"""Runs that a folder holds: found, read once, and read again when their files change.

A folder that cannot be read, is half written or vanishes is a line that says so; the others go on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coterie.errors import RunFolderError
from coterie.reporting.numbers.folders import CONFIG, RESULT, OfFolder
from coterie.reporting.page import reproduced
from coterie.reporting.page.compared import compared, in_groups
from coterie.reporting.page.listed import WRONG, Line, Plan, below, line_of, local_of, local_runs, rows_of
from coterie.reporting.page.one_run import Shown, links_at, one_peer, one_run, shown
from coterie.reporting.page.states import breakage, is_running

_DEEPEST = 6  # folders below the one that is named
_KEPT = 8  # runs whose pictures stay in memory
_PLANS = {  # by the files that they have
    ("compare.json",): "comparison",
    ("sweep.json",): "sweep",
    (reproduced.RESULTS, reproduced.CELLS_CSV): "reproduction",
}


class FoundRuns:
    """The runs below a folder. One thread looks; others may ask at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.RLock()
        self._paths: dict[str, Path] = {}
        self._plans: dict[str, Plan] = {}
        self._signatures: dict[str, tuple[Any, ...]] = {}
        self._lines: dict[str, Line] = {}
        self._shown: dict[str, tuple[tuple[Any, ...], Shown]] = {}

    def look(self, most: int | None = None) -> list[str]:
        """Find folders and read those that are new or changed, at most so many; says which changed."""
        found, plans = self._find([self.root])
        read: dict[str, tuple[tuple[Any, ...], Line]] = {}
        for name, path in found.items():
            if most is not None and len(read) >= most:
                break
            signature = _signature(path)
            if self._signatures.get(name) != signature:
                read[name] = signature, line_of(name, path)
        with self._lock:
            gone = [name for name in self._paths if name not in found]
            changed_plans = [
                name for name in {**plans, **self._plans} if plans.get(name) != self._plans.get(name)
            ]
            self._paths, self._plans = found, plans
            for name, (signature, line) in read.items():
                self._signatures[name], self._lines[name] = signature, line
            for name in gone:
                for kept in (self._lines, self._signatures, self._shown):
                    kept.pop(name, None)
        return [*read, *gone, *changed_plans]

    def look_at(self, folders: Sequence[Path]) -> None:
        """Read only what these folders hold."""
        self._paths, self._plans = self._find(folders)
        self._lines = {name: line_of(name, path) for name, path in self._paths.items()}

    def _find(self, folders: Sequence[Path]) -> tuple[dict[str, Path], dict[str, Plan]]:
        found: dict[str, Path] = {}
        plans: dict[str, tuple[Path, str]] = {}
        for folder in folders:
            for path, kind in _walk(folder, 0):
                if kind is None:
                    found[self._name(path)] = path
                else:
                    plans[self._name(path)] = (path, kind)
        members: dict[str, Plan] = {}
        for name, (path, kind) in plans.items():
            if kind == "reproduction":
                cells = {self._name(cell): cell for cell in reproduced.cells_of(path)}
                found |= {one: cell for one, cell in cells.items() if (cell / CONFIG).is_file()}
                members[name] = Plan(path, kind, [one for one in cells if one in found])
            else:
                members[name] = Plan(path, kind, below(name, found))
        return found, members

    def _name(self, path: Path) -> str:
        return os.path.relpath(path, self.root)

    @property
    def names(self) -> list[str]:
        return list(self._paths)

    @property
    def plans(self) -> dict[str, Plan]:
        return dict(self._plans)

    def table(self) -> dict[str, Any]:
        """All runs, comparisons, sweeps and reproductions."""
        with self._lock:
            lines, plans = dict(self._lines), dict(self._plans)
            left = len(self._paths) - len(lines)
        rows, notes = rows_of(lines, plans), []
        if not rows and not left:
            notes = [f"There are no runs in {self.root} so far; this page finds those that come."]
        return {"root": str(self.root), "runs": rows, "reading": left, "notes": notes}

    def run(self, name: str) -> Shown:
        """A run with its records; RunFolderError if there is none of that name, or no more."""
        with self._lock:
            path, kept = self._path(name), self._shown.get(name)
        signature = _signature(path)
        if kept is not None and kept[0] == signature:
            return kept[1]
        run = OfFolder(path)
        stay = kept is not None and kept[1].run.received == run.received and not run.result
        made = shown(run, self._local(name, run), kept[1].places if kept is not None and stay else None)
        with self._lock:
            while len(self._shown) >= _KEPT:
                self._shown.pop(next(iter(self._shown)))
            self._shown[name] = (signature, made)
        return made

    def _path(self, name: str) -> Path:
        path = self._paths.get(name)
        if path is None or not path.is_dir():
            raise RunFolderError(f"there is no run {name!r} here, or no longer")
        return path

    def _local(self, name: str, run: OfFolder) -> OfFolder | None:
        """The run of Local beside it."""
        with self._lock:
            lines, plans = dict(self._lines), dict(self._plans)
        local = local_of(name, lines, local_runs(lines), plans) if name in lines else None
        if local is None or local not in self._paths:
            return None
        try:
            alone = OfFolder(self._paths[local])
        except WRONG:  # it has just vanished
            return None
        return alone if alone.peers == run.peers else None

    def one(self, name: str) -> dict[str, Any]:
        made = self.run(name)
        return one_run(made, name, name, None if made.local is None else self._name(made.local.path))

    def links(self, name: str, kind: str, round: int) -> dict[str, Any]:
        return links_at(self.run(name), kind, round)

    def peer(self, name: str, place: int) -> dict[str, Any]:
        return one_peer(self.run(name), place)

    def compare(self, names: Sequence[str], part: str = "") -> dict[str, Any]:
        """Runs beside each other; of a comparison, sweep or reproduction, all its runs.

        part: of a reproduction, the column whose runs are shown.
        """
        if len(names) == 1 and names[0] in self._plans and self._plans[names[0]].kind == "reproduction":
            return self._reproduction(names[0], part)
        wanted = list(dict.fromkeys(member for name in names for member in self.members(name)))
        runs, problems = self._read(wanted)
        if not runs:
            raise RunFolderError("; ".join(problems) or "pick some runs to compare")
        found = compared(in_groups(list(runs.values())), self._locals(runs), self._identities(runs))
        plan = self._plans.get(names[0]) if len(names) == 1 else None
        title = f"{plan.kind.capitalize()} {names[0]}" if plan else ""
        return {**found, "title": title, "notes": [*problems, *found["notes"]]}

    def groups(self) -> dict[str, list[OfFolder]]:
        """All runs that can be read and were measured, those that differ only in their seed together."""
        found = [run for run in self._read(self.names)[0].values() if run.rounds]
        return in_groups(found)

    def _reproduction(self, name: str, part: str) -> dict[str, Any]:
        plan = self._plans[name]
        told = reproduced.read(plan.path)
        column = part or next(iter(told.columns), "")
        by_label = {
            label: [self._name(cell) for cell in cells] for label, cells in told.rows_of(column).items()
        }
        runs, problems = self._read(
            [one for names in by_label.values() for one in names if one in self._paths]
        )
        groups = {label: [runs[one] for one in names if one in runs] for label, names in by_label.items()}
        groups = {label: group for label, group in groups.items() if group}
        found = compared(groups, self._locals(runs), self._identities(runs)) if groups else reproduced.NOTHING
        notes = [*told.notes, *problems, *found["notes"]]
        return {**found, **told.entry(column), "notes": notes, "words": [*told.words, *found["words"]]}

    def _read(self, names: Sequence[str]) -> tuple[dict[str, OfFolder], list[str]]:
        """Those that can be read, and what is wrong with the others."""
        runs: dict[str, OfFolder] = {}
        problems: list[str] = []
        for name in names:
            try:
                runs[name] = OfFolder(self._path(name))
            except WRONG as error:
                problems.append(str(error) or type(error).__name__)
        return runs, problems

    def _locals(self, runs: dict[str, OfFolder]) -> dict[Path, OfFolder]:
        """By folder of a run: Local on its data."""
        with self._lock:
            lines, plans = dict(self._lines), dict(self._plans)
        alone, found = local_runs(lines), {}
        beside = dict(runs)
        for name, run in runs.items():
            local = local_of(name, lines, alone, plans) if name in lines else None
            if local is not None and local not in beside:
                beside |= self._read([local])[0]
            if local is not None and local in beside and beside[local].peers == run.peers:
                found[run.path] = beside[local]
        return found

    def _identities(self, runs: dict[str, OfFolder]) -> dict[str, str]:
        return {str(run.path): name for name, run in runs.items()}

    def members(self, name: str) -> Sequence[str]:
        if name in self._plans:
            return self._plans[name].members
        return [name] if name in self._paths else []


def _walk(folder: Path, depth: int) -> Iterator[tuple[Path, str | None]]:
    """Run folders, and those of comparisons, sweeps and reproductions; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
        names = {entry.name for entry in inside}
        folders = [e for e in inside if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:  # it vanished, or may not be read
        return
    if CONFIG in names:
        yield folder, None
        return
    for plan, kind in _PLANS.items():
        if names.issuperset(plan):
            yield folder, kind
    if depth < _DEEPEST:
        for entry in folders:
            yield from _walk(folder / entry.name, depth + 1)


def _signature(path: Path) -> tuple[Any, ...]:
    """What changes when the run does."""
    found: list[Any] = []
    for name in (RESULT, CONFIG, "rounds.csv", "environment.json"):
        try:
            known = os.stat(path / name)
            found.append((known.st_mtime_ns, known.st_size))
        except OSError:
            found.append(None)
    if found[0] is None:  # it is not finished
        found += [is_running(path), breakage(path)]
    return tuple(found)
