"""The 1,797 handwritten digits (8x8) that ship with the package: an experiment without any download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from coterie.data.partitions.partition import runs
from coterie.data.source import Source


@dataclass(frozen=True)
class Digits:
    """UCI handwritten digits, 8x8, ships with the package.

    Every fifth sample of each class is a test sample, always the same ones. Pixels 0..16 become
    -1..1. Credit and licence are in DIGITS.md beside this file.
    """

    default_model: ClassVar[str] = "mlp"
    default_partition: ClassVar[str] = "dirichlet(0.5)"
    needs_files: ClassVar[bool] = False

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as stored:
            pixels, labels = stored["pixels"], stored["labels"].astype(np.int64)
        by_label = np.argsort(labels, kind="stable")
        test = np.zeros(len(labels), dtype=bool)
        test[by_label] = runs(np.bincount(labels).astype(np.int64)) % 5 == 4
        x = torch.from_numpy(pixels).float().div_(8.0).sub_(1.0).view(-1, 1, 8, 8)
        y, held = torch.from_numpy(labels), torch.from_numpy(test)
        return Source(x[~held], y[~held], x[held], y[held], n_classes=10)
