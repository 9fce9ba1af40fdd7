"""The contract of an algorithm: a round is a generator over rows.

An algorithm is a frozen dataclass of hyper-parameters. Its `round` yields Exchanges, is sent an Inbox
for each, and returns the new state. It does no I/O, changes nothing in place, and knows only what a
node may know, so that one definition runs in the simulator, on a cluster and between real peers.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_type_hints

from torch import Tensor

from coterie.errors import ConfigError
from coterie.protocol.exchange import Exchange
from coterie.protocol.inbox import Inbox
from coterie.protocol.node import Node, Task
from coterie.protocol.trees import Params

StateT = TypeVar("StateT")
Round: TypeAlias = Generator[Exchange, Inbox, StateT]
Point: TypeAlias = Literal["after_local", "after_mixing"]
Presets: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Facts:
    """What a user should know about an algorithm before choosing it."""

    paper: str
    measured: Point  # the point of the round at which its paper evaluates
    communication: str  # per round
    personal: bool = True  # each node keeps a model of its own; False: all seek one model
    hub: bool = False  # needs the topology `star`
    directed: bool = False  # made for directed links
    sealed: bool = False  # uses only sums of others' models
    symmetric_only: bool = False  # needs links that go both ways
    clusters: bool = False  # needs to be told the true clusters
    free_running: bool = False  # may run between real peers that do not keep step: newest models will do
    architectures: bool = False  # peers may have different architectures
    own_work: tuple[str, ...] = ()  # hyper-parameters that say how long it trains, unless all train equally
    partial: bool = False  # a head stays at home: the last linear layer, or what `shared` leaves out
    restarts: str = ""  # why its optimiser must start afresh in every round: the state is not to be kept
    keeps_best: bool = False  # with validation data, what counts is the best model so far by their loss
    validation: bool = False  # needs validation data: an experiment sets some aside unless it says otherwise
    per_sample: tuple[
        str, ...
    ] = ()  # fields of its state that begin anew when a real peer gets other samples


@dataclass(frozen=True)
class Algorithm(Generic[StateT]):
    """Base of all algorithms. Subclasses are frozen dataclasses whose fields are the hyper-parameters."""

    facts: ClassVar[Facts]
    presets: ClassVar[Presets] = {}
    """Named settings such as a paper's values; keys are fields or `training.<setting>`."""

    def init(self, node: Node) -> StateT:
        """The state before the first round: a dataclass of tensors with a leading axis of rows."""
        raise NotImplementedError

    def round(self, state: StateT, node: Node) -> Round[StateT]:
        """One round, as a generator."""
        raise NotImplementedError

    def personal(self, state: StateT) -> Params:
        """The model that each node would use, which is evaluated on the node's own test data."""
        raise NotImplementedError

    def collaboration(self, state: StateT) -> Tensor | None:
        """(rows, peers) how much each node learned to trust every other; None: it learns no such thing."""
        return None

    def seen_in_clear(self, state: StateT) -> Tensor | None:
        """(rows,) how many models of single others each node has seen; None: it does not count them."""
        return None

    def mass(self, state: StateT) -> Tensor | None:
        """(rows,) what all nodes together keep, such as push-sum's mass: one each at first.

        Only a simulator sees all nodes, and checks the total after every round. None: there is no such thing.
        """
        return None

    def needs_both_ways(self) -> bool:
        """Whether, as it is set, its links must go both ways."""
        return self.facts.symmetric_only

    def needs_step(self) -> bool:
        """Whether, as it is set, real peers must keep step."""
        return not self.facts.free_running

    def sealed_group(self) -> int | None:
        """Over how many others its sealed sums are at most, as it is set; None: over all neighbours."""
        return None

    def takes_architectures(self) -> bool:
        """Whether, as it is set, peers may have different architectures."""
        return self.facts.architectures

    def compared_layer(self) -> str | None:
        """The layer of the network whose outputs nodes compare; None: they compare no hidden layer."""
        return None

    def check_task(self, task: Task) -> None:
        """Raise ConfigError if, as it is set, it makes no sense for this task."""

    def settings(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclass(frozen=True)
class ModelState:
    """The state of algorithms that keep one model per node."""

    params: Params


@dataclass(frozen=True)
class ModelAlgorithm(Algorithm[ModelState]):
    """An algorithm whose whole state is one model per node."""

    def init(self, node: Node) -> ModelState:
        return ModelState(node.initial())

    def personal(self, state: ModelState) -> Params:
        return state.params


def require_algorithm(found: Any, shown: str) -> None:
    """Refuse what a user's file defines if it cannot be an algorithm; the error says what to write."""
    problem = _broken_rule(found)
    if problem:
        raise ConfigError(f"{shown} {problem}")


def _broken_rule(cls: Any) -> str:
    """The first rule of the contract that a class breaks, with what to do; empty if it keeps them all."""
    if not inspect.isclass(cls):
        return "is a function, and an algorithm is a class: class Mine(coterie.ModelAlgorithm)"
    if not issubclass(cls, Algorithm):
        return "is no algorithm: let it inherit from coterie.ModelAlgorithm, or from coterie.Algorithm"
    if "__dataclass_fields__" not in vars(cls):
        return "is not a dataclass itself: write @dataclasses.dataclass(frozen=True) above it"
    if not isinstance(getattr(cls, "facts", None), Facts):
        example = 'coterie.Facts(paper="ours", measured="after_mixing", communication="one model per link")'
        return f"has no facts: add the line facts = {example}"
    missing = [
        name for name in ("init", "round", "personal") if getattr(cls, name) is getattr(Algorithm, name)
    ]
    if missing:
        return (
            f"does not define {' and '.join(missing)}; coterie.ModelAlgorithm has init and personal already"
        )
    if not inspect.isgeneratorfunction(cls.round):
        return (
            "has a round that never yields: write inbox = yield coterie.Exchange(mine); a round that sends "
            "nothing has a bare yield after its return, and one that hands on ends with "
            "return (yield from super().round(state, node))"
        )
    try:
        get_type_hints(cls)
    except (NameError, AttributeError, TypeError) as error:
        return f"has annotations that cannot be read: {error}"
    return ""
