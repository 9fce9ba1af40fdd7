"""How real peers of this machine stand, from their `/status`, or else from what they have on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, RunFolderError, UnreachableError
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records, last_scores
from coterie.metric import ACCURACY, Metric
from coterie.peer.trust.settings import SETTINGS_FILE
from coterie.peer.watch.monitoring import ask_standing, is_running
from coterie.peer.watch.standing import Standing
from coterie.reporting.page.plainly import metric_entry


def peer_folders(named: Iterable[Path]) -> list[Path]:
    """The folders of peers; that of a swarm stands for all its peers."""
    found: list[Path] = []
    for folder in named:
        inside = [folder] if (folder / SETTINGS_FILE).is_file() else sorted(
            path.parent for path in folder.glob(f"*/{SETTINGS_FILE}")
        )  # fmt: skip
        if not inside:
            raise RunFolderError(
                f"{folder} is not a peer's folder, nor one of several: it has no {SETTINGS_FILE}"
            )
        found += inside
    return found


def standings(folders: Iterable[Path]) -> dict[str, Any]:
    """Every peer, whatever becomes of the others."""
    return {"peers": [_standing(folder) for folder in folders]}


def _standing(folder: Path) -> dict[str, Any]:
    state = folder / "state"
    if is_running(state):
        try:
            return _of(ask_standing(state, timeout=1.0))
        except UnreachableError as error:
            return {"name": folder.name, "state": f"runs, but does not say how it stands: {error}"}
    try:
        lines = Records(folder / RECORDS_FILE).read()
        name, scores = last_scores(lines)
    except (OSError, CoterieError):
        return {"name": folder.name, "state": "its folder cannot be read"}
    done = lines[-1]["round"] + 1 if lines else 0
    said = f"does not run; {done} round{'' if done == 1 else 's'} on disk"
    metric = metric_entry(Metric(name, percent=name == ACCURACY.name)) if scores else None
    return {"name": folder.name, "state": said, "round": done, "metric": metric, "scores": scores}


def _counted(refused: Mapping[str, int]) -> str:
    """3 (not valid 2, too early 1): how many, and why."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items()) if count)
    return f"{sum(refused.values())}" + (f" ({reasons})" if reasons else "")


def _of(standing: Standing) -> dict[str, Any]:
    word = "finished" if standing.finished else "learning" if standing.joined else "waiting for others"
    alive = sum(other.alive for other in standing.neighbours)
    return {
        "name": standing.name,
        "state": word,
        "kind": "finished" if standing.finished else "running" if standing.joined else "interrupted",
        "round": standing.round,
        "rounds": standing.rounds,
        "metric": metric_entry(standing.metric),
        "scores": dict(standing.scores),
        "bytes_in": standing.bytes_in,
        "bytes_out": standing.bytes_out,
        "alive": f"{alive} of {len(standing.neighbours)}",
        "refused": _counted(standing.refused),
        "neighbours": [other.model_dump() for other in standing.neighbours],
    }
