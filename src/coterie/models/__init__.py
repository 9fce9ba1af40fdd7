"""The papers' networks, each with its exact parameter count, and users' own `nn.Module`s.

Every network returns raw logits: distillation needs them, and cross entropy is stabler on them.
"""

from coterie.models.architecture import Architecture
from coterie.models.construction import build, is_out_of_memory
from coterie.models.layers import (
    FEATURES,
    Layer,
    find_layer,
    largest_output,
    last_linear,
    output_of,
    with_features,
)
from coterie.models.parts import (
    Parts,
    check_shared,
    copy_of,
    frozen_names,
    head_names,
    model_tree,
    still_layers,
)

__all__ = [
    "FEATURES",
    "Architecture",
    "Layer",
    "Parts",
    "build",
    "check_shared",
    "copy_of",
    "find_layer",
    "frozen_names",
    "head_names",
    "is_out_of_memory",
    "largest_output",
    "last_linear",
    "model_tree",
    "output_of",
    "still_layers",
    "with_features",
]
