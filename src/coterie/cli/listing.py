"""`coterie list`: every name that a user can type."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from coterie import catalogue


class Kind(StrEnum):
    algorithms = "algorithms"
    data = "data"
    models = "models"
    partitions = "partitions"
    topologies = "topologies"


def list_names(
    kind: Annotated[Kind | None, typer.Argument(help="Only one kind of names.", show_default=False)] = None,
) -> None:
    """List algorithms, data sets, models, partitions and topologies."""
    from coterie.reporting.tables import show

    for one in [kind] if kind else list(Kind):
        show(_table(one, registry_of(one)), "")
    if kind is None:
        typer.echo("coterie explain NAME tells more about any of them.")


def registry_of(kind: Kind) -> Any:
    """The catalogue of one kind."""
    return getattr(catalogue, "sources" if kind is Kind.data else kind.value)


def kind_of_algorithm(facts: Any) -> str:
    """A few words: serverless or hub, personal or consensus, and what else it can or needs."""
    words = ["hub" if facts.hub else "serverless", "personal" if facts.personal else "consensus"]
    more = {
        "directed": facts.directed,
        "sealed": facts.sealed,
        "told clusters": facts.clusters,
        "free-running": facts.free_running,
    }
    return ", ".join([*words, *(word for word, holds in more.items() if holds)])


def _table(kind: Kind, registry: Any) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=kind.value, title_justify="left", title_style="bold", box=None, padding=(0, 1), pad_edge=False
    )
    facts_too = kind is Kind.algorithms
    table.add_column("name", no_wrap=facts_too, max_width=40, overflow="fold")
    table.add_column("what")
    for name in registry:
        if facts_too:  # without settings, which `explain` shows, so that the rest has room
            cells = [name, "\n".join((registry.summary(name), *_facts(registry[name].facts)))]
        else:
            cells = [registry.signature(name).replace(",", ", "), registry.summary(name)]
        table.add_row(*map(Text, cells))
    return table


def _facts(facts: Any) -> tuple[str, str]:
    measured = facts.measured.replace("_", " ")
    return (
        f"{facts.paper}; {kind_of_algorithm(facts)}; measured {measured}",
        f"communication per round: {facts.communication}",
    )
