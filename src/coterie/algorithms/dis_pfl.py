"""Dis-PFL: Dai et al., Towards Communication-Efficient Personalized FL via Decentralized Sparse Training
(ICML 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from coterie.algorithms.parts.sparsity import (
    Masked,
    intersection_mean,
    kept_by_layer,
    largest,
    masked,
    pack,
    random_scores,
)
from coterie.errors import ConfigError
from coterie.protocol import Algorithm, Exchange, Facts, Node, Params, Presets, Round
from coterie.training import PLAIN_STEP

_TRAINING = {
    "training.epochs": 5,
    "training.batch_size": 128,
    "training.lr": 0.1,
    "training.lr_decay": 0.998,
    "training.momentum": 0.0,
    "training.weight_decay": 5e-4,
    "training.clip": 10.0,
}


@dataclass(frozen=True)
class SparseState:
    """Each node's sparse model, and which weights it has."""

    params: Params  # zero where the mask is
    masks: Params  # bool, of weight matrices and kernels


@dataclass(frozen=True)
class DisPFL(Algorithm[SparseState]):
    """Each node has a sparse model of its own; neighbours average the weights that they have in common.

        w_i <- m_i * sum_j m_j w_j / sum_j m_j               over the neighbours and oneself, place by place
        w_i <- local SGD, masked by m_i after every step
        c_t = a / 2 (1 + cos(pi t / T))                      share of each layer's weights that move
        m_i loses the smallest |w_i|, and gains as many other places, at random or by |gradient|

    Weights start at zero where a mask gains them. Layers keep a share of their weights by the
    Erdos-Renyi-Kernel rule; biases and normalisation stay dense. Masks are drawn for each node, weights start
    equal. A message has the weights that are there and one bit per place.

    Differs from the paper: new places are random by default, as in the authors' scripts and the preset `code`
    (the paper takes the largest gradients, as does the preset `paper`); a layer moves no more weights than it
    has free places, so a full layer keeps all.
    """

    density: float = 0.5
    pruning: float = 0.5  # a
    regrow: Literal["random", "gradient"] = "random"
    common_masks: bool = False  # the same first mask for all

    facts = Facts(
        paper="Dai et al. 2022",
        measured="after_local",
        communication="the weights of one sparse model to each neighbour",
        restarts="its masks move, and a weight that comes back would meet the momentum of before",
    )
    presets: ClassVar[Presets] = {
        "paper": {"regrow": "gradient", **_TRAINING},
        "code": {"regrow": "random", **_TRAINING},
    }

    def __post_init__(self) -> None:
        for name, low in (("density", 1e-9), ("pruning", 0.0)):
            if not low <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be a share of the weights, not {getattr(self, name)}")

    def init(self, node: Node) -> SparseState:
        params, masks = node.initial(), {}
        for name, count in kept_by_layer(params, self.density).items():
            purpose, like = f"mask of {name}", params[name]
            stream = node.shared_rng(purpose) if self.common_masks else node.rng(purpose)
            mask = largest(random_scores(stream, like[0].numel()), count).expand(node.rows, -1)
            masks[name] = mask.reshape(like.shape).to(like.device)
        return SparseState(masked(params, masks), masks)

    def round(self, state: SparseState, node: Node) -> Round[SparseState]:
        inbox = yield Exchange(pack(state.params, state.masks))
        mixed = intersection_mean(state.params, state.masks, inbox)
        node.measure(after_mixing=mixed)
        trained = node.train(mixed, around=partial(Masked, state.masks))
        node.measure(after_local=trained)
        return self.moved(trained, state.masks, node)

    def moved(self, params: Params, masks: Params, node: Node) -> SparseState:
        """Prune, then regrow equally many."""
        share = self.pruning / 2 * (1 + math.cos(math.pi * node.round / node.rounds))  # c_t
        gradient = self.gradient(params, node) if self.regrow == "gradient" else {}
        survivors, grown = {}, {}
        for name, count in kept_by_layer(params, self.density).items():
            weight, mask = params[name].flatten(1), masks[name].flatten(1)
            moving = min(math.ceil(share * count), mask.shape[1] - count)
            kept = largest(weight.abs().masked_fill(~mask, -1.0), count - moving)
            if gradient:
                scores = gradient[name].flatten(1).abs()
            else:
                scores = random_scores(node.rng(f"growth of {name}"), mask.shape[1]).to(weight.device)
            new = largest(scores.masked_fill(kept, -1.0), moving)
            survivors[name] = kept.view(masks[name].shape)
            grown[name] = (kept | new).view(masks[name].shape)
        return SparseState(masked(params, survivors), grown)

    def gradient(self, params: Params, node: Node) -> Params:
        """Of one mini-batch, also where the mask is zero."""
        after = node.train(
            params, steps=1, lr=1.0, clip=0.0, stream="growth", purpose="gradient", **PLAIN_STEP
        )
        return {name: value - after[name] for name, value in params.items()}

    def personal(self, state: SparseState) -> Params:
        return state.params
