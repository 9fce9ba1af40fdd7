"""The papers' networks, each with its exact parameter count, and users' own `nn.Module`s.

Every network returns raw logits: distillation needs them, and cross entropy is stabler on them.
"""

from coterie.models.architecture import Architecture
from coterie.models.construction import build, is_out_of_memory
from coterie.models.layers import Layer, find_layer, head_names, output_of

__all__ = [
    "Architecture",
    "Layer",
    "build",
    "find_layer",
    "head_names",
    "is_out_of_memory",
    "output_of",
]
