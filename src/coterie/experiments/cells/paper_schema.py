"""The format of a paper's table or figure as data. Needs no PyTorch. Explained in docs/reproducing.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from coterie.errors import ConfigError
from coterie.experiments.setup.schema import Section
from coterie.registry import nearest

Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")
Overrides = dict[str, Any]

ACCURACIES = {
    "personal": "own test data, at the point where the method's paper measures",
    "personal-after-local": "own test data, after local training",
    "personal-after-mixing": "own test data, after mixing",
    "global": "common test data of all classes, at the point where the method's paper measures",
    "global-after-local": "common test data of all classes, after local training",
    "global-after-mixing": "common test data of all classes, after mixing",
    "validation": "own validation data, at the point where the method's paper measures",
    "personal-spread": "standard deviation over peers on own test data",
    "global-spread": "standard deviation over peers on the common test data",
    "worst-decile": "mean of the worst tenth of the peers on own test data",
    "cluster-mean": "own test data, mean within a cluster, then over clusters",
    "own-cluster-share": "share of what a peer learned that came from its own true cluster",
    "personal-mixing-gain": "own test data: after mixing minus after local training",
    "global-mixing-gain": "common test data: after mixing minus after local training",
    "divergence": (
        "common test data: local model minus the aggregated one of the round before, "
        "mean of the last tenth of the rounds"
    ),
}
"""Metrics that are shown in percent; besides, `cluster-0`, `cluster-1`, ... for single clusters."""
NUMBERS = {
    "loss": "loss on own test data",
    "train-loss": "loss during local training",
    "rounds-to-target": "first measured round with the target personal accuracy",
    "bytes-to-target": "bytes sent per peer until the target personal accuracy",
}
CURVES = (
    "personal", "personal-after-local", "personal-after-mixing", "global", "global-after-local",
    "global-after-mixing", "loss", "loss-after-local", "loss-after-mixing", "train-loss", "divergence",
)  # fmt: skip
"""What is known of every measured round, so that a figure of form "curves" can show it."""


def check_metric(name: str) -> str:
    known = {**ACCURACIES, **NUMBERS}
    if name not in known and not (name.startswith("cluster-") and name.removeprefix("cluster-").isdigit()):
        raise ConfigError(f"unknown metric {name!r}; {nearest(name, known)}")
    return name


class Scaled(Section):
    """What an experiment's table gets: at all scales, and then at one of them."""

    experiment: Overrides = Field(default_factory=dict)
    smoke: Overrides = Field(default_factory=dict)
    laptop: Overrides = Field(default_factory=dict)
    paper: Overrides = Field(default_factory=dict)

    def at_scale(self, scale: Scale) -> Overrides:
        chosen: Overrides = getattr(self, scale)
        return chosen


class Named(Scaled):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")
    label: str = ""
    x: float | None = None  # its place on the axis of a figure of form "line"

    @property
    def shown(self) -> str:
        return self.label or self.name


