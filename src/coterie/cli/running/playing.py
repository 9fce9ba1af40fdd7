"""What `run`, `compare` and `demo` share once the experiment is known. Imports PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.catalogue import algorithms
from coterie.cli.problems import running
from coterie.cli.running.progress import Progress
from coterie.errors import RunFolderError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.running import Run, run_or_resume
from coterie.experiments.setup.schema import Experiment


def play(experiment: Experiment, folder: Path, progress: Progress, *, command: str, label: str = "") -> Run:
    """Run an experiment in a new folder, or continue the run that the folder holds, if it is of this one."""
    point = algorithms[experiment.algorithm].facts.measured  # type: ignore[attr-defined]
    watcher = progress.watch(label or experiment.algorithm, experiment.rounds, point)
    with running(folder, command):
        return run_or_resume(experiment, folder, observer=watcher)


def experiment_in(folder: Path) -> Experiment:
    """The experiment of a run folder that can be continued."""
    stored = RunFolder(folder)
    if not folder.is_dir():
        raise RunFolderError(f"{folder} does not exist; there is no run to resume")
    experiment = stored.experiment()
    stored.executor()  # fails here, before the run, if it cannot be read
    return experiment


def draw(runs: Sequence[Run], folder: Path, labels: Sequence[str] | None = None) -> list[Path]:
    """The plots of one run, or of several beside each other."""
    from coterie.reporting import plots

    names = list(labels or (plots.label_of(one) for one in runs))
    paths = [
        plots.learning_curves(runs, names, folder / "learning_curves.png"),
        plots.per_peer_accuracy(runs, names, folder / "per_peer_accuracy.png"),
        plots.who_learned_from_whom(runs, names, folder / "who_learned_from_whom.png"),
    ]
    return [path for path in paths if path is not None]
