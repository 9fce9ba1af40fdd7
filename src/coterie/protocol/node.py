"""What an algorithm may know and do: the nodes that this process hosts, as rows.

All N nodes in the simulator, a block of them on a cluster worker, one in a peer. Drivers provide it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor

from coterie.inputs import Inputs
from coterie.metric import Metric
from coterie.protocol.trees import Params, mean_per_row
from coterie.randomness import Stream
from coterie.topology import Graph


@dataclass(frozen=True)
class Samples:
    """Which samples the mini-batches of some rows are made of."""

    y: Tensor  # (rows, batch), and more axes where a sample has several targets
    rows: Tensor  # (rows,) which rows of the node these are, to look up per-row values
    index: Tensor  # (rows, batch) position of each sample in its row's training data
    present: Tensor | None  # (rows, batch[, positions]) 1 for targets, 0 for padding; None: no padding

    def mean(self, values: Tensor) -> Tensor:
        """(rows,) mean of a value per sample, without the padding."""
        return mean_per_row(values, self.present)


@dataclass(frozen=True)
class Batch(Samples):
    """One mini-batch of each of some rows."""

    x: Inputs  # (rows, batch, ...)
    noise: Tensor | None = None  # (rows,) seeds of a model's own randomness, such as Dropout, in this step
    prepared: Params = field(default_factory=dict)  # (rows, batch, ...) what `prepare` found
    features: Tensor | None = None  # (rows, batch[, positions], width) for a loss that asks: `OnFeatures`


Purpose: TypeAlias = Literal["round", "gradient", "measurement"]
"""What a call of `train` serves.

round: the round's own training, whose loss is recorded.
gradient: a gradient that the round needs beside it, such as one for the hub.
measurement: a copy that is measured and dropped; as everyone is measured, rows that are offline train, too.
"""

Loss = Callable[[Tensor, Batch], Tensor]
"""outputs (rows, batch, outputs) and the batch -> one value per row, (rows,)."""


@dataclass(frozen=True)
class OnFeatures:
    """A loss that sees the features, too: what the last linear layer is given, with its history.

    of: outputs, features (rows, batch[, positions], width) and the batch -> one value per row, (rows,).
    """

    of: Callable[[Tensor, Tensor, Batch], Tensor]

    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.features is not None  # whoever takes gradients puts them there
        return self.of(outputs, batch.features, batch)


Prepare = Callable[[Samples], Params]
"""What a loss needs to know of samples besides the model's outputs, such as weights or a teacher's outputs:
tensors (rows, batch, ...). Called for the batches of many local steps at once, as if each step had rows of
its own, since many small operations in every step cost as much as training a small model."""


@dataclass(frozen=True)
class Scores:
    """How well each row's model does on some data; NaN for rows without data."""

    metrics: dict[str, Tensor]  # (rows,) by the names of the task's metrics
    loss: Tensor  # (rows,) mean loss of a sample


class Task(Protocol):
    """What learning means: what outputs say, what is lost when they are wrong, and how they are scored.

    Outputs of models are (rows, batch, outputs), and (rows, batch, positions, outputs) where there is a
    target at each position.
    """

    @property
    def name(self) -> str: ...

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """At least one; the first is the main one."""

    @property
    def labels_are_classes(self) -> bool:
        """Whether y is one class per sample, so that classes may be weighed."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(rows, batch[, positions]) loss of each sample, or of each of its positions."""

    def softened(self, outputs: Tensor, temperature: float = 1.0) -> Tensor:
        """What a model says at a temperature, as `divergence` takes it."""

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        """(rows, batch[, positions]) how far a student is from its teacher; both as `softened` gives them.

        Without the customary factor temperature^2, which the caller applies where its paper does.
        """

    def linear(self, softened: Tensor) -> Tensor:
        """In the form in which what several models say is averaged: probabilities, or numbers."""

    def from_linear(self, averaged: Tensor) -> Tensor:
        """As `softened` would give it."""

    def answers(self, outputs: Tensor) -> Tensor:
        """(rows, batch[, positions], numbers) what two models are compared by, with squared distances."""

    def reward(self, scores: Scores) -> Tensor:
        """(rows,) from 0 to 1, the higher the better."""

    def guidance(self, y: Tensor, own: Tensor, teacher: Tensor, taught: Tensor) -> Params:
        """What `guided` needs to know of samples, to be given to a loss as `batch.prepared`.

        own, taught: weights of the targets and of the teacher, which is as `softened` gives it.
        """

    def guided(self, outputs: Tensor, batch: Batch, temperature: float) -> Tensor:
        """(rows, batch[, positions]) own * loss + taught * divergence from the teacher, at a temperature."""


