"""The schema of an experiment. Needs no PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from coterie.errors import ConfigError
from coterie.training import Training

OWN_OBJECT = "own"
"""How a config names data, a model or a topology that was passed as a Python object."""
_RANGE = re.compile(r"^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Splitting(Section):
    """How much data each peer gets."""

    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="fraction of each peer's training data set aside; 0.2 for an algorithm that needs it",
    )
    samples_per_peer: int | None = Field(
        default=None, ge=1, description="at most so many training samples for each peer"
    )
    test_samples_per_peer: int | None = Field(default=None, ge=1, description="test samples of each peer")


class EvaluationPlan(Section):
    """When models are measured."""

    every: int | None = Field(
        default=None, ge=1, description="measure every so many rounds; default: about 50 times in a run"
    )
    global_accuracy: Literal["last", "always", "never"] = Field(
        default="last", description="when models are scored on the common test set, by the task's metrics"
    )
    global_samples: int = Field(default=1000, ge=0, description="size of the common, class-balanced test set")


class Execution(Section):
    """How the simulator computes; but for `sealing` and `precision`, none of it changes more than rounding.

    With any sealing but plain, a peer with a single sender, or to which at most half of the messages arrive,
    receives nothing: a secure sum would not open. plain, the default, neither quantises nor refuses groups of
    one. The byte count is that of the payloads in all four: keys, shares and range of a secure sum come on
    top and are not counted.
    """

    executor: Literal["auto", "stacked", "looped"] = Field(
        default="auto",
        description="stacked trains many peers at once, looped one after another; auto tries which is faster",
    )
    engine: str = Field(
        default="local",
        description="local: this process; ray: a Ray that is started for it, or the one that RAY_ADDRESS "
        "names; ray://head:10001: the Ray at that address",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="worker threads, default: all cores; with Ray worker processes, default: as many as fit",
    )
    cpus: float = Field(default=1.0, gt=0, description="CPUs of each Ray worker, and of each cell on Ray")
    gpus: float = Field(
        default=1.0, gt=0, description="GPUs, or what share of one, of the same where `device` is cuda"
    )
    device: str = Field(default="cpu", description="where torch computes, such as cuda or cuda:1")
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the products in training and measuring; parameters and messages stay float32",
    )
    sealing: Literal["plain", "quantised", "masked", "one-time"] = Field(
        default="plain",
        description="sealed exchanges: sums of floats, neither quantised nor bounded by [privacy]; the "
        "integer sums of a secure sum; or the secure sum itself, message by message, with pairwise masks or "
        "with one-time masks as PPDL describes them",
    )
    checkpoint_seconds: float = Field(
        default=30.0, ge=0, description="at most one checkpoint in so many seconds"
    )
    force: bool = Field(default=False, description="run also if the memory that it needs is not free")

    @property
    def on_ray(self) -> bool:
        return self.engine != "local"


class Stopping(Section):
    """Early stopping by each peer's own validation data; test data have no say."""

    patience: int | None = Field(
        default=None,
        ge=1,
        description="end the run when the mean validation score has not improved for so many rounds",
    )
    min_improvement: float = Field(
        default=0.0,
        ge=0,
        description="what counts as an improvement of the mean validation score: more than this",
    )
    keep: Literal["last", "best"] = Field(
        default="last",
        description="the model of each peer that is reported and saved: that of the last round, or the one "
        "with the best score on the peer's own validation data",
    )

    @property
    def validates(self) -> bool:
        return self.patience is not None or self.keep == "best"


class Faults(Section):
    """What goes wrong on purpose."""

    churn: float = Field(default=0.0, ge=0, lt=1, description="probability that a peer sits out a round")
    loss: float = Field(default=0.0, ge=0, lt=1, description="probability that a message is lost")
    joins: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict,
        description='peers that come later, after so many rounds, such as {"5": "8-9"}',
    )
    leaves: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict,
        description='peers that leave after so many rounds, such as {"12": "3"}; push-sum\'s mass is handed '
        "over",
    )
    byzantine: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict,
        description='peers that lie, and how, such as {"sign-flip": "8-9"}; also scaling, gaussian, ipm, '
        "alie, dissensus, mimic, label-flip",
    )


class Privacy(Section):
    """What sealed sums may give away; a simulation whose `execution.sealing` is plain hides nothing."""

    smallest_group: int = Field(default=3, ge=2, le=1000, description="fewest members of a sealed sum")
    opened: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="how much of a single model the sums of one collector may open together; 1: anything",
    )
    rounds: int = Field(default=10, ge=1, le=1000, description="for how many rounds a sum counts")
    alike: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="how much of what is particular to a model stays from round to round; 1: all of it",
    )
    largest: float | None = Field(
        default=None,
        gt=0,
        description="real peers: largest absolute value in a sealed sum, mostly of models times samples; "
        "default: 4,096 times one's own",
    )


