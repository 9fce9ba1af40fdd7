"""The contract between algorithms and whatever runs them; no I/O."""

from coterie.protocol.algorithm import (
    Algorithm,
    Facts,
    ModelAlgorithm,
    ModelState,
    Point,
    Presets,
    Round,
    require_algorithm,
)
from coterie.protocol.exchange import Exchange, Links
from coterie.protocol.inbox import Bundle, Bundled, Inbox, SealedInbox, average
from coterie.protocol.node import Batch, Loss, Node, OnFeatures, Prepare, Samples, Scores, Task
from coterie.protocol.patterns import everyone, from_hub, pull, sample_clients, to_hub
from coterie.protocol.trees import Params, Tree

__all__ = [
    "Algorithm",
    "Batch",
    "Bundle",
    "Bundled",
    "Exchange",
    "Facts",
    "Inbox",
    "Links",
    "Loss",
    "ModelAlgorithm",
    "ModelState",
    "Node",
    "OnFeatures",
    "Params",
    "Point",
    "Prepare",
    "Presets",
    "Round",
    "Samples",
    "Scores",
    "SealedInbox",
    "Task",
    "Tree",
    "average",
    "everyone",
    "from_hub",
    "pull",
    "require_algorithm",
    "sample_clients",
    "to_hub",
]
