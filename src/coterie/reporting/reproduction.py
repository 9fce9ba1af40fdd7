"""A paper's table from our records: numbers beside the printed ones, orders of methods, claims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.errors import RunFolderError
from coterie.experiments.cells.cell import Cell, breakage
from coterie.experiments.cells.paper_schema import SCALES, Claim, Column, PaperTable, Printed, Row, Scale
from coterie.reporting.intervals import Interval, interval
from coterie.reporting.measures import (
    Record,
    different_data,
    is_percentage,
    majority_floor,
    measure,
    read_record,
)
from coterie.reporting.work import steps_of, unequal

HOLDS, FAILS = "holds", "does not hold"
UNSEEN, UNKNOWN = "cannot be seen at this scale", "unknown"


@dataclass
class Reproduction:
    """A table or figure at one scale: its description, and the records of its cells."""

    name: str
    table: PaperTable
    scale: Scale
    records: dict[tuple[str, str], dict[int, Record]] = field(
        default_factory=dict
    )  # by row and column, by seed
    broken: dict[tuple[str, str, int], str] = field(default_factory=dict)
    unreadable: list[tuple[str, str, int]] = field(
        default_factory=list
    )  # of the broken: with damaged records
    missing: list[tuple[str, str, int]] = field(default_factory=list)
    unfair: str = ""  # why its numbers may not be compared with each other

    @property
    def rows(self) -> list[Row]:
        return self.table.rows_at(self.scale)

    @property
    def columns(self) -> list[Column]:
        return self.table.columns_at(self.scale)

    @property
    def seeds(self) -> int:
        return max((len(by_seed) for by_seed in self.records.values()), default=0)

    def values(self, row: str, column: str, metric: str) -> dict[int, float]:
        """By seed, in the unit that is shown: percent for accuracies."""
        target = next(one for one in self.table.columns if one.name == column).target.get(self.scale)
        found = {
            seed: measure(record, metric, None if target is None else target / 100)
            for seed, record in self.records.get((row, column), {}).items()
        }
        unit = 100.0 if is_percentage(metric) else 1.0
        return {seed: unit * value for seed, value in found.items() if value is not None and value == value}

    def number(self, row: str, column: str, metric: str) -> Interval | None:
        return interval(list(self.values(row, column, metric).values()))

    def floor(self, column: str, metric: str) -> float | None:
        """The majority class, mean over seeds, in percent; the same for every row of a column."""
        for row in self.rows:
            floors = [
                majority_floor(one, metric) for one in self.records.get((row.name, column), {}).values()
            ]
            known = [value for value in floors if value is not None]
            if known:
                return 100 * math.fsum(known) / len(known)
        return None

    def steps(self, column: str) -> dict[str, float]:
        """Gradient steps per peer over the run, mean over seeds, of each row of which they are known."""
        found = {}
        for row in self.rows:
            runs = self.records.get((row.name, column), {}).values()
            known = [steps for one in runs if (steps := steps_of(one.result)) is not None]
            if known:
                found[row.name] = math.fsum(known) / len(known)
        return found

    def trained_otherwise(self, column: str) -> set[str]:
        """The rows whose steps differ from Local's, or from the median where there is no Local."""
        steps = self.steps(column)
        marks = unequal(list(steps.values()), steps.get("local"))
        return {row for row, mark in zip(steps, marks, strict=True) if mark}

    def seconds(self) -> float:
        """What the cells took, one after the other."""
        return sum(float(one.result["seconds"]) for by in self.records.values() for one in by.values())


def assemble(name: str, table: PaperTable, scale: Scale, cells: Sequence[Cell], where: Path) -> Reproduction:
    """Read the records of the cells; what is not there is broken or missing."""
    reproduction = Reproduction(name, table, scale)
    read: list[tuple[Cell, Record]] = []
    for cell in cells:
        row, column, seed = (cell.labels[key] for key in ("row", "column", "seed"))
        try:
            record = read_record(where / cell.name)
        except RunFolderError as error:  # the others are still worth a table
            reproduction.broken[row, column, seed] = str(error)
            reproduction.unreadable.append((row, column, seed))
            continue
        if record is not None:
            reproduction.records.setdefault((row, column), {})[seed] = record
            read.append((cell, record))
            continue
        message = breakage(where / cell.name)
        if message is None:
            reproduction.missing.append((row, column, seed))
        else:
            reproduction.broken[row, column, seed] = message
    reproduction.unfair = different_data(read)
    return reproduction


def printed_number(
    table: PaperTable, row: Row, column: str, metric: str
) -> tuple[float | None, Printed | None]:
    """The paper's number for a metric, and all that it prints for the cell."""
    entry = row.printed.get(column)
    if entry is None:
        return None, None
    if metric in entry.metrics:
        return entry.metrics[metric], entry
    return (entry.value, entry) if metric in table.compared else (None, None)


@dataclass(frozen=True)
class Order:
    """Methods from best to worst, in ours and in the paper; those with equal numbers share a place."""

    column: str
    metric: str
    ours: list[list[str]]
    printed: list[list[str]]
    agreeing: int  # pairs of methods in the paper's order
    pairs: int  # of which both the paper and we have different numbers