class Experiment(Section):
    """Everything that determines a run. The same names work as flags, in TOML and in Python."""

    algorithm: str = Field(default="local", description="a name of `coterie list algorithms`")
    settings: dict[str, Any] = Field(default_factory=dict, description="the algorithm's hyper-parameters")
    preset: str | None = Field(default=None, description="a named set of the algorithm's hyper-parameters")
    task: str = Field(
        default="classification",
        description="what is learned, a name of `coterie list tasks`, or file.py:Task",
    )
    metrics: tuple[str, ...] = Field(
        default=(),
        description="what models are scored by, the main one first, such as auc or file.py:function; empty: "
        "what suits the task",
    )
    data: str = Field(
        default="digits",
        description="a name of `coterie list data`, data files, or file.py:function of (peers, seed)",
    )
    data_dir: str | None = Field(default=None, description="folder of data files; default: COTERIE_DATA")
    model: str = Field(
        default="",
        description="a name of `coterie list models`, file.py:Class, or hf:FOLDER for a pretrained one; "
        "empty: what suits the data",
    )
    adapter: str = Field(
        default="",
        description="few parameters that train beside the model, whose own are frozen, such as "
        "lora(r=8,alpha=16,target=query|value); empty: the model itself trains",
    )
    models: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(
        default_factory=dict,
        description='peers with another model than `model`, such as {"mlp(64)": "10-19"}',
    )
    partition: str = Field(
        default="",
        description="who gets which samples, a name of `coterie list partitions`; empty: what suits the data",
    )
    topology: str = Field(
        default="",
        description="who may send to whom, a name of `coterie list topologies`; empty: full, or star",
    )
    peers: int = Field(
        default=20, ge=1, description="number of peers; between real peers the largest, who may come later"
    )
    names: tuple[str, ...] = Field(
        default=(), description="the peers' names, in the order of their numbers; empty: those of the data"
    )
    rounds: int = Field(default=20, ge=1, description="number of rounds")
    seed: int = Field(default=0, ge=0, description="of everything random")
    init: Literal["same", "independent"] = Field(
        default="same", description="do all peers start from the same weights?"
    )
    classes: int | None = Field(
        default=None, ge=2, description="number of classes, where real peers bring data of their own"
    )
    batchnorm: Literal["average", "local"] = Field(
        default="average", description="running statistics: mix them or keep them"
    )
    shared: str = Field(
        default="",
        description="patterns of the names that travel, such as lora_A|classifier; all else stays with its "
        "peer; empty: whatever the algorithm sends",
    )
    robust: str = Field(
        default="",
        description="a guard against lying peers around the algorithm: clipping, balance, ubar, "
        "trimmed-mean or geometric-median; empty: none",
    )
    payload: Literal["whole", "8-bit"] = Field(
        default="whole",
        description="how parameters travel: as they are, or as bytes with a scale for each row of a matrix; "
        "sealed sums and push-sum's shares are always whole",
    )
    training: Training = Training()
    splitting: Splitting = Splitting()
    evaluation: EvaluationPlan = EvaluationPlan()
    execution: Execution = Execution()
    faults: Faults = Faults()
    privacy: Privacy = Privacy()
    stopping: Stopping = Stopping()

    def executed(self, **how: Any) -> Experiment:
        """The same experiment, carried out in another way."""
        return self.model_copy(update={"execution": self.execution.model_copy(update=how)})

    def evaluates(self, round: int) -> bool:
        """Whether a round is measured: the first, the last, and every so many between."""
        every = self.evaluation.every or max(1, self.rounds // 50)
        return round in (0, self.rounds - 1) or (round + 1) % every == 0

    def evaluates_globally(self, round: int) -> bool:
        plan = self.evaluation.global_accuracy
        return plan == "always" or (plan == "last" and round == self.rounds - 1)

    def to_toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is left out is None."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


def attendance(experiment: Experiment) -> tuple[dict[int, int], dict[int, int]]:
    """The first round of each peer that comes later, and the first one without it of each that leaves."""
    joins, leaves = (
        {
            peer: _rounds_before(text, experiment.rounds, f"faults.{section}")
            for text, peers in dealt_out(table, experiment.peers, f"faults.{section}").items()
            for peer in peers
        }
        for section, table in (("joins", experiment.faults.joins), ("leaves", experiment.faults.leaves))
    )
    for peer in joins.keys() & leaves.keys():
        if leaves[peer] <= joins[peer]:
            raise ConfigError(
                f"faults: peer {peer} leaves after {leaves[peer]} rounds, and comes after {joins[peer]}"
            )
    return joins, leaves


def _rounds_before(text: str, rounds: int, where: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < rounds:
        raise ConfigError(
            f'{where}: {text!r} is not a number of rounds from 1 to {rounds - 1}; write {{"5": "8-9"}} for '
            "peers 8 and 9 after 5 rounds"
        )
    return int(text)


def peers_in(text: str, peers: int, where: str) -> list[int]:
    """The ids in `0-4,7`, both ends included; `where` names the setting in errors."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise ConfigError(f"{where}: {text!r} is not a list of peers such as 0-4,7")
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < peers:
            raise ConfigError(f"{where}: {part.strip()!r} is not within the peers 0 to {peers - 1}")
        found += range(first, last + 1)
    return found


def dealt_out(models: Mapping[str, str], peers: int, section: str = "models") -> dict[str, list[int]]:
    """Which peers have which model, or tell which lie; an error for a peer that has two."""
    owner: dict[int, str] = {}
    for model, text in models.items():
        for peer in peers_in(text, peers, f"{section}.{model}"):
            if owner.setdefault(peer, model) != model:
                raise ConfigError(
                    f"{section}: peer {peer} is listed under {owner[peer]!r} and under {model!r}"
                )
    return {model: [peer for peer, its in sorted(owner.items()) if its == model] for model in models}
