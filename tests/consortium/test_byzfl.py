"""Lies and guards against byzfl as an oracle.

byzfl 0.0.11 needs torchvision, of which there is no build for every processor, so it is no dependency. These
numbers are what it gave for MODELS: its modules `attacks.attacks` and `aggregators.aggregators` were imported
from `pip download --no-deps byzfl==0.0.11`, with empty modules in the place of torchvision. Compared in the
same way on six random models of 40 numbers, the largest differences were 6e-17 for IPM, 0 for mimic, the sign
flip and the trimmed mean, and 2e-12 for the geometric median. Its ALIE adds z sample deviations, where Baruch
et al. subtract z deviations, as we do.
"""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from coterie.algorithms.robust.attacks import ALittleIsEnough, InnerProduct, Mimic
from coterie.algorithms.robust.guards import TrimmedMean, geometric_median

MODELS = torch.tensor(
    [[1.0, -2.0, 0.5], [0.0, 3.0, 1.5], [2.0, 1.0, -1.0], [-1.0, 0.5, 4.0], [0.5, 2.0, 2.0]],
    dtype=torch.float64,
)
SAMPLE = sqrt(5 / 4)  # a sample's deviation is longer by so much

IPM = [-0.35, -0.63, -0.98]  # InnerProductManipulation(tau=0.7)
ALIE = [2.1770509831, 3.7262165522, 4.1760133285]  # ALittleIsEnough(tau=1.5)
MIMIC = [0.0, 3.0, 1.5]  # Mimic(epsilon=1)
TRIMMED_MEAN = [0.5, 1.1666666667, 1.3333333333]  # TrMean(f=1)
GEOMETRIC_MEDIAN = [0.4395570288, 1.8033025769, 1.8162381885]  # GeometricMedian(nu=1e-9, T=500)


def told(attack: InnerProduct | ALittleIsEnough | Mimic) -> list[float]:
    lie: list[float] = attack.told({"w": MODELS[:1]}, {"w": MODELS[1:]}, 2)["w"].tolist()
    return lie


def test_lies_are_those_of_byzfl() -> None:
    assert told(InnerProduct(0.7)) == pytest.approx(IPM, abs=1e-9)
    assert told(Mimic()) == pytest.approx(MIMIC, abs=1e-9)
    assert told(ALittleIsEnough(-1.5 * SAMPLE)) == pytest.approx(ALIE, abs=1e-9)


def test_guards_are_those_of_byzfl() -> None:
    assert TrimmedMean(1).of({"w": MODELS})["w"].tolist() == pytest.approx(TRIMMED_MEAN, abs=1e-9)
    assert geometric_median(MODELS).tolist() == pytest.approx(GEOMETRIC_MEDIAN, abs=1e-9)