def orders(reproduction: Reproduction) -> list[Order]:
    """For each column and metric of which the paper prints numbers for two methods or more."""
    found = []
    compared = [metric for metric in reproduction.table.metrics if metric in reproduction.table.compared]
    for column, metric in itertools.product(reproduction.columns, compared):
        ours, printed = {}, {}
        for row in reproduction.rows:
            values = _operand(reproduction, row.name, column.name, metric)
            value = _printed_place(reproduction.table, row, column.name, metric)
            if values is not None:
                ours[row.name] = math.fsum(values.values()) / len(values)
            if value is not None:
                printed[row.name] = value
        if len(printed) > 1:
            found.append(_order(column.name, metric, ours, printed))
    return found


def _printed_place(table: PaperTable, row: Row, column: str, metric: str) -> float | None:
    """The paper's number; infinitely far, as in ours, where it prints that a target was never reached."""
    value, entry = printed_number(table, row, column, metric)
    never = value is None and entry is not None and metric.endswith("-to-target")
    return math.inf if never else value


def _order(column: str, metric: str, ours: dict[str, float], printed: dict[str, float]) -> Order:
    pairs = itertools.combinations([name for name in ours if name in printed], 2)
    both = [(a, b) for a, b in pairs if not any(_equal(values[a], values[b]) for values in (ours, printed))]
    agreeing = sum((ours[a] > ours[b]) == (printed[a] > printed[b]) for a, b in both)
    few_is_good = metric.endswith("-to-target") or metric.endswith("-spread")
    return Order(
        column, metric, _places(ours, few_is_good), _places(printed, few_is_good), agreeing, len(both)
    )


def _places(values: dict[str, float], few_is_good: bool) -> list[list[str]]:
    """From best to worst, those with equal numbers together."""
    places: list[list[str]] = []
    for name in sorted(values, key=lambda name: values[name], reverse=not few_is_good):
        if places and _equal(values[places[-1][0]], values[name]):
            places[-1].append(name)
        else:
            places.append([name])
    return places


def _equal(one: float, other: float) -> bool:
    """But for rounding; two targets that were never reached are equally far."""
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


@dataclass(frozen=True)
class Verdict:
    """Whether a claim of the paper shows in our numbers."""

    claim: Claim
    status: str
    detail: str


def judge(reproduction: Reproduction, claim: Claim) -> Verdict:
    """A claim holds if it holds for the means over the seeds of both sides, in every column it is about."""
    comparisons = [
        _compare(reproduction, claim, higher, lower, column)
        for column in _columns(reproduction, claim)
        for higher in claim.higher
        for lower in claim.lower or [""]
    ]
    # An operand row@column is the same in every column, so that a comparison may come up again.
    known = list(dict.fromkeys(one for one in comparisons if one is not None))
    detail = "; ".join(text for text, _ in known)
    if SCALES.index(reproduction.scale) < SCALES.index(claim.visible):
        return Verdict(claim, UNSEEN, claim.why_not)
    if not known or len(known) < len({*comparisons}):
        return Verdict(claim, UNKNOWN, "; ".join(filter(None, ["some of its cells have no number", detail])))
    return Verdict(claim, HOLDS if all(holds for _, holds in known) else FAILS, detail)


def verdicts(reproduction: Reproduction) -> list[Verdict]:
    return [judge(reproduction, claim) for claim in reproduction.table.claims_at(reproduction.scale)]


def _columns(reproduction: Reproduction, claim: Claim) -> list[str]:
    present = [column.name for column in reproduction.columns]
    return [name for name in present if claim.columns is None or name in claim.columns]


def _compare(
    reproduction: Reproduction, claim: Claim, higher: str, lower: str, column: str
) -> tuple[str, bool] | None:
    """What was found for one pair, and whether the claim holds for it."""
    metric = claim.metric or reproduction.table.metrics[0]
    above = _operand(reproduction, higher, column, metric)
    if above is None:
        return None
    if claim.at_least is not None:
        value = math.fsum(above.values()) / len(above)
        return f"{_place(column, higher)}{higher} {value:.1f}", value >= claim.at_least
    below = _operand(reproduction, lower, column, metric)
    if below is None:
        return None
    seeds = [seed for seed in above if seed in below]  # on others, one side has other data
    if not seeds:
        return None
    above_mean, below_mean = (math.fsum(side[seed] for seed in seeds) / len(seeds) for side in (above, below))
    difference = above_mean - below_mean
    if math.isnan(difference):
        return None  # neither reached its target
    text = f"{_place(column, higher, lower)}{higher} - {lower} = {difference:+.2f}"
    pairs = [above[seed] - below[seed] for seed in seeds]
    paired = interval(pairs) if all(map(math.isfinite, pairs)) else None
    if paired is not None and paired.holds(claim.margin):
        text += " (within the noise of the seeds)"
    return text, difference > claim.margin


def _operand(reproduction: Reproduction, operand: str, column: str, metric: str) -> dict[int, float] | None:
    """By seed; a target that was never reached is infinitely far away."""
    row, _, own_column = operand.partition("@")
    values = reproduction.values(row, own_column or column, metric)
    if metric.endswith("-to-target"):
        runs = reproduction.records.get((row, own_column or column), {})
        values = {seed: values.get(seed, math.inf) for seed in runs}
    return values or None


def _place(column: str, *operands: str) -> str:
    """The column, unless every operand names its own."""
    return "" if all("@" in operand for operand in operands) else f"{column}: "
