r"""Hospitals that predict a rare outcome, measured by AUC.

    python examples/hospitals_auc.py
    coterie compare --data examples/hospitals_auc.py:load --task binary --set 'metrics=["auc"]' \
                    --algorithms local,d-psgd,dfedpgp --peers 8 --rounds 15 --set training.lr=0.2

The same things make patients ill everywhere. But hospitals admit different patients: in one, every tenth has
the outcome, in another more than half. Accuracy would praise a model that always says no. AUC does not. Every
hospital has few patients, so that it gains from the others. It needs scikit-learn:
pip install 'coterie[metrics]'.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import coterie

PATIENTS, MEASUREMENTS = 80, 12
RARE, FREQUENT = 0.1, 0.6  # share of patients with the outcome in the first and in the last hospital

Patients = tuple[NDArray[np.float64], NDArray[np.int64]]


def hospital(number: int, hospitals: int, seed: int, patients: int = PATIENTS) -> Patients:
    """Measurements of each patient, and whether the outcome came."""
    effects = np.random.default_rng([seed, 1]).normal(size=MEASUREMENTS)  # the same in all hospitals
    share = RARE + (FREQUENT - RARE) * number / max(1, hospitals - 1)
    rng = np.random.default_rng([seed, 2, number])
    x = rng.normal(size=(patients, MEASUREMENTS))
    risk = x @ effects + rng.logistic(scale=1.5, size=patients)
    return x, (risk > np.quantile(risk, 1 - share)).astype(np.int64)


def load(peers: int, seed: int) -> coterie.Federation:
    """Each hospital trains on its few patients, and is tested on many."""
    data = []
    for number in range(peers):
        x, y = hospital(number, peers, seed, PATIENTS + 400)
        data.append((x[:PATIENTS], y[:PATIENTS], x[PATIENTS:], y[PATIENTS:]))
    return coterie.from_peers(data, task="binary", n_classes=2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hospitals that predict a rare outcome.")
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    print("algorithm   AUC mean  worst   average precision   accuracy")
    for algorithm in ("local", "d-psgd", "dfedpgp"):
        run = coterie.simulate(
            algorithm,
            data=load(asked.peers, seed=0),
            task="binary",
            metrics=["auc", "average-precision", "accuracy"],
            model="mlp(16)",
            rounds=asked.rounds,
            training={"lr": 0.2, "batch_size": 16},
        )
        precision, accuracy = (
            float(run.scores_over_time(name)[-1].mean()) for name in ("average_precision", "accuracy")
        )
        auc = run.result()["personal_auc"]
        print(
            f"{algorithm:10}  {100 * auc['mean']:8.1f}  {100 * auc['worst_decile']:5.1f}   "
            f"{100 * precision:17.1f}   {100 * accuracy:8.1f}"
        )


if __name__ == "__main__":
    main()
