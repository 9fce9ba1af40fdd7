"""Update rules: how one mini-batch changes the parameters of many rows at once.

A rule may ask for the gradient several times within a step; it is always taken at the current values
of `params`. Rules work in place on copies that the executor owns. They are written for tensors
(rows, ...) and serve the looped executor with one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor

from coterie.protocol.trees import Params, per_row, some_rows

Memory: TypeAlias = dict[str, Params]
Rate: TypeAlias = "float | Tensor"
"""A learning rate: one for all rows, or (rows,) where a schedule has taken them to different places."""
KEPT = ("velocity", "first", "second", "steps")
"""What of a rule's memory may last from round to round (`training.optimizer_state`); the rest, such as an
anchor, belongs to one call of `train`."""


@dataclass(frozen=True)
class Pass:
    """A linear layer's pass over a batch: a second one nearby need not compute all of it again.

    Good until weight and bias are changed in place.
    """

    inputs: Tensor  # (rows, batch, in)
    outputs: Tensor  # (rows, batch, out)
    weight: Tensor
    bias: Tensor | None

    @cached_property
    def gram(self) -> Tensor:
        """(rows, batch, batch) inputs inputs^T."""
        return torch.bmm(self.inputs, self.inputs.mT)


@dataclass(frozen=True)
class Outer:
    """A linear layer's weight gradient as a product of its two factors, never multiplied out.

    The update W - lr * delta^T inputs is then one fused matrix product, and the norm comes from two
    small Gram matrices: no tensor of the size of the weights is written.
    """

    delta: Tensor  # (rows, batch, out)
    taken: Pass

    @property
    def inputs(self) -> Tensor:
        return self.taken.inputs

    def dense(self, like: Tensor) -> Tensor:
        """Multiplied out, in the memory order of the weights `like`: sums of both are then far faster."""
        if _is_turned(like):
            return torch.bmm(self.inputs.mT, self.delta).mT
        return torch.bmm(self.delta.mT, self.inputs)

    def squared_norm(self) -> Tensor:
        return (torch.bmm(self.delta, self.delta.mT) * self.taken.gram).sum((1, 2))

    def scaled(self, factors: Tensor) -> Outer:
        return Outer(self.delta * per_row(factors, self.delta), self.taken)


def _is_turned(weight: Tensor) -> bool:
    """Whether columns are contiguous in memory instead of rows."""
    return weight.stride(1) < weight.stride(2)


Gradients: TypeAlias = dict[str, "Tensor | Outer"]


def for_each_row(rate: Rate, like: Tensor) -> Rate:
    """A rate that broadcasts over each row of `like`."""
    return per_row(rate, like).to(like) if isinstance(rate, Tensor) else rate


def add_(target: Tensor, gradient: Tensor | Outer, alpha: Rate, beta: Rate = 1.0) -> None:
    """target <- beta * target + alpha * gradient."""
    if isinstance(alpha, Tensor):
        (gradient,), alpha = scaled({"": gradient}, alpha.to(target)).values(), 1.0
    if isinstance(beta, Tensor):
        target.mul_(for_each_row(beta, target))
        beta = 1.0
    if isinstance(gradient, Outer):
        delta, inputs = gradient.delta, gradient.inputs
        if _is_turned(target):
            target.mT.baddbmm_(inputs.mT, delta, beta=beta, alpha=alpha)
        else:
            target.baddbmm_(delta.mT, inputs, beta=beta, alpha=alpha)
    else:
        if beta != 1.0:
            target.mul_(beta)
        target.add_(gradient, alpha=alpha)


@dataclass(frozen=True)
class Moved:
    """A linear layer's weight and a step away from it, never added up: the layer's output has both terms.

    x (W + delta^T inputs)^T = x W^T + (x inputs^T) delta
    """

    weight: Tensor
    step: Outer

    def known(self, x: Tensor) -> bool:
        """Whether the step was taken at this weight and over these x: both terms are then at hand."""
        return self.weight is self.step.taken.weight and x.is_set_to(self.step.inputs)


def moved(weight: Tensor, step: Tensor | Outer) -> Tensor:
    """weight + step, to take a gradient there. Only for models whose gradients have this form."""
    return cast(Tensor, Moved(weight, step)) if isinstance(step, Outer) else weight + step


def dense(gradient: Tensor | Outer, like: Tensor) -> Tensor:
    return gradient.dense(like) if isinstance(gradient, Outer) else gradient


def scaled(gradients: Gradients, factors: Tensor) -> Gradients:
    """Each row's gradient times that row's factor."""
    return {
        name: g.scaled(factors) if isinstance(g, Outer) else g * per_row(factors, g)
        for name, g in gradients.items()
    }


def mean_gradients(parts: Sequence[Gradients], params: Params) -> Gradients:
    """Each row's mean over the parts that have it. The first has all rows, the others some of the first."""
    rows = [len(g.delta if isinstance(g, Outer) else g) for g in (next(iter(p.values())) for p in parts)]
    share = 1.0 / (torch.tensor(rows) > torch.arange(rows[0])[:, None]).sum(1).double()
    mean: Gradients = {}
    for name, first in parts[0].items():
        p = params[name]
        weights = per_row(share, p).to(p)
        total = dense(first, p) * weights
        for part, some in zip(parts[1:], rows[1:], strict=True):
            total[:some].addcmul_(dense(part[name], p[:some]), weights[:some])
        mean[name] = total
    return mean


