"""`report.html`: what was learned, in one file that opens from disk and asks nobody for anything."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coterie.errors import CoterieError, RunFolderError
from coterie.files import write_atomically
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.page import reproduced
from coterie.reporting.page.explained import of_algorithm
from coterie.reporting.page.found import FoundRuns
from coterie.reporting.page.html import report_page
from coterie.reporting.page.one_run import links_at, one_peer

REPORT = "report.html"
MOST_ROUNDS = 12  # of the slider over rounds
MOST_PEER_PAGES = 40
MOST_RUNS = 12  # that have a page of their own in the report of several


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """One report of a run, comparison, sweep or reproduction, or of several; in the first folder."""
    path = out or folders[0] / REPORT
    start, data = content_of([folder.resolve() for folder in folders])
    title = " and ".join(folder.resolve().name for folder in folders[:3])
    write_atomically(path, report_page(f"{title} - Coterie", start, data).encode(), durable=False)
    return path


def draw_figures(folders: Sequence[Path], out: Path) -> list[Path]:
    """The pictures of these folders' runs in print quality, PNG and SVG."""
    groups = _found([folder.resolve() for folder in folders]).groups()
    if not groups:
        raise RunFolderError(f"{folders[0]} holds no runs that were measured")
    if problem := _not_side_by_side(list(groups.values())):
        raise RunFolderError(f"these runs cannot be drawn side by side: {problem}; name fewer folders")
    out.mkdir(parents=True, exist_ok=True)
    plots = importlib.import_module("coterie.reporting.plots")  # Matplotlib
    return list(plots.draw(list(groups.values()), list(groups), out))


def _not_side_by_side(groups: Sequence[Sequence[OfFolder]]) -> str:
    """Why one picture cannot show all of them; empty if it can."""
    runs = [run for group in groups for run in group]
    if len({(run.metric.name, run.peers) for run in runs}) > 1:
        return "their metrics or their numbers of peers differ"
    if len({tuple(run.seed for run in group) for group in groups}) > 1:
        return "they do not have the same seeds"
    if sum(group[0].algorithm == "local" for group in groups) > 1:
        return "there are several runs of Local, which was trained differently"
    return ""


def _found(folders: Sequence[Path]) -> FoundRuns:
    """What the folders hold."""
    for folder in folders:
        if not folder.is_dir():
            raise RunFolderError(f"there is no folder {folder}")
    inside = [*folders, *(cell for folder in folders for cell in reproduced.cells_of(folder))]
    found = FoundRuns(Path(os.path.commonpath(inside)) if len(inside) > 1 else folders[0].parent)
    found.look_at(folders)
    if not found.names:
        raise RunFolderError(f"{folders[0]} holds no runs: none of its folders has a config.toml")
    return found


def content_of(folders: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The view that the report opens with, and the answers that it holds, by their addresses."""
    found = _found(folders)
    root = found.root
    data: dict[str, Any] = {}
    if len(found.names) == 1:
        _add_run(data, found, found.names[0])
        return {"view": "run", "id": found.names[0]}, data
    plan = os.path.relpath(folders[0], root) if len(folders) == 1 else ""
    asked = [plan] if plan in found.plans else found.names
    title = ", ".join(folder.name for folder in folders)
    both = found.compare(asked)
    firsts = [group["ids"][0] for group in both["groups"]][:MOST_RUNS]
    for name in firsts:
        _add_run(data, found, name)
    columns = both["parts"]["names"] if both.get("parts") else {}
    answers = {f"&part={quote(name)}": found.compare(asked, name) for name in columns} | {"": both}
    for part, answer in answers.items():
        for group in answer["groups"]:
            group["ids"] = [one if one in firsts else "" for one in group["ids"]]
        runs = [{"id": name, "title": name} for name in firsts]
        data[f"/api/compare?ids={part}"] = {**answer, "title": answer.get("title") or title, "runs": runs}
    return {"view": "compare"}, data


def _add_run(data: dict[str, Any], found: FoundRuns, name: str) -> None:
    """A run's view, with some rounds of who learned from whom and, where peers are few, their pages."""
    run, shown, identity = found.one(name), found.run(name), quote(name, safe="!'()*")
    for kind, rounds in run["links"]["kinds"].items():
        step = max(1, -(-len(rounds) // MOST_ROUNDS))
        kept = sorted({*rounds[::-step]})
        run["links"]["kinds"][kind] = kept
        for round in kept:
            address = f"/api/links?id={identity}&kind={quote(kind)}&round={round}"
            data[address] = links_at(shown, kind, round)
    data[f"/api/run?id={identity}"] = run
    if len(shown.run.shown) <= MOST_PEER_PAGES:
        for place in range(len(shown.run.shown)):
            data[f"/api/peer?id={identity}&place={place}"] = one_peer(shown, place)
    data[f"/api/explain?id={identity}"] = {"lines": of_algorithm(shown.run.algorithm)}


def leave_report(folder: Path) -> Path | None:
    """The report of a folder whose runs have just ended; whatever is wrong with it, they have not failed."""
    try:
        return write_report([folder])
    except (CoterieError, OSError, ArithmeticError, LookupError, TypeError, ValueError):
        return None
