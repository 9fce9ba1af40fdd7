"""Your own model and data, in thirty lines.

    python examples/own_model_and_data.py

Six peers have points in two classes. The line between the classes is turned a little from peer to peer.
"""

import numpy as np
from torch import nn

import coterie


def points(peer: int) -> tuple[np.ndarray, np.ndarray]:
    """What you would read from a file: an array of samples, and an array of their classes."""
    rng = np.random.default_rng(peer)
    x = rng.normal(size=(80, 2)).astype(np.float32)
    return x, (x[:, 0] + 0.1 * peer * x[:, 1] > 0).astype(int)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


if __name__ == "__main__":
    for algorithm in ("local", "d-psgd", "kin"):
        run = coterie.simulate(algorithm, data=[points(peer) for peer in range(6)], model=Net, rounds=10)
        print(f"{algorithm:8} accuracy {float(run.personal_accuracy.mean()):.3f}")
