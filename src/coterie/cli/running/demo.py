"""`coterie demo`: what personalised learning among peers is about, in half a minute and without files."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer

from coterie.cli.output import Json, Output, Quiet
from coterie.cli.problems import note
from coterie.experiments.cells.comparing import Planned, on_the_same_data
from coterie.experiments.runs import naming
from coterie.experiments.setup.config import resolve

THE_FIVE = ("kd-pdfl", "ppdl", "blend-dfl", "dfedpgp", "pfedkd-wcl")
ALGORITHMS = ("local", "gossip-fedavg", "random-gossip", "oracle", *THE_FIVE, "kin")
TABLE: dict[str, Any] = {
    "data": "digits",
    "partition": "rotations(4)",
    "topology": "full",
    "seed": 0,
    "splitting": {"validation": 0.2},  # what PPDL's bandit is rewarded by
    "training": {"lr": 0.1, "epochs": 2, "batch_size": 16, "work": "equal"},
    "execution": {"executor": "stacked"},  # what the calibration finds for so small a model
}


def demo(
    peers: Annotated[int, typer.Option(hidden=True)] = 20,
    rounds: Annotated[int, typer.Option(hidden=True)] = 20,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """See it work: 20 peers in 4 clusters compare 10 algorithms, offline, within a minute."""
    from coterie.cli.running import simulating  # PyTorch

    tables = []
    for name in ALGORITHMS:
        topology = "star" if name == "pfedkd-wcl" else TABLE["topology"]
        tables.append({**TABLE, "algorithm": name, "topology": topology, "peers": peers, "rounds": rounds})
    tables = on_the_same_data(tables, partial(note, quiet=quiet))
    plan = [Planned(table["algorithm"], resolve(table)) for table in tables]
    folder = naming.unused(naming.RUNS / f"demo-{datetime.now():%Y%m%d-%H%M%S}")
    note(
        f"{peers} peers have some handwritten digits each, in 4 clusters with images turned by 0, 90, 180\n"
        "and 270 degrees. Nobody is told who is in which cluster, except oracle.",
        quiet,
    )
    done = simulating.compare_and_show(plan, folder, Output(json, quiet, plots=True))
    if not json:
        typer.echo("\n" + conclusion(done.results()))


def conclusion(results: list[dict[str, Any]]) -> str:
    """A few sentences on what these numbers show, whatever they are."""
    accuracy = {result["algorithm"]: result["personal_accuracy"] for result in results}  # of the digits
    means = {name: 100 * values["mean"] for name, values in accuracy.items()}
    gains = {name: mean - means["local"] for name, mean in means.items()}
    inside = {result["algorithm"]: result.get("own_cluster_share") for result in results}
    across, best = "gossip-fedavg", max(THE_FIVE, key=means.__getitem__)
    finder = max(("kd-pdfl", "ppdl"), key=lambda name: inside.get(name) or 0.0)
    own = accuracy["local"]["per_peer"]
    hurt = sum(mine < alone for mine, alone in zip(accuracy[across]["per_peer"], own, strict=True))
    return (
        f"Averaging with everyone, across clusters, {_changed(gains[across])} against learning alone "
        f"({across} {means[across]:.1f} %, local {means['local']:.1f} %; {hurt} of {len(own)} peers "
        f"are worse off with it), while averaging only within the true clusters "
        f"{_changed(gains['oracle'])} (oracle {means['oracle']:.1f} %).\n"
        f"Between picking partners at random ({means['random-gossip']:.1f} %) and knowing the right ones lie "
        f"{means['oracle'] - means['random-gossip']:.1f} points: that is what finding good partners can be "
        f"worth here. Of the five, {best} comes out best ({means[best]:.1f} %), and {finder} takes "
        f"{100 * (inside.get(finder) or 0):.0f} % of what it learns from its own cluster, where blind choice "
        f"takes {100 * (inside.get('gossip-fedavg') or 0):.0f} %. Kin, which is Coterie's own, reaches "
        f"{means['kin']:.1f} % without being told the clusters (one seed, {results[0]['rounds']} rounds)."
    )


def _changed(points: float) -> str:
    if abs(points) < 0.05:
        return "changes nothing"
    return f"{'gains' if points > 0 else 'loses'} {abs(points):.1f} points"
