"""BlendDFL: Soltani et al., Beyond Parameters: Locally-Guided Knowledge Distillation for Decentralized FL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.parts.distillation import (
    class_weights,
    even_weights,
    mean_teacher_logits,
    of_samples,
)
from coterie.algorithms.parts.settings import BLEND_DFL_TRAINING, require_above_zero, require_at_least
from coterie.errors import ConfigError
from coterie.protocol import (
    Algorithm,
    Batch,
    Exchange,
    Facts,
    Node,
    Params,
    Prepare,
    Presets,
    Round,
    Samples,
    Task,
    average,
)
from coterie.protocol.trees import per_row


@dataclass(frozen=True)
class BlendState:
    """The aggregated model, and what the last round's local models say about each training sample."""

    params: Params
    teacher_logits: Tensor  # (rows, n, classes); empty without distillation
    taught: Tensor  # (rows,) 1 once a row has teachers, else 0


@dataclass(frozen=True)
class BlendDFL(Algorithm[BlendState]):
    """D-PSGD whose local training is also guided by the mean logits of the neighbours' last local models.

        z~(x) = mean of z_j^{t-1}(x) over j in N_i + i                        (6) teachers, on i's own samples
        beta_c = 1 / count_c in the batch, rescaled to mean 1 over its classes         (10, 11)
        w_c(t) = 1 + t/R (beta_c - 1)                                                  (12)
        KD = T^2 sum_s w_s KL(softmax(z~/T) || softmax(z/T)) / sum_s w_s               (7, 8)
        CE = sum_s w_s CE_s / sum_s w_s                                                (13)
        theta_i <- local SGD on CE + lambda KD                                         (14)
        theta_i <- mean of theta_j over j in N_i + i                                   (4)

    The teachers are the models that were exchanged for averaging anyway, so distillation sends nothing
    more; their logits are computed once per round. Round 0 has no teachers, and all weights are 1.
    A node without neighbours learns from its own last local model.

    kd_weight=0 is the paper's NoKD, weighting="none" NoWeight, weighting="fixed" FixedWeight (w = beta);
    NoKD and NoWeight together are D-PSGD. KD slows the start: compare after hundreds of rounds.

    Differs from the paper: its code divides CE by the batch size (ce_norm="batch"), which makes lambda
    up to four times stronger on skewed batches; eq. 13 is the default. R is the last round, so that the
    weights of the last round are exactly beta. The recorded `divergence` (5) compares with the model
    that the node's own round started from, since no node has the mean of all. Gradients are clipped at 10 as
    in its code; the paper does not mention it.
    CE and KL are the loss and the divergence of the task, of a regression squared errors both; where samples
    are of no class, all weights are 1.
    """

    kd_weight: float = 1.0  # lambda
    temperature: float = 3.0  # T
    weighting: Literal["adaptive", "fixed", "none"] = "adaptive"
    ce_norm: Literal["weights", "batch"] = "weights"

    facts = Facts(
        paper="Soltani et al. (BlendDFL)",
        measured="after_mixing",
        communication="one model to each neighbour",
        personal=False,
        free_running=True,
        architectures=True,
        per_sample=("teacher_logits", "taught"),
    )
    presets: ClassVar[Presets] = {
        "paper": {"kd_weight": 10.0, "temperature": 3.0, **BLEND_DFL_TRAINING},
        "grid-cifar10": {"kd_weight": 10.0, "temperature": 3.0, **BLEND_DFL_TRAINING},
        "grid-cifar100": {"kd_weight": 1.0, "temperature": 3.0, **BLEND_DFL_TRAINING},
        "ring-cifar10": {"kd_weight": 25.0, "temperature": 3.0, **BLEND_DFL_TRAINING},
        "ring-cifar100": {"kd_weight": 5.0, "temperature": 3.0, **BLEND_DFL_TRAINING},
    }

    def __post_init__(self) -> None:
        require_at_least(0, self, "kd_weight")
        require_above_zero(self, "temperature")

    def init(self, node: Node) -> BlendState:
        params = node.initial()
        table = torch.zeros_like(node.predict(params)) if self.kd_weight else torch.zeros(node.rows, 0, 0)
        return BlendState(params, table, torch.zeros(node.rows))

    def round(self, state: BlendState, node: Node) -> Round[BlendState]:
        mine = node.train(state.params, loss=partial(self.loss, node.task), prepare=self.prepare(state, node))
        node.measure(after_local=mine)
        if node.evaluating:
            before, after = (node.evaluate(params, "common") for params in (state.params, mine))
            main = node.task.metrics[0]
            node.record(divergence=main.gain(after.metrics[main.name], before.metrics[main.name]))  # eq. 5
        inbox = yield Exchange(mine)
        mixed = average(mine, inbox)  # eq. 4
        if not self.kd_weight:
            return BlendState(mixed, state.teacher_logits, state.taught)
        return BlendState(mixed, mean_teacher_logits(node, mine, inbox), torch.ones(node.rows))  # eq. 6

    def check_task(self, task: Task) -> None:
        if self.weighting == "fixed" and not task.labels_are_classes:
            raise ConfigError(
                f"weighting 'fixed' weighs samples by their class, and task {task.name!r} has no classes of "
                "samples; use weighting='none'"
            )

    def personal(self, state: BlendState) -> Params:
        return state.params

    def prepare(self, state: BlendState, node: Node) -> Prepare:
        """What eq. 13 and 14 need to know of each sample: its weight, its label and teachers as targets."""
        progress = node.round / max(1, node.rounds - 1)  # t / R
        teaching = self.kd_weight * self.temperature**2 * state.taught
        task, classes = node.task, node.task.labels_are_classes
        teacher = task.softened(state.teacher_logits, self.temperature)

        def prepared(samples: Samples) -> Params:
            weights = self.weights(samples, progress, classes).to(teacher)
            scaled = weights / per_row(samples.mean(weights), weights)  # to mean 1: divided by sum_s w_s
            ce = scaled if self.ce_norm == "weights" else weights  # eq. 13, or the paper's code
            if not self.kd_weight:
                return {"ce": ce}
            kd = per_row(teaching[samples.rows], scaled).to(teacher) * scaled
            return task.guidance(samples.y, ce, of_samples(teacher, samples), kd)

        return prepared

    def loss(self, task: Task, outputs: Tensor, batch: Batch) -> Tensor:
        """(rows,) eq. 14 of one batch: the CE of eq. 13 plus lambda times the KD of eq. 7 and 8."""
        if not self.kd_weight:
            return batch.mean(batch.prepared["ce"] * task.losses(outputs, batch.y))
        return batch.mean(task.guided(outputs, batch, self.temperature))

    def weights(self, samples: Samples, progress: float, classes: bool = True) -> Tensor:
        """(rows, batch[, positions]) weight of each sample; 0 for padding."""
        if self.weighting == "none" or not classes:
            return even_weights(samples)
        beta = class_weights(samples)  # eq. 10, 11
        if self.weighting == "fixed":
            return beta
        return torch.lerp(even_weights(samples), beta, progress)  # eq. 12
