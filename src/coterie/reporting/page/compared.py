"""Several runs beside each other: curves with bands over seeds, a table, and the cost of a target."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.metric import Metric
from coterie.reporting.intervals import interval
from coterie.reporting.numbers.curves import learning_curve, reached
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.numbers.gains import gains_of, mean_of, worst_of
from coterie.reporting.numbers.known import POINT_NAMES
from coterie.reporting.numbers.traffic import bytes_until
from coterie.reporting.page import words
from coterie.reporting.page.plainly import flat, in_words, listing, metric_entry, plain, signed
from coterie.reporting.page.states import of_other_version, state_of
from coterie.reporting.tables import in_bytes

STEPS = 100  # of the slider that sets a target
Group = Sequence[OfFolder]
Locals = Mapping[Path, OfFolder]
_NOT_WHAT = ("seed", "data_dir", "execution.")  # keys that do not make another experiment


def in_groups(runs: Sequence[OfFolder]) -> dict[str, list[OfFolder]]:
    """Runs that differ only in their seed, by a label that tells the groups apart."""
    found: dict[tuple[tuple[str, str], ...], list[OfFolder]] = {}
    for run in runs:
        found.setdefault(what_counts(run.config), []).append(run)
    tables = [dict(key) for key in found]
    differing = sorted({key for one in tables for key in one if len({t.get(key) for t in tables}) > 1})
    labels: dict[str, list[OfFolder]] = {}
    for table, group in zip(tables, found.values(), strict=True):
        several = [key for key in differing if key != "algorithm" and not _follows(key, tables)]
        more = ", ".join(f"{key.rpartition('.')[2]} {table.get(key, '-')}" for key in several[:4])
        label = table.get("algorithm", "?") + (f" ({more})" if more else "")
        while label in labels:
            label += "'"
        labels[label] = sorted(group, key=lambda run: run.seed)
    return labels


def what_counts(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What an experiment is but for its seed, and for where and how it is computed."""
    kept = {key: str(value) for key, value in flat(config).items() if not key.startswith(_NOT_WHAT)}
    return tuple(sorted(kept.items()))


def _follows(key: str, tables: Sequence[Mapping[str, str]]) -> bool:
    """Whether a key is always the same for the same algorithm, so that the algorithm's name says it."""
    by_algorithm: dict[str, set[str | None]] = {}
    for table in tables:
        by_algorithm.setdefault(table.get("algorithm", "?"), set()).add(table.get(key))
    return all(len(values) == 1 for values in by_algorithm.values())


