"""What a simulation gives back: records of rounds, and models of peers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from coterie.protocol import Params

POINTS = ("after_local", "after_mixing")


@dataclass(frozen=True)
class Traffic:
    """The messages of one exchange."""

    senders: Tensor  # (messages,) ids
    receivers: Tensor  # (messages,) ids
    bytes: Tensor  # (messages,) size of each payload
    delivered: Tensor  # (messages,) bool


@dataclass(frozen=True)
class PeerModels:
    """The personal models of peers with the same network."""

    peers: Tensor  # (k,) ids, sorted
    params: Params  # (k, ...)
    module: nn.Module  # the network, with its initial weights


@dataclass(frozen=True)
class Evaluation:
    """The personal models of all peers at one point of a round, each on its own test data."""

    metrics: dict[str, Tensor]  # (peers,) by the names of the task's metrics
    loss: Tensor  # (peers,)
    on_common: dict[str, Tensor]  # likewise on the common test set, where there is one and it was asked for
    validation: dict[
        str, Tensor
    ]  # likewise, and `loss`, on each peer's own validation data; empty without any


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round."""

    round: int
    seconds: float
    online: Tensor  # (peers,)
    train_loss: Tensor  # (peers,) NaN for those that did not train
    gradient_steps: Tensor  # (peers,) mini-batches of local work
    samples_seen: Tensor  # (peers,) in these mini-batches
    evaluations: dict[str, Evaluation]  # by point; empty in rounds that are not measured
    traffic: list[Traffic]
    diagnostics: dict[str, Tensor]  # what the algorithm recorded, one entry per peer
    memory: tuple[int, ...] = ()  # bytes that each worker process uses, where peers live in several
