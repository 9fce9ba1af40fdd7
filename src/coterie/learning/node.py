"""The nodes that a process hosts: implements `coterie.protocol.Node` on real data.

A node also knows how much each row has trained in a round, and how much it may where all methods get equal
local work. Work is counted in mini-batches. One on which a method takes several gradients, as DFedSAM and
pFedMe do, counts once: the samples seen are what is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.data import Federation, Split
from coterie.data.targets import PADDING
from coterie.errors import ContractError, DivergedError
from coterie.learning.executor import Executor, Visit
from coterie.learning.local_steps import LocalWork, local_steps
from coterie.learning.tasks import CLASSIFICATION, MeanMetric, Task, WholeMetric, loss_of
from coterie.learning.updates import Memory, empty_memory
from coterie.models import FEATURES, Parts, head_names, model_tree
from coterie.protocol.ledger import BOUND, Bound, Ledger
from coterie.protocol.node import Loss, Prepare, Purpose, Scores
from coterie.protocol.trees import Params, where_rows
from coterie.randomness import Stream, shared_stream, stream
from coterie.topology import Graph
from coterie.training import Training

_BEST = "best model"  # among what a node remembers; no optimiser is called so
_LEDGER = "sealed sums"  # likewise
LISTED = f"{_LEDGER}/ledger/"  # what begins so has no line for each row, but names the nodes
_STEPS = 2.0**36  # to one, of scores that are added up
_SHOWN = 5  # peers that an error names


@dataclass(frozen=True)
class BestModels:
    """Each row's model with the best score so far; the latest for rows without a score."""

    params: Params
    worth: Tensor  # (rows,) the higher the better; NaN without a score

    def or_better(self, other: BestModels) -> BestModels:
        better = other.worth.isnan() | (other.worth > self.worth)
        worth = torch.where(better, other.worth, self.worth)
        return BestModels(where_rows(better, other.params, self.params), worth)

    def tensors(self) -> dict[str, Tensor]:
        params = {f"{_BEST}/params/{name}": value for name, value in self.params.items()}
        return {**params, f"{_BEST}/worth/rows": self.worth}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], device: torch.device) -> BestModels | None:
        """What `tensors` gave before, if that is among these."""
        prefix = f"{_BEST}/params/"
        params = {n.removeprefix(prefix): v.to(device) for n, v in tensors.items() if n.startswith(prefix)}
        return cls(params, tensors[f"{_BEST}/worth/rows"].cpu()) if params else None


