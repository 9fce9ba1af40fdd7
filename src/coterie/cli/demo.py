"""`coterie demo`: what personalised learning among peers is about, in half a minute and without files."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from coterie.cli import folders
from coterie.cli.options import Output
from coterie.cli.problems import note
from coterie.cli.run import Json, Quiet

ALGORITHMS = ("local", "gossip-fedavg", "d-psgd", "dfedavgm", "random-gossip", "oracle", "fedavg")
TABLE: dict[str, Any] = {
    "data": "digits",
    "partition": "rotations(4)",
    "topology": "full",
    "seed": 0,
    "training": {"lr": 0.1, "epochs": 2, "batch_size": 16},
    "execution": {"executor": "stacked"},  # what the calibration finds for so small a model
}
# In the ten local steps of a round, momentum 0.9 moves a model four times as far: match the rates.
OWN_TRAINING = {"dfedavgm": {"lr": 0.025}}


def demo(
    peers: Annotated[int, typer.Option(hidden=True)] = 20,
    rounds: Annotated[int, typer.Option(hidden=True)] = 20,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """See it work: 20 peers in 4 clusters compare 7 algorithms, offline, in half a minute."""
    from coterie.cli.compare import Planned, play_all, report

    plan = []
    for name in ALGORITHMS:
        topology = "star" if name == "fedavg" else TABLE["topology"]
        training = {**TABLE["training"], **OWN_TRAINING.get(name, {})}
        table = {**TABLE, "algorithm": name, "topology": topology, "training": training}
        plan.append(Planned(name, 0, {**table, "peers": peers, "rounds": rounds}))
    folder = folders.unused(folders.RUNS / f"demo-{datetime.now():%Y%m%d-%H%M%S}")
    note(
        f"{peers} peers have some handwritten digits each, in 4 clusters with images turned by 0, 90, 180\n"
        "and 270 degrees. Nobody is told who is in which cluster, except oracle.",
        quiet,
    )
    runs = play_all(plan, folder, quiet)
    report(plan, runs, folder, Output(json, quiet, plots=True))
    if not json:
        typer.echo("\n" + conclusion([run.result() for run in runs]))


def conclusion(results: list[dict[str, Any]]) -> str:
    """Two sentences on what these numbers show, whatever they are."""
    accuracy = {result["algorithm"]: result["personal_accuracy"] for result in results}
    means = {name: 100 * values["mean"] for name, values in accuracy.items()}
    gains = {name: mean - means["local"] for name, mean in means.items()}
    across = max(("gossip-fedavg", "d-psgd", "dfedavgm", "fedavg"), key=means.__getitem__)
    own = accuracy["local"]["per_peer"]
    hurt = sum(mine < alone for mine, alone in zip(accuracy[across]["per_peer"], own, strict=True))
    return (
        f"Averaging with everyone, across clusters, {_changed(gains[across])} against learning alone even at "
        f"its best ({across} {means[across]:.1f} %, local {means['local']:.1f} %; {hurt} of {len(own)} peers "
        f"are worse off with it), while averaging only within the true clusters "
        f"{_changed(gains['oracle'])} (oracle {means['oracle']:.1f} %).\n"
        f"Between picking partners at random ({means['random-gossip']:.1f} %) and knowing the right ones lie "
        f"{means['oracle'] - means['random-gossip']:.1f} points: that is what finding good partners can be "
        f"worth here (one seed, {results[0]['rounds']} rounds)."
    )


def _changed(points: float) -> str:
    if abs(points) < 0.05:
        return "changes nothing"
    return f"{'gains' if points > 0 else 'loses'} {abs(points):.1f} points"