def norm(gradients: Gradients) -> Tensor:
    """(rows,) L2 norm over all parameters of each row."""
    squares = [
        g.squared_norm() if isinstance(g, Outer) else g.square().flatten(1).sum(1) for g in gradients.values()
    ]
    return torch.stack(squares).sum(0).clamp(min=0).sqrt()


def clipped(gradients: Gradients, largest: float) -> Gradients:
    """Each row's gradient scaled down to at most that L2 norm."""
    norms = norm(gradients)
    if bool((norms <= largest).all()):
        return gradients
    return scaled(gradients, (largest / (norms + 1e-6)).clamp(max=1.0))


class Update(Protocol):
    """A rule for one step of local training."""

    def begin(self, params: Params, rows: Tensor) -> Memory:
        """What the rule remembers during one call of `train`; `rows` are the node's rows in `params`.

        Trees by name, whose tensors have an axis of rows. Those of the names in `KEPT` may last longer.
        """

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        """Change `params` in place; `number` counts the steps from 0."""


def empty_memory(update: Update, params: Params, rows: int) -> Memory:
    """What a rule keeps of so many rows before their first step."""
    none = torch.arange(0)
    fresh = update.begin({name: value[:0] for name, value in params.items()}, none)
    return {
        key: {name: like.new_zeros(rows, *like.shape[1:]) for name, like in tree.items()}
        for key, tree in fresh.items()
        if key in KEPT
    }


def recall(memory: Memory, kept: Memory, rows: Tensor) -> None:
    """Let the memory of some rows be what was kept of them."""
    for key, name, value in _tensors_of(memory, kept):
        value.copy_(some_rows(kept[key][name], rows))


def remember(memory: Memory, kept: Memory, rows: Tensor) -> None:
    """Keep what these rows remember; others may do so at the same time for other rows."""
    for key, name, value in _tensors_of(memory, kept):
        kept[key][name].index_copy_(0, rows.to(value.device), value)


