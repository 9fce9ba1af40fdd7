"""pDFL: attention over neighbours and distillation from them, with a head that stays at home.

Known from its authors' public code (SafeAI-Wshuai/pDFL), which derives from that of DFedPGP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.algorithms.parts.distillation import of_samples, outputs_of, padded
from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.settings import DFEDPGP_TRAINING, require_above_zero, require_at_least
from coterie.algorithms.parts.weighting import softmax_of_messages
from coterie.protocol import (
    Batch,
    Exchange,
    Facts,
    Inbox,
    ModelAlgorithm,
    ModelState,
    Node,
    Params,
    Presets,
    Round,
    Task,
    Tree,
    average,
)
from coterie.protocol.trees import per_row


@dataclass(frozen=True)
class PDFL(ModelAlgorithm):
    """Mix the bodies of the neighbours that answer as one does oneself, and learn from their answers.

        p_j = softmax(z_j / tau) on a probe batch of i's own data             j: i's neighbours and i
        a_j = softmax over j of -KL(p_j || p_i) / tau
        u_i <- sum_j a_j u_j                                                  the body; the head v_i stays
        q = sum_j a_j softmax(z_j / T)                                        on i's samples, before mixing
        theta_i <- local SGD on CE + lambda T^2 KL(q || softmax(z / T))

    The neighbours' heads are needed to run their models, so whole models are sent.

    Differs from the paper: the equations are those of the code's default mode. Head and body are trained
    together, as there; the learning rate follows the experiment's schedule, while the code lowers it by a
    cosine within every round.
    """

    probe: int = 64  # samples of the probe batch
    attention_temperature: float = 2.0  # tau
    temperature: float = 3.5  # T
    kd_weight: float = 0.25  # lambda

    facts = Facts(
        paper="pDFL (authors' code)",
        measured="after_mixing",
        communication="one model to each neighbour",
        free_running=True,
        partial=True,
    )
    presets: ClassVar[Presets] = {
        "code": {**DFEDPGP_TRAINING, "training.epochs": 4, "training.batch_size": 64},
    }

    def __post_init__(self) -> None:
        require_at_least(1, self, "probe")
        require_at_least(0, self, "kd_weight")
        require_above_zero(self, "attention_temperature", "temperature")

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        inbox = yield Exchange(state.params)
        divergence = self.divergences(state.params, inbox, node)
        own, others = softmax_of_messages(-divergence / self.attention_temperature, inbox)
        mixed = {**average(state.params, inbox, others), **pick(state.params, node.head)}
        node.measure(after_mixing=mixed)
        teacher = node.task.from_linear(self.teachers(state.params, inbox, own, others, node))
        return ModelState(
            node.train(
                mixed,
                loss=lambda outputs, batch: (
                    node.loss(outputs, batch) + self.distillation(node.task, outputs, batch)
                ),
                prepare=lambda samples: {"teacher": of_samples(teacher, samples)},
            )
        )

    def divergences(self, mine: Params, inbox: Inbox, node: Node) -> Tensor:
        """(messages,) KL(p_j || p_i) on the receiver's probe batch."""
        task, probed, tau = node.task, self.probed(node), self.attention_temperature
        counted = node.counted()
        chosen = counted * probed.view(*probed.shape, *(1,) * (counted.dim() - 2))
        own = task.softened(node.predict(mine), tau)

        def diverge(peers: Tree, rows: Tensor) -> Tensor:
            theirs = task.softened(outputs_of(peers, mine, rows, node), tau)
            kl = task.divergence(theirs, own[rows.to(own.device), : theirs.shape[1]])
            weights = chosen[rows, : theirs.shape[1]].to(kl)
            return (kl * weights).flatten(1).sum(1) / weights.flatten(1).sum(1).clamp(min=1)

        return inbox.map(diverge).double().cpu()

    def probed(self, node: Node) -> Tensor:
        """(rows, n) bool: which of its samples each row probes with."""
        sizes = node.n_samples
        order = node.rng("probe").permutation(sizes, int(sizes.max()))
        first = torch.arange(order.shape[1]) < sizes.clamp(max=self.probe)[:, None]
        return torch.zeros_like(first).scatter(1, order, first)

    def teachers(self, mine: Params, inbox: Inbox, own: Tensor, others: Tensor, node: Node) -> Tensor:
        """(rows, n, classes) q, the probabilities that all of them give together."""
        task = node.task
        known = task.linear(task.softened(node.predict(mine), self.temperature))

        def teach(peers: Tree, rows: Tensor) -> Tensor:
            theirs = task.softened(outputs_of(peers, mine, rows, node), self.temperature)
            return padded(task.linear(theirs), known.shape[1])

        received = inbox.sum_of(teach, others)
        known = known * per_row(own, known).to(known)
        return known if received is None else known + received

    def distillation(self, task: Task, logits: Tensor, batch: Batch) -> Tensor:
        """(rows,) lambda T^2 KL(q || p)."""
        kl = task.divergence(batch.prepared["teacher"], task.softened(logits, self.temperature))
        return self.kd_weight * self.temperature**2 * batch.mean(kl)
