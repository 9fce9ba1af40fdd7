"""Whether there is room: a run that would not fit into the free memory is refused, with the figures.

The system would kill it without a word, after minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coterie.data.foreseen import foreseen
from coterie.errors import ConfigError
from coterie.experiments.setup.schema import Experiment
from coterie.memory import free_memory, in_gib
from coterie.simulation import Hosting, Need, need_of

_UNDOUBTED = 0.1  # of what is free: if a generous guess is below, nobody looks closer
_GUESSED_COPIES = 16  # of everyone's models
_MACHINES = "several machines with --engine ray (docs/scale.md)"
_FORCE = "--force tries all the same"
_USABLE = 0.95  # of what is free; the rest is for others
_HELD = 0.75  # of what a run leaves: generated samples that it holds, and need not make in every round


def with_room(experiment: Experiment, hosting: Hosting) -> Hosting:
    """The same with as many of its samples held as there is room for.

    ConfigError if the run needs more than what is free; `execution.force` tries all the same.
    """
    free = free_memory()
    if free is None or experiment.execution.device != "cpu":
        return hosting
    needed = _needed(experiment, hosting, free)
    return replace(hosting, held=max(0, int(_HELD * (_USABLE * free - needed))))


def _needed(experiment: Experiment, hosting: Hosting, free: int) -> int:
    """Bytes that the run will take beside its data, at most."""
    model = sum(value.nbytes for value in hosting.module.state_dict().values())
    guess = hosting.topology.nodes * (_GUESSED_COPIES * model + 4 * hosting.topology.nodes)
    if guess < _UNDOUBTED * free:
        return guess
    need = need_of(hosting)
    if need.to_come > _USABLE * free and not experiment.execution.force:
        raise ConfigError(refusal(need, free))
    return need.to_come


def require_memory_for_data(experiment: Experiment, size: int) -> None:
    """The same for samples that are about to be made all at once, and dealt out: one copy each."""
    free = free_memory()
    if free is not None and 2 * size > _USABLE * free and not experiment.execution.force:
        raise ConfigError(
            f"the samples of {experiment.data} for {experiment.peers:,} peers need about {in_gib(2 * size)}, "
            f"twice {in_gib(size)} while they are dealt out, and {in_gib(free)} are free; with partition "
            f"'natural' they are made when needed. What would fit: {experiment.data} with a smaller size, "
            f"about {int(experiment.peers * _USABLE * free / (2 * size)):,} peers, or {_MACHINES}; {_FORCE}"
        )


def require_memory_for_files(experiment: Experiment, paths: Sequence[Path]) -> None:
    """The same for data files that are about to be read."""
    free = free_memory()
    if free is None or experiment.execution.force or not all(path.is_file() for path in paths):
        return  # the reader says which file is missing
    size = foreseen(paths)
    if size > _USABLE * free:
        raise ConfigError(
            f"the samples of {experiment.data} ({len(paths)} file{'s' * (len(paths) != 1)}) take at least "
            f"{in_gib(size)} in memory, and {in_gib(free)} are free. What would fit: fewer samples in the "
            f"files, or {_MACHINES}; {_FORCE}"
        )


def refusal(need: Need, free: int) -> str:
    """What it needs, what is free, and what would fit."""
    parts = {
        "state before and after a round": need.state,
        "models between training and mixing": need.models,
        "what optimisers remember": need.optimiser,
        "addresses and records of an exchange": need.exchange,
        "worker threads": need.workers,
    }
    listed = ", ".join(f"{name} {in_gib(size)}" for name, size in parts.items() if size)
    fits = int((_USABLE * free - need.workers) / need.per_node)
    advice = [f"about {fits:,} peers"] if fits > 0 else []
    advice += ["fewer --workers"] if need.workers > free / 4 else []
    advice += ["a smaller splitting.samples_per_peer, or size of synthetic"] if need.data > free / 4 else []
    return (
        f"{need.nodes:,} nodes with models of {need.numbers:,} numbers need about {in_gib(need.to_come)} "
        f"({listed}) beside {in_gib(need.data)} of data, and {in_gib(free)} are free. What would fit: "
        f"{', '.join([*advice, 'a smaller model'])}, or {_MACHINES}; {_FORCE}"
    )