def _tensors_of(memory: Memory, kept: Memory) -> Iterator[tuple[str, str, Tensor]]:
    for key in kept:
        yield from ((key, name, value) for name, value in memory.get(key, {}).items())


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with heavy-ball or Nesterov momentum, as torch.optim.SGD computes it."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def begin(self, params: Params, rows: Tensor) -> Memory:
        return (
            {"velocity": {name: torch.zeros_like(p) for name, p in params.items()}} if self.momentum else {}
        )

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        for name, g in gradient().items():
            p = params[name]
            if self.momentum:
                velocity = memory["velocity"][name]
                add_(velocity, g, 1.0, beta=self.momentum)
                velocity.add_(p, alpha=self.weight_decay)
            if self.nesterov or not self.momentum:
                add_(p, g, -lr, beta=1.0 - lr * self.weight_decay)
            if self.momentum:
                add_(p, velocity, -lr * self.momentum if self.nesterov else -lr)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba) as torch.optim.Adam computes it, with weight decay added to the gradient.

    decoupled: weights decay by themselves, beside the step: AdamW (Loshchilov & Hutter).
    counting: its memory is kept, and with it how many steps each row took before this call.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    counting: bool = False

    def begin(self, params: Params, rows: Tensor) -> Memory:
        moments = ("first", "second")
        memory = {key: {name: torch.zeros_like(p) for name, p in params.items()} for key in moments}
        if self.counting:
            device = next(iter(params.values())).device
            memory["steps"] = {"taken": torch.zeros(len(rows), dtype=torch.float64, device=device)}
        return memory

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        step: Rate = memory["steps"]["taken"].add_(1) if self.counting else number + 1
        correction1, correction2 = 1 - self.beta1**step, 1 - self.beta2**step
        for name, factored in gradient().items():
            p, first, second = params[name], memory["first"][name], memory["second"][name]
            g = dense(factored, p)
            if self.decoupled:
                p.mul_(for_each_row(1 - lr * self.weight_decay, p))
            elif self.weight_decay:
                g = g.add(p, alpha=self.weight_decay)
            first.lerp_(g, 1 - self.beta1)
            second.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            scale = (second / for_each_row(correction2, second)).sqrt_().add_(self.epsilon)
            if isinstance(correction1, Tensor):
                scale *= for_each_row(correction1, scale)
                scale /= for_each_row(lr, scale)
                p.addcdiv_(first, scale, value=-1.0)
            elif isinstance(lr, Tensor):
                scale /= for_each_row(lr, scale)
                p.addcdiv_(first, scale, value=-1 / correction1)
            else:
                p.addcdiv_(first, scale, value=-lr / correction1)


@dataclass(frozen=True)
class Proximal:
    """Adds mu * (w - anchor) to the gradient of another rule: FedProx's pull towards a fixed model."""

    mu: Rate  # one for all rows, or (rows,) over all rows of the node
    anchor: Params  # stacked over all rows of the node
    inner: Update

    def begin(self, params: Params, rows: Tensor) -> Memory:
        anchors = {
            name: torch.empty_like(p).copy_(some_rows(self.anchor[name], rows)) for name, p in params.items()
        }
        mu = {"mu": some_rows(self.mu, rows)} if isinstance(self.mu, Tensor) else {}
        return {**self.inner.begin(params, rows), "anchor": anchors, "pull": mu}

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        strength = memory["pull"].get("mu", self.mu)

        def pulled() -> Gradients:
            found: Gradients = {}
            for name, g in gradient().items():
                away = params[name] - memory["anchor"][name]
                if isinstance(strength, Tensor):
                    found[name] = dense(g, params[name]).addcmul(away, per_row(strength, away).to(away))
                else:
                    found[name] = dense(g, params[name]).add(away, alpha=strength)
            return found

        self.inner.step(params, memory, pulled, lr, number)


@dataclass(frozen=True)
class SharpnessAware:
    """Sharpness-aware minimisation (Foret et al., 2021) around another rule."""

    rho: float
    inner: Update

    def begin(self, params: Params, rows: Tensor) -> Memory:
        return self.inner.begin(params, rows)

    def step(
        self, params: Params, memory: Memory, gradient: Callable[[], Gradients], lr: Rate, number: int
    ) -> None:
        def at_the_worst_point() -> Gradients:
            ascent = gradient()
            length = norm(ascent)
            ascent = scaled(ascent, (self.rho / length).where(length > 0, 0.0))  # nowhere to climb: stay
            here = {name: params[name] for name in ascent}
            params.update({name: moved(here[name], direction) for name, direction in ascent.items()})
            try:
                return gradient()
            finally:
                params.update(here)

        self.inner.step(params, memory, at_the_worst_point, lr, number)