def compared(
    groups: Mapping[str, Group], local: Locals | None = None, identities: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """groups: by label, an algorithm's runs, one for each seed. local: by a run's folder, Local on its data.

    identities: by folder, what the page calls a run.
    """
    metric, local = next(iter(groups.values()))[0].metric, local or {}
    fit = {
        label: [run for run in group if run.metric.name == metric.name and run.rounds]
        for label, group in groups.items()
    }
    left_out = [label for label, group in groups.items() if len(fit[label]) < len(group)]
    fit = {label: group for label, group in fit.items() if group}
    fit = dict(sorted(fit.items(), key=lambda entry: _rank(entry[1], metric)))
    return {
        "metric": metric_entry(metric),
        "alike": _on_the_same_data([run for group in fit.values() for run in group]),
        "groups": [_group(label, group, local, identities or {}) for label, group in fit.items()],
        "targets": _targets(list(fit.values()), metric),
        "words": words_of(fit, local),
        "notes": _notes(fit, left_out, metric),
    }


def _rank(group: Group, metric: Metric) -> float:
    """The best first; who was not measured, last."""
    mean = mean_of(group)
    return float("inf") if mean != mean else -mean if metric.higher_is_better else mean


def _group(label: str, group: Group, local: Locals, identities: Mapping[str, str]) -> dict[str, Any]:
    curve, first = learning_curve(group), group[0]
    return {
        "label": label,
        "algorithm": first.algorithm,
        "seeds": [run.seed for run in group],
        "ids": [identities.get(str(run.path), "") for run in group],
        "point": POINT_NAMES[first.point],
        "curve": {
            "rounds": curve.rounds,
            "mean": plain(curve.mean),
            "low": plain(curve.low),
            "high": plain(curve.high),
            "other": plain(curve.other),
        },
        "row": row_of(group, local),
    }


def row_of(group: Group, local: Locals) -> dict[str, Any]:
    """A line of the table: means over peers, then over seeds, with Student's interval."""
    of_seeds = [run.mean for run in group]
    known = [value for value in of_seeds if value == value]
    found = interval(known)
    gains = _gains_of_seeds(group, local)
    sent = [bytes_until(run, [len(run.done)])[0] for run in group]
    inside = [share for run in group if (share := run.own_cluster_share) is not None]
    return {
        "mean": None if found is None else plain(found.mean),
        "low": None if found is None else plain(found.low),
        "high": None if found is None else plain(found.high),
        "worst": plain(worst_of(group)),
        "gain": plain(statistics.fmean(gains)) if gains else None,
        "bytes": statistics.fmean(sent),
        "bytes_text": in_bytes(statistics.fmean(sent)),
        "inside": plain(statistics.fmean(inside)) if inside else None,
        "rounds": max(len(run.done) for run in group),
        "states": [state_of(run).text for run in group],
    }


def pairs(group: Group, local: Locals) -> list[tuple[OfFolder, OfFolder]]:
    """Each run with Local on its data."""
    return [(run, local[run.path]) for run in group if run.path in local]


def _gains_of_seeds(group: Group, local: Locals) -> list[float]:
    found = [gains_of([run], [alone]).mean for run, alone in pairs(group, local)]
    return [gain for gain in found if gain == gain]


def _targets(groups: Sequence[Group], metric: Metric) -> dict[str, Any] | None:
    """For every step of the slider: rounds and bytes per peer until each group's seeds reach that target."""
    curves = [[learning_curve([run]) for run in group] for group in groups]
    values = np.concatenate([curve.mean for group in curves for curve in group] or [np.zeros(0)])
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    targets = np.linspace(values.min(), values.max(), STEPS + 1)
    entry: dict[str, Any] = {"values": plain(targets), "texts": [in_words(metric, float(t)) for t in targets]}
    columns: dict[str, list[list[Any]]] = {"rounds": [], "bytes": [], "texts": [], "reached": []}
    for group, of_seeds in zip(groups, curves, strict=True):
        lines: list[tuple[Any, ...]] = []
        for target in targets.tolist():
            firsts = [reached(curve.rounds, curve.mean, target, metric) for curve in of_seeds]
            there = [(run, first) for run, first in zip(group, firsts, strict=True) if first is not None]
            rounds = statistics.fmean(first for _, first in there) if there else None
            sent = statistics.fmean(bytes_until(run, [first])[0] for run, first in there) if there else None
            lines.append((rounds, sent, "" if sent is None else in_bytes(sent), len(there)))
        for name, column in zip(columns, zip(*lines, strict=True), strict=True):
            columns[name].append(list(column))
    return {**entry, "rounds": columns["rounds"], "bytes": columns["bytes"], "bytes_texts": columns["texts"],
            "reached": columns["reached"]}  # fmt: skip


def words_of(groups: Mapping[str, Group], local: Locals) -> list[str]:
    """What was learned, in sentences."""
    if not groups:
        return ["Nothing was measured so far."]
    metric = next(iter(groups.values()))[0].metric
    choose = max if metric.higher_is_better else min
    means = {label: mean_of(group) for label, group in groups.items()}
    means = {label: mean for label, mean in means.items() if mean == mean}
    if not means:
        return ["Nothing was measured so far."]
    best = choose(means, key=lambda label: means[label])
    said = [_NOT_COMPARABLE]
    if alike := _on_the_same_data([run for group in groups.values() for run in group]):
        said = [_winner(groups, means, best), *_noise(groups, best, means)]
    said += _helped_and_hurt(groups, local, metric)
    if alike and len({group[0].algorithm for group in groups.values()}) > 1:  # else only settings differ
        said.append(words.whether_choosing_paid(groups))
    said.append(_costs(groups, best))
    return [*said, *words.cautions(list(groups.values()), compared=True)]


_NOT_COMPARABLE = (
    "These runs do not have the same peers, data or partition: their scores are not comparable, and none "
    "is best."
)


def _on_the_same_data(runs: Sequence[OfFolder]) -> bool:
    known = {(run.peers, str(run.config.get("data")), str(run.config.get("partition"))) for run in runs}
    return len(known) == 1


def _winner(groups: Mapping[str, Group], means: Mapping[str, float], best: str) -> str:
    """The best; if it was told the clusters, also the best of those that were not."""
    first = groups[best][0]
    metric = first.metric
    even = [label for label in means if metric.text(means[label]) == metric.text(means[best])]
    out = f"{best} comes out best" if len(even) == 1 else f"{listing(even)} come out best, and level"
    seeds = f" and {len(groups[best])} seeds" if len(groups[best]) > 1 else ""
    said = (
        f"{out}: a mean {metric.title} of {in_words(metric, means[best])} over {first.peers} peers{seeds}, "
        "each measured on its own test data."
    )
    untold = {label: mean for label, mean in means.items() if groups[label][0].algorithm not in words.TOLD}
    if first.algorithm in words.TOLD and len(even) == 1 and untold:
        next_best = (max if metric.higher_is_better else min)(untold, key=lambda label: untold[label])
        reached = f"{next_best} is best with {in_words(metric, untold[next_best])}"
        said += f" But {best} is told the true clusters; of those that are not, {reached}."
    return said


def _noise(groups: Mapping[str, Group], best: str, means: Mapping[str, float]) -> list[str]:
    """Whether the seeds can tell the best from the next."""
    others = sorted(
        (label for label in means if label != best), key=lambda label: abs(means[label] - means[best])
    )
    if not others:
        return []
    near = others[0]
    by_seed = {run.seed: run.mean for run in groups[near]}
    pairs = [run.mean - by_seed[run.seed] for run in groups[best] if run.seed in by_seed]
    found = interval([value for value in pairs if value == value])
    if found is None or found.n < 2:
        return []
    if found.low is not None and found.high is not None and found.holds(0):
        low, high = (signed(groups[best][0].metric, end) for end in (found.low, found.high))
        return [
            f"{found.n} seeds cannot tell it from {near}: the 95 % interval of their difference, {low} to "
            f"{high}, holds 0."
        ]
    return []


def _helped_and_hurt(groups: Mapping[str, Group], local: Locals, metric: Metric) -> list[str]:
    lines: list[tuple[float, str]] = []
    for label, group in groups.items():
        matched = pairs(group, local)
        if group[0].algorithm == "local" or not matched:
            continue
        gains = gains_of([run for run, _ in matched], [alone for _, alone in matched])
        if gains.mean == gains.mean:
            points = " points" if metric.percent else ""
            counted = f"{gains.helped} of {int((gains.gain == gains.gain).sum())} gain, {gains.hurt} lose"
            lines.append((gains.mean, f"{label} {signed(metric, gains.mean)}{points} ({counted})"))
    if not lines:
        return ["Who gained and who lost is not known: there is no run of Local on the same data and seeds."]
    lines.sort(reverse=True)
    told = [text for _, text in lines]
    if len(told) > 4:
        told = [*told[:3], f"and at the other end {told[-1]}"]
    return [f"Against learning alone, peers gain or lose on average: {'; '.join(told)}."]


def _costs(groups: Mapping[str, Group], best: str) -> str:
    sent = {
        label: statistics.fmean(bytes_until(run, [len(run.done)])[0] for run in group)
        for label, group in groups.items()
        if group[0].algorithm != "local"
    }
    if not sent:
        return "Nothing was sent."
    least, most = min(sent, key=lambda label: sent[label]), max(sent, key=lambda label: sent[label])
    own = f"{best} sent {in_bytes(sent[best])} per peer; " if best in sent else ""
    if len(sent) == 1:
        return f"{least} sent {in_bytes(sent[least])} per peer."
    if in_bytes(sent[least]) == in_bytes(sent[most]):
        return f"Each of them sent {in_bytes(sent[most])} per peer."
    low, high = f"{in_bytes(sent[least])} ({least})", f"{in_bytes(sent[most])} ({most})"
    return f"{own}{'w' if own else 'W'}hat a peer sent ranges from {low} to {high}."


def _notes(groups: Mapping[str, Group], left_out: Sequence[str], metric: Metric) -> list[str]:
    said = [
        f"{label}: runs without {metric.title}, or without a measured round, are left out."
        for label in left_out
    ]
    runs = [run for group in groups.values() for run in group]
    said += list(dict.fromkeys(text for run in runs if (text := of_other_version(run))))
    unfinished = [run for run in runs if not run.result]
    if unfinished:
        said.append(
            f"{len(unfinished)} of {len(runs)} runs are not finished; their numbers are those so far."
        )
    return said
