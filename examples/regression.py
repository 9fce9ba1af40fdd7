r"""Houses that predict the heat they will need: a regression, measured by its error.

    python examples/regression.py
    coterie run --data examples/regression.py:load --task regression --set 'metrics=["rmse","mae"]' \
                --algorithm d-psgd --peers 8 --rounds 20

Half of the houses are well insulated, half are not: how much the cold outside matters differs between them,
all else does not. Averaging with everyone makes a model for a house that nobody lives in. Lower is better
here, and the gain over learning alone is how much lower.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import coterie

DAYS, NOISE = 40, 0.3
INSULATION = (0.4, 1.6)  # heat that a house of each kind needs for each degree

Days = tuple[NDArray[np.float64], NDArray[np.float64]]


def house(number: int, seed: int, days: int) -> Days:
    """Cold, wind, sun and people on each day, and the heat that was needed. All are scaled to about 1."""
    rng = np.random.default_rng([seed, number])
    cold, wind, sun, people = x = rng.normal(size=(4, days))
    heat = INSULATION[number % 2] * cold + 0.5 * wind - 0.7 * sun - 0.3 * people + 0.3 * wind * cold
    return x.T, heat + NOISE * rng.normal(size=days)


def load(peers: int, seed: int) -> coterie.Federation:
    """A few weeks to learn from, and a year to be tested on."""
    data = []
    for number in range(peers):
        x, y = house(number, seed, DAYS + 365)
        data.append((x[:DAYS], y[:DAYS], x[DAYS:], y[DAYS:]))
    return coterie.from_peers(data, task="regression")


def main() -> None:
    parser = argparse.ArgumentParser(description="Houses that predict the heat they will need.")
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    alike = [(a, b) for b in range(asked.peers) for a in range(b) if a % 2 == b % 2]
    alone = None
    print("learning                    RMSE  worst   gain")
    for title, algorithm, topology in (
        ("alone", "local", "full"),
        ("with everyone", "d-psgd", "full"),
        ("with houses of its kind", "d-psgd", alike),
    ):
        run = coterie.simulate(
            algorithm,
            data=load(asked.peers, seed=0),
            task="regression",
            metrics=["rmse", "mae"],
            model="mlp(16)",
            topology=topology,
            rounds=asked.rounds,
            training={"lr": 0.05, "batch_size": 8, "epochs": 2},
        )
        rmse = run.result()["personal_rmse"]
        alone = rmse["mean"] if alone is None else alone
        gain = run.metric.gain(rmse["mean"], alone)
        print(f"{title:26}  {rmse['mean']:.3f}  {rmse['worst_decile']:.3f}  {gain:+.3f}")


if __name__ == "__main__":
    main()