class Column(Named):
    """A setting: data set, partition, number of peers, ..."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9+-]*$"
    )  # no dot: it is a part of keys such as printed.<column>
    target: dict[Scale, float] = Field(default_factory=dict)  # accuracy for rounds-to-target, in percent


class Printed(Section):
    """What the paper prints for a cell, in percent.

    A note without a value says why there is none; for a metric such as rounds-to-target, that the paper's
    method never reached the target.
    """

    value: float | None = None
    spread: float | None = None
    note: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)  # numbers of other metrics than the main one


class Row(Named):
    """A method with its hyper-parameters; `at.<column>` is for one cell only."""

    printed: dict[str, Printed] = Field(default_factory=dict)
    at: dict[str, Scaled] = Field(default_factory=dict)

    @field_validator("printed", mode="before")
    @classmethod
    def _bare_numbers(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        bare = (int, float)
        return {key: {"value": one} if isinstance(one, bare) else one for key, one in value.items()}


class ScalePlan(Section):
    """What changes at one scale, for all cells."""

    experiment: Overrides = Field(default_factory=dict)
    rows: list[str] | None = None  # only these
    columns: list[str] | None = None
    note: str = ""  # how it differs from the paper, and how long it takes


class Figure(Section):
    form: Literal["curves", "bars", "line", "heat-map"]
    metrics: list[str] = Field(default_factory=lambda: ["personal"])
    rows: list[str] | None = None
    columns: list[str] | None = None
    title: str = ""
    x_label: str = ""
    each_peer: bool = False  # curves: one for each peer, in the first seed
    together: bool = False  # curves: one panel, in which every column has a curve

    @model_validator(mode="after")
    def _options_of_curves(self) -> Figure:
        if self.form != "curves" and (self.each_peer or self.together):
            raise ValueError("`each_peer` and `together` are for figures of form curves")
        if self.each_peer and self.together:
            raise ValueError("a figure has either `each_peer` or `together`")
        return self


class Claim(Section):
    """A statement of the paper: all of `higher` are above all of `lower`, or at least `at_least` percent."""

    says: str
    higher: list[str]  # rows, or row@column
    lower: list[str] = Field(default_factory=list)
    at_least: float | None = None
    metric: str | None = None
    columns: list[str] | None = None
    margin: float = 0.0  # percentage points, or the metric's own unit
    visible: Scale = "laptop"  # the smallest scale at which it can be seen
    why_not: str = ""  # why it cannot be seen below that scale
    scales: list[Scale] | None = None  # only there is it made: for rows and columns that other scales lack

    @field_validator("higher", "lower", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _compares(self) -> Claim:
        if bool(self.lower) == (self.at_least is not None):
            raise ValueError("a claim has either `lower` or `at_least`")
        return self


class PaperTable(Section):
    """One table or figure of a paper."""

    title: str
    source: str  # authors, year, and which table or figure
    shows: str  # what one should see, in a sentence or two
    setting: str  # the paper's exact setting
    notes: list[str] = Field(default_factory=list)  # errors of the paper, and where we differ
    metrics: list[str] = Field(default_factory=lambda: ["personal"])
    metric_labels: dict[str, str] = Field(default_factory=dict)
    printed_metrics: list[str] | None = (
        None  # those that the paper's numbers stand beside; default: the first
    )
    floor: bool = False  # show how often a peer's most frequent class is right
    without_local: str = ""  # the reason, if there is no row of Local
    experiment: Overrides = Field(default_factory=dict)
    scales: dict[Scale, ScalePlan]
    columns: list[Column]
    rows: list[Row]
    figures: list[Figure] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)

    @field_validator("figures")
    @classmethod
    def _curves_exist(cls, figures: list[Figure]) -> list[Figure]:
        for metric in (one for figure in figures if figure.form == "curves" for one in figure.metrics):
            if metric not in CURVES:
                raise ValueError(f"a curve of {metric!r} cannot be drawn; {nearest(metric, CURVES)}")
        return figures

    @property
    def compared(self) -> list[str]:
        """The metrics that the paper's main numbers are compared with."""
        return self.metrics[:1] if self.printed_metrics is None else self.printed_metrics

    def rows_at(self, scale: Scale) -> list[Row]:
        chosen = self.scales[scale].rows
        return [row for row in self.rows if chosen is None or row.name in chosen]

    def columns_at(self, scale: Scale) -> list[Column]:
        chosen = self.scales[scale].columns
        return [column for column in self.columns if chosen is None or column.name in chosen]

    def claims_at(self, scale: Scale) -> list[Claim]:
        return [claim for claim in self.claims if claim.scales is None or scale in claim.scales]

    @model_validator(mode="after")
    def _names_exist(self) -> PaperTable:
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        for kind, names in (("row", rows), ("column", columns)):
            if not names or len(set(names)) < len(names):
                raise ValueError(f"{kind}s need distinct names, at least one")
        missing = [scale for scale in SCALES if scale not in self.scales]
        if missing:
            raise ValueError(f"scale {missing[0]!r} is missing")
        for kind, known, used in (
            ("row", rows, self._used_rows()),
            ("column", columns, self._used_columns()),
        ):
            for name in used:
                if name not in known:
                    raise ValueError(f"unknown {kind} {name!r}; {nearest(name, known)}")
        for metric in self._used_metrics():
            try:
                check_metric(metric)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        for scale in SCALES:
            if "local" not in {row.name for row in self.rows_at(scale)} and not self.without_local:
                raise ValueError(
                    f"at scale {scale!r}, too, a row `local` must stand beside the others, or "
                    "`without_local` say why not"
                )
        return self

    def _selections(self) -> list[ScalePlan | Figure]:
        return [*self.scales.values(), *self.figures]

    def _used_rows(self) -> list[str]:
        operands = [name for claim in self.claims for name in (*claim.higher, *claim.lower)]
        return [
            *(name.partition("@")[0] for name in operands),
            *(name for plan in self._selections() for name in plan.rows or ()),
        ]

    def _used_columns(self) -> list[str]:
        operands = [name for claim in self.claims for name in (*claim.higher, *claim.lower)]
        return [
            *(name.partition("@")[2] for name in operands if "@" in name),
            *(name for claim in self.claims for name in claim.columns or ()),
            *(name for plan in self._selections() for name in plan.columns or ()),
            *(name for row in self.rows for name in (*row.printed, *row.at)),
        ]

    def _used_metrics(self) -> list[str]:
        return [
            *self.metrics,
            *self.metric_labels,
            *(self.printed_metrics or ()),
            *(metric for figure in self.figures if figure.form != "curves" for metric in figure.metrics),
            *(claim.metric for claim in self.claims if claim.metric is not None),
            *(metric for row in self.rows for one in row.printed.values() for metric in one.metrics),
        ]
