"""Which algorithm for an experiment, and why: `coterie recommend` and `--algorithm auto`. Needs no PyTorch.

The reasons are what docs/kin.md measured. Kin is the answer unless the experiment asks for what it cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.registry import parse_call

AUTO = "auto"
"""Stands for the algorithm that is recommended."""
_TABLE = "docs/kin.md has the table"


@dataclass(frozen=True)
class Wishes:
    """What the table of an experiment does not say."""

    sealed: bool = False  # nobody may see the model of a single peer
    free_running: bool = False  # real peers do not keep step
    one_model: bool = False  # one model for all, not one for each


@dataclass(frozen=True)
class Advice:
    """An algorithm, its settings where they are not the default, and why."""

    algorithm: str
    reason: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def written(self) -> str:
        """As `--algorithm` takes it."""
        inside = ",".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.algorithm}({inside})" if inside else self.algorithm


def recommend(table: Mapping[str, Any], wishes: Wishes | None = None) -> Advice:
    """The algorithm for an experiment. table: as the user wrote it; what is not there has its default."""
    wishes = wishes or Wishes()
    star = parse_call(str(table.get("topology") or "full"))[0] == "star"
    for fits, advice in (
        (table.get("peers") == 1, _ALONE),
        (wishes.one_model and star, _ONE_MODEL_THROUGH_A_HUB),
        (wishes.one_model, _ONE_MODEL),
        (star, _THROUGH_A_HUB),
        (wishes.free_running, _FREE_RUNNING),
        (wishes.sealed, _SEALED),
        (_guarded(table), _GUARDED),
    ):
        if fits:
            return advice
    return _KIN


def with_advice(
    table: Mapping[str, Any], say: Callable[[str], None] | None = None, wishes: Wishes | None = None
) -> dict[str, Any]:
    """The table with an algorithm in the place of `auto`; says which, and why."""
    if table.get("algorithm") != AUTO:
        return dict(table)
    advice = recommend(table, wishes)
    if say is not None:
        say(f"note: algorithm {advice.written}: {advice.reason}")
    settings = {**advice.settings, **(table.get("settings") or {})}
    return {**table, "algorithm": advice.algorithm, **({"settings": settings} if settings else {})}


def _guarded(table: Mapping[str, Any]) -> bool:
    faults = table.get("faults")
    lies = isinstance(faults, Mapping) and faults.get("byzantine")
    return bool(table.get("robust") or lies)


_KIN = Advice(
    "kin",
    "it finds by itself whom to learn from; over three seeds it is at most 0.1 points below Local in fifteen "
    f"columns and above it in fourteen, and within 0.6 of the Oracle, which is told the clusters; {_TABLE}",
)
_ALONE = Advice("local", "one peer has nobody to learn from")
_ONE_MODEL = Advice(
    "d-psgd", "kin gives every peer a model of its own; d-psgd seeks one for all, without a hub"
)
_ONE_MODEL_THROUGH_A_HUB = Advice(
    "fedavg", "kin gives every peer a model of its own; fedavg seeks one for all, through the hub of the star"
)
_THROUGH_A_HUB = Advice(
    "fedper",
    "kin needs links between peers, and a star has a hub; of fedper, fedrep and ditto, fedper comes out best "
    f"in twelve columns of fifteen, three seeds; {_TABLE}",
)
_FREE_RUNNING = Advice(
    "pdfl",
    "kin's peers keep step unless it seals nothing, and what it is worth without is not measured; of those "
    "that need not and send to a few only, pdfl gains most over Local, 2.1 points on average over fifteen "
    f"columns, in step and with three seeds, and loses most with two classes, 1.1; {_TABLE}",
)
_SEALED = Advice(
    "kin",
    "with everything sealed kin is level with Local on turned digits and 2 points above it on turned "
    f"Fashion-MNIST, where it gains 6 otherwise; {_TABLE}",
    {"private": "always"},
)
_GUARDED = Advice(
    "kin",
    "a guard against members who lie judges single models, so nothing is sealed; what such a guard is worth "
    "with kin is not measured",
    {"private": "never"},
)