class Node(Protocol):
    """The nodes of this process. Nothing here reveals another node's data or state."""

    @property
    def ids(self) -> Tensor:
        """(rows,) The numbers of these nodes among all nodes."""

    @property
    def rows(self) -> int:
        """How many nodes this process hosts: the length of the first axis of every tensor."""

    @property
    def round(self) -> int:
        """The number of this round, from 0; -1 before the first."""

    @property
    def smallest_group(self) -> int:
        """Fewest members of a sealed sum: a smaller one is not opened."""

    @property
    def rounds(self) -> int:
        """How many rounds the experiment has."""

    @property
    def graph(self) -> Graph:
        """This round's links, known to all since they follow from the seed and the round."""

    @property
    def online(self) -> Tensor:
        """(rows,) bool: who takes part in this round; others keep their state."""

    @property
    def evaluating(self) -> bool:
        """Whether this round's models are measured."""

    @property
    def hub(self) -> int | None:
        """The number of the hub, which has no data; None if there is none."""

    @property
    def clusters(self) -> Tensor | None:
        """(peers,) The true cluster of every peer, if there are any: for the Oracle only."""

    @property
    def head(self) -> tuple[str, ...]:
        """Names of the last linear layer, or of what the experiment's `shared` leaves out."""

    @property
    def body(self) -> tuple[str, ...]:
        """All other names of a model; what is frozen is in neither."""

    @property
    def at_home(self) -> tuple[str, ...]:
        """What `shared` leaves out, and no message holds; empty if it is not set."""

    @property
    def last_layer(self) -> tuple[str, ...]:
        """Names of the last linear layer, whatever `shared` says; empty if there is none, or it is frozen."""

    @property
    def features(self) -> str:
        """What to give `predict` for a layer's name to see what the last linear layer is given."""

    @property
    def loss(self) -> Loss:
        """The experiment's own: that of the task, with its class weights and label smoothing."""

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of what no gradient changes: BatchNorm's running statistics."""

    @property
    def task(self) -> Task:
        """What outputs mean, and how they are scored."""

    @property
    def n_samples(self) -> Tensor:
        """(rows,) How many training samples each has."""

    @property
    def is_hub(self) -> Tensor:
        """(rows,) bool: which row is the hub."""

    @property
    def epochs(self) -> Tensor:
        """(rows,) local epochs of a round as `training` says; a fraction where it counts steps."""

    def initial(self) -> Params:
        """The initial model of each row: the same on all nodes unless the experiment says otherwise."""

    def train(
        self,
        params: Params,
        *,
        loss: Loss | None = None,
        prepare: Prepare | None = None,
        only: tuple[str, ...] | None = None,
        active: Tensor | None = None,
        purpose: Purpose = "round",
        share: float | Tensor = 1.0,
        **settings: Any,
    ) -> Params:
        """Local training of each row on its own data; returns new parameters.

        params: what it holds beside the model, rows in front as everywhere, is for an update rule of the
        algorithm's own, which may change it, too.
        loss: default is `self.loss`; one made by `OnFeatures` sees the features as well. prepare: what the
        loss finds in `batch.prepared`. only: names to change. active: (rows,) bool, who trains. purpose: what
        it serves; rows that are offline train for a measurement only.
        share: where all methods get equal local work (`training.work`), how much of the round's work is done
        after this call, all by default; the call's own epochs and steps do not count then. A method that
        trains in two phases says how much the first takes; a client that is sampled in every other round
        takes 2. Elsewhere it changes nothing.
        settings: override the experiment's `training` section for this call (steps, momentum, ...);
        `epochs` may be a (rows,) tensor. Also: `update`, a function of these settings that makes another
        update rule; `around`, a function that wraps the experiment's own rule in another;
        `proximal=(mu, anchor)`, a pull towards a model;
        `stream`, the name of the batches' random stream when a round trains twice; `memory`, whose optimiser
        goes on where its state is kept over rounds, that of the stream by default; `batches_per_step`, how
        many mini-batches the update rule needs for what counts as one step.
        """

    def names(self, layer: str | None = None, of: Params | None = None) -> tuple[str, ...]:
        """Names of a whole model, or of what the outputs of a layer depend on.

        of: a received model, which may have another architecture than the node's own.
        """

    def predict(
        self, params: Params, split: str = "train", rows: Tensor | None = None, layer: str | None = None
    ) -> Tensor:
        """(rows, n, outputs) on each row's own samples in evaluation mode, padded with zeros.

        rows: which rows' data to use when `params` is not stacked over all rows in order. layer: name of a
        submodule, whose outputs (rows, n, features) to return instead, (rows, n, positions, features) where
        it returns some for every position that may have a target. `params` may be a received model of another
        architecture that the experiment has.
        """

    def counted(self, rows: Tensor | None = None) -> Tensor:
        """(rows, n[, positions]) 1 where `predict` answers a target of the training data, 0 for padding.

        rows: which rows' data, as for `predict`.
        """

    def evaluate(self, params: Params, split: str = "test", rows: Tensor | None = None) -> Scores:
        """The task's metrics and the loss of each row's model on its own data.

        split: also "common", the test set for all where there is one (else NaN), for diagnostics only.
        """

    def rng(self, purpose: str) -> Stream:
        """Each row's own random numbers of this round for this purpose."""

    def shared_rng(self, purpose: str) -> Stream:
        """One row of random numbers that all nodes have in common in this round."""

    def measure(self, *, after_local: Params | None = None, after_mixing: Params | None = None) -> None:
        """Show the personal models at a point of the round; they are evaluated if this round asks for it.

        A point that a round does not show is measured on `personal(state)` at the round's end.
        """

    def record(self, **values: Tensor) -> None:
        """Write diagnostics, one value (or vector) per row, into the run's records.

        `mass` is push-sum's: the simulator then checks that the state's `mass` and `mass_in_flight` together
        are the number of nodes.
        """
