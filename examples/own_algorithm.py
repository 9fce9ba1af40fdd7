"""An algorithm of one's own, in one file: simulated, compared, and tested under faults.

    python examples/own_algorithm.py
    coterie run --algorithm "examples/own_algorithm.py:Cautious(0.3)" --partition "dirichlet(0.3)"

`Cautious` moves a share of the way to its neighbours' average, unless its own training data speak against
it. Its peers have handwritten digits, skewed by label, and it is compared with training alone and with plain
averaging on equal data and equal local work. docs/own-algorithm.md tells the rest.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass

from torch import Tensor

import coterie
from coterie.testing import Crash, Faults, run_peers


@dataclass(frozen=True)
class Cautious(coterie.ModelAlgorithm):
    """Take a share of the neighbours' average, unless one's own training data speak against it.

    z_i <- y_i + share (mean_j y_j - y_i)
    theta_i <- z_i if loss_i(z_i) <= (1 + slack) loss_i(y_i), else y_i
    """

    share: float = 0.5  # of the way to the average
    slack: float = 1.0  # how much higher the loss may become

    facts = coterie.Facts(paper="an example", measured="after_mixing", communication="one model per link")

    def round(self, state: coterie.ModelState, node: coterie.Node) -> coterie.Round[coterie.ModelState]:
        mine = node.train(state.params)  # y_i
        node.measure(after_local=mine)
        inbox = yield coterie.Exchange(mine)
        mean = coterie.average(mine, inbox)
        mixed = {name: y + self.share * (mean[name] - y) for name, y in mine.items()}  # z_i
        before, after = (node.evaluate(model, "train").loss for model in (mine, mixed))
        taken = after <= (1 + self.slack) * before  # (rows,)
        node.record(taken=taken.float())
        return coterie.ModelState({name: _where(taken, mixed[name], y) for name, y in mine.items()})


def _where(taken: Tensor, mixed: Tensor, mine: Tensor) -> Tensor:
    return mixed.where(taken.view(-1, *[1] * (mine.dim() - 1)), mine)


def main() -> None:
    parser = argparse.ArgumentParser(description="An algorithm of one's own.")
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    for algorithm in ("local", "d-psgd", Cautious(share=0.3)):
        run = coterie.simulate(
            algorithm=algorithm,
            data="digits",
            partition="dirichlet(0.3)",
            topology="ring",
            peers=asked.peers,
            rounds=asked.rounds,
            training={"work": "equal", "lr": 0.1},
        )
        accuracy = run.personal_accuracy
        print(f"{algorithm!s:30} mean {100 * accuracy.mean():5.1f} %   worst {100 * accuracy.min():5.1f} %")
    logging.getLogger("coterie").setLevel(logging.ERROR)  # peers tell of every message that is lost
    bad = Faults(lost_request=0.1, duplicated=0.2)
    outcome = run_peers(
        Cautious(share=0.3), peers=4, rounds=3, faults=bad, crashes=[Crash(1, at=1.0)], seed=7
    )
    print(f"with lost messages and a crash, {len(outcome.finished)} of 4 peers finish")


if __name__ == "__main__":
    main()
