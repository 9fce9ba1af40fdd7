"""The table of runs: a line for each, what sets it apart, and the Local that it is measured against."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.errors import CoterieError
from coterie.metric import Metric
from coterie.reporting.numbers.curves import learning_curve
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.numbers.traffic import bytes_until
from coterie.reporting.page.plainly import flat, in_words, plain, signed
from coterie.reporting.page.states import State, state_of
from coterie.reporting.tables import in_bytes

_SAME_DATA = ("data", "partition", "peers", "seed", "splitting", "task", "metrics", "names")
_SAME_TRAINING = ("model", "models", "adapter", "rounds", "init", "batchnorm", "training.", "stopping.")
_NOT_TOLD = ("algorithm", "execution.", "data_dir")  # keys that no line needs to repeat
_KEYS_TOLD = 6
_POINTS = 20  # of a run's curve in its line
WRONG = (ArithmeticError, AttributeError, CoterieError, LookupError, OSError, TypeError, ValueError)
"""What files that make no sense may raise."""


class Line(NamedTuple):
    """What the table needs of a run, without its records."""

    config: dict[str, str]
    entry: dict[str, Any]
    data: str  # what decides whether another run has the same data
    mean: float | None
    finished: bool
    metric: Metric | None


class Plan(NamedTuple):
    """A comparison, sweep or reproduction: a folder that tells which runs belong together."""

    path: Path
    kind: str
    members: Sequence[str]  # names of runs


def line_of(name: str, path: Path) -> Line:
    """One line of the table; of what cannot be read, why."""
    try:
        run = OfFolder(path)
        state, mean = state_of(run), run.mean
        sent = bytes_until(run, [len(run.done)])[0] if len(run.done) else None
    except WRONG as error:
        state = State("broken", f"broken: {str(error)[:300] or type(error).__name__}")
        return Line({}, _entry(name, None, state, comparable=False), "", None, False, None)
    known = mean == mean
    entry = _entry(name, run.algorithm, state, comparable=bool(run.rounds))
    entry |= {
        "link": "run",
        "score": plain(mean),
        "score_text": in_words(run.metric, mean) if known else "",
        "metric": run.metric.title,
        "curve": _small(run),
        "bytes": sent,
        "bytes_text": "" if sent is None else in_bytes(sent),
        "started": run.environment.get("started"),
    }
    config = {key: str(value) for key, value in flat(run.config).items()}
    data = json.dumps([run.config.get(key) for key in _SAME_DATA], sort_keys=True, default=str)
    metric = Metric(run.metric.name, run.metric.higher_is_better, run.metric.percent)
    return Line(config, entry, data, mean if known else None, bool(run.result), metric)


def _small(run: OfFolder) -> list[float | None]:
    """The learning curve at so many rounds as a small picture can show."""
    if not run.rounds:
        return []
    mean = learning_curve([run]).mean
    step = max(1, -(-len(mean) // _POINTS))
    return list(plain(mean[::-step][::-1], 3))


def rows_of(lines: Mapping[str, Line], plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """Plans, and runs with the plan that they belong to."""
    plan_of = {member: name for name, plan in plans.items() for member in plan.members}
    told = differences(lines, plan_of)
    alone, rows = local_runs(lines), []
    for name, line in lines.items():
        gain, text = _gain(line, lines, local_of(name, lines, alone, plans))
        row = {**line.entry, "plan": plan_of.get(name), "differs": told[name], "gain": plain(gain),
               "gain_text": text}  # fmt: skip
        row["text"] = " ".join(str(row[key]) for key in ("name", "algorithm", "differs")).lower()
        row["text"] += f" {row['state']['text'].lower()}"
        rows.append(row)
    by_name = {row["id"]: row for row in rows}
    return rows + [_plan_row(name, plan, lines, by_name) for name, plan in plans.items()]


def local_runs(lines: Mapping[str, Line]) -> dict[str, list[str]]:
    """Finished runs of Local, by what decides their data."""
    index: dict[str, list[str]] = {}
    for name, line in lines.items():
        if line.entry["algorithm"] == "local" and line.finished:
            index.setdefault(line.data, []).append(name)
    return index


def local_of(
    name: str, lines: Mapping[str, Line], alone: Mapping[str, list[str]], plans: Mapping[str, Plan]
) -> str | None:
    """The run of Local that a run is measured against: on the same data, and trained as it was.

    A comparison or reproduction has a Local of its own, which counts although methods may train differently.
    """
    line = lines[name]
    if line.entry["algorithm"] in ("local", None) or not line.data:
        return None
    same = [other for other in alone.get(line.data, []) if lines[other].metric == line.metric]
    if not same:
        return None
    mates = {one for plan in plans.values() if plan.kind != "sweep" and name in plan.members
             for one in plan.members}  # fmt: skip
    apart = {other: _trained_apart(line.config, lines[other].config) for other in same}
    fit = [other for other in same if other in mates or not apart[other]]
    folder = os.path.dirname(name)
    return min(fit, key=lambda other: (apart[other], os.path.dirname(other) != folder, other), default=None)


def _trained_apart(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    """In how many ways two runs trained differently, but for what their methods are."""
    keys = {key for key in {*one, *other} if key.startswith(_SAME_TRAINING) and key != "training.work"}
    return sum(one.get(key) != other.get(key) for key in keys)


def _gain(line: Line, lines: Mapping[str, Line], local: str | None) -> tuple[float | None, str]:
    if local is None or line.mean is None or line.metric is None or lines[local].mean is None:
        return None, ""
    gain = float(line.metric.gain(line.mean, lines[local].mean))
    return gain, signed(line.metric, gain)


def _entry(name: str, algorithm: str | None, state: State, *, comparable: bool) -> dict[str, Any]:
    empty = {"score": None, "score_text": "", "bytes": None, "bytes_text": "", "started": None, "link": ""}
    return {"id": name, "name": name, "kind": "run", "algorithm": algorithm, "state": state.entry(),
            "comparable": comparable, **empty}  # fmt: skip


def _plan_row(
    name: str, plan: Plan, lines: Mapping[str, Line], rows: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    members = [rows[member] for member in plan.members if member in rows]
    states = Counter(row["state"]["kind"] for row in members)
    state = State(*_stand(states, len(plan.members)))
    algorithms = list(dict.fromkeys(row["algorithm"] for row in members if row["algorithm"]))
    row = _entry(name, None, state, comparable=any(row["comparable"] for row in members))
    begun = min((row["started"] for row in members if row["started"]), default=None)
    said = ", ".join(algorithms[:4]) + (f" and {len(algorithms) - 4} more" if len(algorithms) > 4 else "")
    row |= {"kind": plan.kind, "link": "compare" if members else "", "started": begun, "algorithms": said}
    row |= {"differs": "", "plan": None, "runs": len(members), "gain": None, "gain_text": ""}
    metrics = {lines[member["id"]].metric for member in members if member["score"] is not None}
    if len(metrics) == 1 and plan.kind != "reproduction" and _on_the_same_data(members, lines):
        row |= _best(members, metrics.pop())
    return {**row, "text": f"{name} {plan.kind} {said} {state.text}".lower()}


def _on_the_same_data(members: Sequence[dict[str, Any]], lines: Mapping[str, Line]) -> bool:
    """But for the seed; a sweep may go over data, and then no score of it is the best."""
    decides = {key for key in _SAME_DATA if key != "seed"}
    configs = [lines[member["id"]].config for member in members if member["score"] is not None]
    known = [{k: v for k, v in config.items() if k.partition(".")[0] in decides} for config in configs]
    return all(one == known[0] for one in known)


def _stand(states: Counter[str], planned: int) -> tuple[Any, str]:
    kind = next((kind for kind in ("running", "broken", "interrupted") if states[kind]), "finished")
    if not states:
        return "interrupted", "no runs so far"
    if set(states) == {"finished"}:
        return "finished", "finished"
    said = ", ".join(f"{states[one]} {one}" for one in ("running", "finished", "interrupted", "broken")
                     if states[one])  # fmt: skip
    return kind, f"{said} of {planned} runs"


def _best(members: Sequence[dict[str, Any]], metric: Metric | None) -> dict[str, Any]:
    """The method, with its settings where these differ, that has the best mean over seeds."""
    scores: dict[str, list[float]] = {}
    for row in members:
        if row["score"] is not None:
            scores.setdefault(_without_seed(row), []).append(row["score"])
    assert metric is not None
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    best = (max if metric.higher_is_better else min)(means, key=lambda name: means[name])
    gains = [row["gain"] for row in members if _without_seed(row) == best and row["gain"] is not None]
    gain = sum(gains) / len(gains) if gains else None
    text = "" if gain is None else signed(metric, gain)
    score = {"score": plain(means[best]), "score_text": in_words(metric, means[best]), "best": best}
    return {**score, "gain": plain(gain), "gain_text": text}


def _without_seed(row: Mapping[str, Any]) -> str:
    parts = [part for part in row["differs"].split(", ") if part and not part.startswith("seed ")]
    return ", ".join([row["algorithm"], *parts])


def differences(lines: Mapping[str, Line], plan_of: Mapping[str, str]) -> dict[str, str]:
    """By run, the keys that set it apart: from the others of its plan, or from most single runs."""
    together: dict[str | None, list[str]] = {}
    for name in lines:
        together.setdefault(plan_of.get(name), []).append(name)
    said: dict[str, str] = {}
    for names in together.values():
        usual = _usual([lines[name].config for name in names])
        for name in names:
            said[name] = _apart(lines[name].config, usual)
    return said


def _usual(configs: Sequence[Mapping[str, str]]) -> dict[str, str | None]:
    """What most have, of keys in which some differ; None where no value is that of most."""
    counts: dict[str, Counter[str]] = {}
    for config in configs:
        for key, value in config.items():
            counts.setdefault(key, Counter())[value] += 1
    found: dict[str, str | None] = {}
    for key, count in counts.items():
        if not key.startswith(_NOT_TOLD) and (len(count) > 1 or count.total() < len(configs)):
            value, times = count.most_common(1)[0]
            found[key] = value if 2 * times > len(configs) else None
    return found


def _apart(config: Mapping[str, str], usual: Mapping[str, str | None]) -> str:
    parts = [f"{key} {config[key]}" for key, value in usual.items() if key in config and config[key] != value]
    more = len(parts) - _KEYS_TOLD
    return ", ".join(parts[:_KEYS_TOLD]) + (f", and {more} more" if more > 0 else "")


def below(name: str, names: Iterable[str]) -> list[str]:
    """The runs in a folder."""
    return [other for other in names if name == "." or other.startswith(f"{name}{os.sep}")]
