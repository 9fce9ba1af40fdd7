"""Sealed sums: four clinics learn from each other, and nobody sees another's model.

    python examples/sealed_sums.py

First one sum, step by step, as real peers compute it. What each member sends looks like random numbers. One
falls silent, and the sum of the others comes out all the same. Then learning with such sums. The masks cost
nothing in accuracy: masked sums are bit for bit those of the same integers without masks, and as good as sums
of floats. docs/privacy.md says what a sum still tells, and to whom.
"""

from __future__ import annotations

import argparse
import secrets

import torch

import coterie
from coterie.protocol.secure_sum import PairwiseCollector, PairwiseMember, Plan, majority

CLINICS = 4


def one_sum(silent: int = 3) -> torch.Tensor:
    """The sum of all vectors but that of the member which falls silent after it has shared its keys."""
    numbers = tuple(range(CLINICS))
    plan = Plan(secrets.token_bytes(16), numbers, threshold=majority(CLINICS))
    vectors = {number: torch.tensor([number + 0.5, -1.0, 0.25 * number]) for number in numbers}
    members = {number: PairwiseMember(number, vectors[number], plan) for number in numbers}
    collector = PairwiseCollector(plan)

    roster = collector.roster({number: member.advertise() for number, member in members.items()})
    shared = {number: member.share(roster) for number, member in members.items()}
    boxes = collector.route(shared, {number: member.promise() for number, member in members.items()})
    masked = {
        number: member.mask(boxes[number], collector.promised(number))
        for number, member in members.items()
        if number != silent
    }
    for number, words in masked.items():
        print(f"clinic {number} has {vectors[number].tolist()} and sends {words.tolist()}")
    survivors = collector.survivors(masked)
    total = collector.total({number: members[number].unmask(survivors) for number in survivors})
    print(f"clinic {silent} falls silent; the sum of the others is {total.tolist()}")
    return total


def learn(sealing: str, peers: int, rounds: int) -> coterie.Run:
    return coterie.simulate(
        "gossip-fedavg",  # each peer adds up its neighbours' models; it needs no single one
        partition="dirichlet(1)",
        topology="full",
        model="mlr",
        peers=peers,
        rounds=rounds,
        execution={"sealing": sealing},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=int, default=CLINICS)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    one_sum()
    runs = {kind: learn(kind, asked.peers, asked.rounds) for kind in ("plain", "quantised", "masked")}
    for kind, run in runs.items():
        print(f"{kind:9} accuracy {100 * run.personal_accuracy.mean():5.1f} %")
    same = all(values.equal(runs["quantised"].params[name]) for name, values in runs["masked"].params.items())
    print(f"masked and quantised sums give {'the same models, bit for bit' if same else 'other models'}")


if __name__ == "__main__":
    main()