@dataclass
class LearningNode:
    """Rows of nodes with their data, their model and an executor.

    federation: data of exactly these rows, in the order of `ids`; a hub's row has no samples.
    """

    ids: Tensor
    federation: Federation
    module: nn.Module
    executor: Executor
    training: Training
    seed: int
    rounds: int
    hub: int | None = None
    clusters: Tensor | None = None
    own_module: Callable[[int], nn.Module] | None = None  # node id -> its own initial model
    other_executors: Sequence[Executor] = ()  # of the architectures that other nodes have
    shared: str = ""  # patterns of what travels; empty: whatever the algorithm sends
    task: Task = CLASSIFICATION
    bound: Bound = BOUND

    round: int = -1
    evaluating: bool = False
    graph: Graph = field(default_factory=lambda: Graph.from_links(0, torch.empty(0), torch.empty(0)))
    online: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    shown: dict[str, Params] = field(default_factory=dict)
    recorded: dict[str, Tensor] = field(default_factory=dict)
    train_loss: Tensor = field(default_factory=lambda: torch.empty(0))
    memory: dict[str, Memory] = field(default_factory=dict)  # of each optimiser, where it is kept over rounds
    best: BestModels | None = None  # where each row's best model is kept

    def __post_init__(self) -> None:
        self.loss = loss_of(self.task, self.training, self.federation)
        parts, parameters = Parts.of(self.module, self.shared), dict(self.module.named_parameters())
        self.body, self.head, self.at_home = parts.body, parts.head, parts.at_home
        self.last_layer, self.features = head_names(self.module), FEATURES
        self.buffers = tuple(name for name in (*self.body, *self.head) if name not in parameters)
        self.work = WorkDone.none(self.rows)
        self.ledger = Ledger(self.bound)

    def begin(self, round: int, graph: Graph, online: Tensor, *, evaluating: bool = False) -> None:
        """Start a round; `online` is over these rows. Round -1 is the time before the first round."""
        if (self.round, round) != (-1, 0):  # training before the first round is work of the first
            self.work = WorkDone.none(self.rows)
        self.round, self.graph, self.online, self.evaluating = round, graph, online, evaluating
        self.shown, self.recorded = {}, {}
        self.train_loss = torch.full((self.rows,), float("nan"))

    def renew(self, federation: Federation) -> None:
        """Go on with other samples of the same kind."""
        self.federation = federation
        self.loss = loss_of(self.task, self.training, federation)  # which may weigh classes by their numbers

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def smallest_group(self) -> int:
        return self.bound.smallest

    @property
    def n_samples(self) -> Tensor:
        return self.federation.train.sizes

    @property
    def is_hub(self) -> Tensor:
        return torch.zeros(self.rows, dtype=torch.bool) if self.hub is None else self.ids == self.hub

    @property
    def epochs(self) -> Tensor:
        per_epoch = -(-self.n_samples // self.training.batch_size)
        return self._budget().double() / per_epoch.clamp(min=1)

    def withheld(self, local_buffers: bool) -> frozenset[str]:
        """Names that never leave a node; local_buffers: nor do running statistics."""
        return frozenset(self.at_home + (self.buffers if local_buffers else ()))

    def initial(self) -> Params:
        if self.own_module is None:
            return {
                name: value.expand(self.rows, *value.shape[1:]).clone().to(self.federation.device)
                for name, value in model_tree(self.module).items()
            }
        trees = [model_tree(self.own_module(int(node))) for node in self.ids]
        return {
            name: torch.cat([tree[name] for tree in trees]).to(self.federation.device) for name in trees[0]
        }

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
        work = self._work(settings, share, purpose)
        names = self.executor.trainable
        if only is not None:
            names = tuple(name for name in names if name in only)
        taking_part = torch.ones_like(self.online) if purpose == "measurement" else self.online
        if active is not None:
            taking_part = taking_part & active
        chosen = taking_part.nonzero().flatten()
        if not names or not len(chosen):
            return params
        result, losses = self.executor.train(
            params,
            self.federation,
            chosen,
            self.rng(work.stream),
            work,
            loss or self.loss,
            names,
            prepare,
            self._kept(work, params, names) if purpose == "round" else None,
        )
        self._check_finite(losses)
        self._count(work, chosen, purpose)
        if purpose == "round":
            self.train_loss = torch.where(losses.isnan(), self.train_loss, losses)
        return result

    def names(self, layer: str | None = None, of: Params | None = None) -> tuple[str, ...]:
        executor = self._executor_of(of, layer) if of is not None else self.executor
        return self._needs(executor, layer)

    def predict(
        self, params: Params, split: str = "train", rows: Tensor | None = None, layer: str | None = None
    ) -> Tensor:
        part, rows, executor = self._split(split), self._all_rows(rows), self._executor_of(params, layer)
        width = int(part.sizes[rows].max()) if len(rows) else 0
        shape = self.task.output_shape(self.federation)
        if layer is not None:
            positions = shape[0] if len(shape) > 1 else 0
            shape = executor.layer(layer, self.federation.x).by_position(positions)
        result = next(iter(params.values())).new_zeros(len(rows), width, *shape)

        def see(visit: Visit) -> None:
            outputs = visit.outputs if layer is None else visit.outputs.unflatten(-1, shape)
            if len(shape) > 1:  # positions without a target say nothing
                outputs = outputs.masked_fill((visit.y == PADDING)[..., None], 0.0)
            result[visit.rows, visit.columns] = outputs

        executor.visit(params, self.federation, part, rows, see, layer)
        return result

    def counted(self, rows: Tensor | None = None) -> Tensor:
        rows = self._all_rows(rows)
        sizes, held = self.federation.train.sizes_of(rows), self.federation.held(self.federation.train, rows)
        present = torch.arange(int(sizes.max()) if len(rows) else 0) < sizes[:, None]
        found = held.targets(held.places_of(present))
        targets = found.new_zeros(*present.shape, *found.shape[1:])
        targets[present.to(found.device)] = found
        return self.task.counted(targets, present.float())

    def evaluate(self, params: Params, split: str = "test", rows: Tensor | None = None) -> Scores:
        if split == "common":
            unknown = torch.full((len(next(iter(params.values()))),), float("nan"))
            return self.evaluate_common(params) or Scores(
                {metric.name: unknown for metric in self.task.metrics}, unknown
            )
        part, rows, executor = self._split(split), self._all_rows(rows), self._executor_of(params)
        return self._score(len(rows), lambda see: executor.visit(params, self.federation, part, rows, see))

    def evaluate_common(self, params: Params) -> Scores | None:
        """Each row's model on the common test set, where there is one."""
        index = self.federation.common_test
        if index is None:
            return None
        rows = len(next(iter(params.values())))
        return self._score(rows, lambda see: self.executor.visit_common(params, self.federation, index, see))

    def rng(self, purpose: str) -> Stream:
        return stream(self.seed, purpose, self.round, self.ids)

    def shared_rng(self, purpose: str) -> Stream:
        return shared_stream(self.seed, purpose, self.round)

    def measure(self, *, after_local: Params | None = None, after_mixing: Params | None = None) -> None:
        for point, params in (("after_local", after_local), ("after_mixing", after_mixing)):
            if params is not None:
                self.shown[point] = params

    def record(self, **values: Tensor) -> None:
        for name, value in values.items():
            if len(value) != self.rows:
                raise ContractError(
                    f"record({name}=...) needs one entry per row ({self.rows}), not {len(value)}"
                )
            self.recorded[name] = value.detach()

    def _split(self, name: str) -> Split:
        if name not in ("train", "validation", "test"):
            raise ContractError(f"there is no split {name!r}; use train, validation or test")
        split: Split = getattr(self.federation, name)
        return split

    def _needs(self, executor: Executor, layer: str | None) -> tuple[str, ...]:
        if layer is None:
            return tuple(executor.shapes)
        return executor.layer(layer, self.federation.x).needs

    def _executor_of(self, params: Params, layer: str | None = None) -> Executor:
        """The executor of the architecture that these parameters belong to, known by names and shapes.

        Among those that they fit, the one that lacks least: a model may be sent only up to the layer, and
        statistics that stay at home are missing everywhere.
        """
        if not self.other_executors:
            return self.executor

        def missing(executor: Executor) -> tuple[int, int]:
            needed = (self._needs(executor, layer), executor.shapes)
            return sum(n not in params for n in needed[0]), sum(n not in params for n in needed[1])

        shapes = {name: value.shape[1:] for name, value in params.items()}
        fitting = [e for e in (self.executor, *self.other_executors) if shapes.items() <= e.shapes.items()]
        if not fitting:
            raise ContractError("a model that arrived has the layers of no architecture in this experiment")
        return min(fitting, key=missing)

    def _budget(self) -> Tensor:
        """(rows,) mini-batches of a round as `training` says, which are those of Local."""
        plain = LocalWork.resolve(self.training, self.round, {}, self.ids)
        return local_steps(self.n_samples, plain)

    def _work(self, settings: dict[str, Any], share: float | Tensor, purpose: Purpose) -> LocalWork:
        """As the call wants it or, with equal work, what is left of its share of the round's budget.

        It then goes on in the epoch where the calls before it stopped, so that all of them together see as
        many samples as Local does, whose last batch of an epoch may be smaller.
        """
        if purpose != "round" or self.training.work == "own":
            return LocalWork.resolve(self.training, self.round, settings, self.ids, self.rounds)
        own = {name: value for name, value in settings.items() if name not in ("epochs", "steps")}
        work = LocalWork.resolve(self.training, self.round, own, self.ids, self.rounds)
        budget, round, per_step = self._budget(), max(self.round, 0), work.batches_per_step
        wanted = due(budget, share, round, per_step)
        before = (until(budget, 1.0, round, per_step) + self.work.trained) % budget.clamp(min=1)
        taken = before % epoch_batches(self.n_samples, work.training.batch_size)
        return replace(work, batches=(wanted - self.work.trained).clamp(min=0), taken=taken)

    def _kept(self, work: LocalWork, params: Params, names: tuple[str, ...]) -> Memory | None:
        """What the optimiser of this call remembers from round to round; None: it starts afresh."""
        if self.training.optimizer_state == "reset":
            return None
        kept = self.memory.setdefault(work.memory, {})
        trained = {name: params[name] for name in names}
        for key, tree in empty_memory(work.update, trained, self.rows).items():
            kept[key] = {**tree, **kept.get(key, {})}
        return kept

    def remembered(self) -> dict[str, Tensor]:
        """All that the node keeps for the next round beside an algorithm's state, by place."""
        kept = {
            f"{whose}/{key}/{name}": value
            for whose, memory in self.memory.items()
            for key, tree in memory.items()
            for name, value in tree.items()
        }
        sums = {f"{LISTED}{name}": value for name, value in self.ledger.tensors().items()}
        return kept | ({} if self.best is None else self.best.tensors()) | sums

    def recall(self, remembered: Mapping[str, Tensor]) -> None:
        """Go on with what `remembered` gave before."""
        self.memory, self.best = {}, BestModels.of(remembered, self.federation.device)
        sums = {n.removeprefix(LISTED): v for n, v in remembered.items() if n.startswith(LISTED)}
        self.ledger.recall(sums, self.ids.tolist())
        for place, value in remembered.items():
            whose, key, name = place.split("/", 2)
            if whose in (_BEST, _LEDGER):
                continue
            memory = self.memory.setdefault(whose, {})
            memory.setdefault(key, {})[name] = value.to(self.federation.device)

    def keep_best(self, params: Params, validation: Scores) -> None:
        """Remember each row's model, if it scores better on the row's validation data than those before."""
        main = self.task.metrics[0]
        scores = validation.metrics[main.name]
        now = BestModels(params, scores if main.higher_is_better else -scores)
        self.best = now if self.best is None else self.best.or_better(now)

    def best_or(self, latest: Params) -> Params:
        """Each row's best model, where it is kept; else the latest."""
        return latest if self.best is None else self.best.params

    def _count(self, work: LocalWork, rows: Tensor, purpose: Purpose) -> None:
        """What is only measured and then dropped is nobody's training."""
        if purpose == "measurement":
            return
        steps, n_samples = torch.zeros_like(self.n_samples), self.n_samples
        steps[rows] = local_steps(n_samples, work)[rows]
        taken = torch.zeros_like(steps) if work.taken is None else work.taken
        size = work.training.batch_size
        seen = samples_in(taken + steps, n_samples, size) - samples_in(taken, n_samples, size)
        self.work = self.work.and_then(steps, seen, purpose == "round")

    def _all_rows(self, rows: Tensor | None) -> Tensor:
        return torch.arange(self.rows) if rows is None else rows

    def _score(self, rows: int, visit_all: Callable[[Callable[[Visit], None]], None]) -> Scores:
        task = self.task
        means = [metric for metric in task.metrics if isinstance(metric, MeanMetric)]
        totals = {metric.name: torch.zeros(rows, dtype=torch.double) for metric in means}
        loss, count = torch.zeros(rows, dtype=torch.double), torch.zeros(rows, dtype=torch.double)
        kept: list[Visit] | None = [] if len(means) < len(task.metrics) else None

        def see(visit: Visit) -> None:
            counted = task.counted(visit.y, visit.present)
            for metric in means:
                values = metric.of_samples(task, visit.outputs, visit.y).cpu() * counted
                totals[metric.name][visit.rows] += _added_up(values)
            losses = task.losses(visit.outputs, visit.y).cpu() * counted
            loss[visit.rows] += _added_up(losses)
            count[visit.rows] += _added_up(counted)
            if kept is not None:
                kept.append(visit)

        visit_all(see)
        found = {name: (total / count).float() for name, total in totals.items()}  # NaN: no data
        for metric in means:
            if metric.finish is not None:
                found[metric.name] = metric.finish(found[metric.name])
        if kept is not None:
            found |= self._seen_whole(kept, rows)
        return Scores({metric.name: found[metric.name] for metric in task.metrics}, (loss / count).float())

    def _seen_whole(self, visits: list[Visit], rows: int) -> dict[str, Tensor]:
        """Metrics that need all of a row's answers at once."""
        metrics = [metric for metric in self.task.metrics if isinstance(metric, WholeMetric)]
        found = {metric.name: torch.full((rows,), float("nan")) for metric in metrics}
        parts: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for visit in sorted(visits, key=lambda visit: visit.columns.start):
            predictions = self.task.predictions(visit.outputs).cpu()
            for place, row in enumerate(visit.rows.tolist()):
                here = visit.present[place] > 0
                parts.setdefault(row, []).append((visit.y[place].cpu()[here], predictions[place][here]))
        for row, pairs in parts.items():
            y, answers = (torch.cat(part).numpy() for part in zip(*pairs, strict=True))
            for metric in metrics:
                found[metric.name][row] = metric.of_all(y, answers)
        return found

    def _check_finite(self, losses: Tensor) -> None:
        bad = losses.isinf()
        if bool(bad.any()):
            raise diverged(self.ids[bad], self.round, self.training)


def diverged(peers: Tensor, round: int, training: Training, loss: str = "loss") -> DivergedError:
    """That the loss of these peers (ids) became NaN or infinite in this round; -1: before the first."""
    shown = ", ".join(map(str, peers[:_SHOWN].tolist())) + (", ..." if len(peers) > _SHOWN else "")
    when = "before the first round" if round < 0 else f"in round {round + 1}"
    return DivergedError(
        f"the {loss} of peer {shown} became NaN or infinite {when}; "
        f"try a smaller training.lr{'' if training.clip else ' or set training.clip'}"
    )


@dataclass(frozen=True)
class WorkDone:
    """Local work of each row in a round; what was done before the first round is work of the first."""

    gradient_steps: Tensor  # (rows,) mini-batches
    samples_seen: Tensor  # (rows,)
    trained: Tensor  # (rows,) those of the mini-batches that were the round's own training

    @classmethod
    def none(cls, rows: int) -> WorkDone:
        return cls(*(torch.zeros(rows, dtype=torch.long) for _ in range(3)))

    def and_then(self, steps: Tensor, seen: Tensor, trained: bool) -> WorkDone:
        """With the mini-batches and samples of one more call; trained: it was the round's own training."""
        return WorkDone(self.gradient_steps + steps, self.samples_seen + seen, self.trained + steps * trained)


def epoch_batches(n_samples: Tensor, batch_size: int) -> Tensor:
    """(rows,) mini-batches of an epoch; 1 where there are no samples."""
    return ((n_samples + batch_size - 1) // batch_size).clamp(min=1)


def samples_in(steps: Tensor, n_samples: Tensor, batch_size: int) -> Tensor:
    """(rows,) samples in so many mini-batches from the start of an epoch, whose last may be smaller."""
    per_epoch = epoch_batches(n_samples, batch_size)
    return steps // per_epoch * n_samples + (steps % per_epoch * batch_size).minimum(n_samples)


def due(budget: Tensor, share: float | Tensor, round: int, per_step: int = 1) -> Tensor:
    """(rows,) mini-batches of this round once `share` of its budget is used up.

    per_step: mini-batches in what counts as one step. What rounding takes from a round it gives to another:
    of a budget of one mini-batch, two phases with half of it take turns.
    """
    return until(budget, share, round + 1, per_step) - until(budget, share, round, per_step)


def until(budget: Tensor, share: float | Tensor, round: int, per_step: int) -> Tensor:
    """(rows,) mini-batches of all rounds before this one."""
    return (budget.double() * share * round / per_step + 0.5).floor().long() * per_step


def _added_up(values: Tensor) -> Tensor:
    """(rows,) sums of a part of each row's samples, the same in any order and beside any padding.

    In steps of 2^-36, of which a double holds whole sums up to 2^17. So a score does not depend on the rows
    that are measured together, which is what blocks of rows differ in.
    """
    return (values.flatten(1).double() * _STEPS).round().sum(1) / _STEPS
