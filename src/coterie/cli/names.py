"""`coterie list` and `coterie explain NAME`: every name that a user can type, and what it stands for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from coterie import catalogue
from coterie.cli.completing import explained
from coterie.errors import ConfigError
from coterie.experiments.setup.schema import Experiment
from coterie.registry import load_reference, nearest, parse_call, readable
from coterie.reporting.page.explained import doc_of, facts_of, kind_of_algorithm, settings_of
from coterie.reporting.tables import show
from coterie.toml_tables import REQUIRED, Key, is_schema, keys
from coterie.user_code import in_short, is_file_reference


class Kind(StrEnum):
    algorithms = "algorithms"
    data = "data"
    models = "models"
    partitions = "partitions"
    tasks = "tasks"
    topologies = "topologies"


# Nothing is imported to find out what a user's class is: its file did that.
_KIND_BY_BASE = {
    "coterie.protocol.algorithm.Algorithm": Kind.algorithms,
    "coterie.learning.tasks.task.Task": Kind.tasks,
    "coterie.topology.graphs.GraphKind": Kind.topologies,
    "torch.nn.modules.module.Module": Kind.models,
}
_KIND_BY_METHOD = {"assign": Kind.partitions, "load": Kind.data}


def list_names(
    kind: Annotated[Kind | None, typer.Argument(help="Only one kind of names.", show_default=False)] = None,
) -> None:
    """List algorithms, data sets, models, partitions, tasks and topologies."""
    for one in [kind] if kind else list(Kind):
        show(_table(one, registry_of(one)), "")
    if kind is None:
        typer.echo("coterie explain NAME tells more about any of them.")


def explain(
    name: Annotated[
        str,
        typer.Argument(
            help="An algorithm, data set, model, partition or topology; a key such as training.lr; or "
            "file.py:Name.",
            show_default=False,
            autocompletion=explained,
        ),
    ],
) -> None:
    """Explain a name: equations, hyper-parameters, presets, differences from the paper."""
    bare = parse_call(name)[0]
    if is_file_reference(bare):
        typer.echo("\n".join(_of_user(bare)))
        return
    found = [kind for kind in Kind if bare in registry_of(kind)]
    for kind in found:
        typer.echo("\n".join(_lines(kind, bare)))
    if found:
        return
    known = list(keys(Experiment))
    chosen = [key for key in known if key.name == bare or key.name.startswith(f"{bare}.")]
    chosen = chosen or [key for key in known if key.name.endswith(f".{bare}")]
    if not chosen:
        everything = [entry for kind in Kind for entry in registry_of(kind)]
        raise ConfigError(f"unknown name {bare!r}; {nearest(bare, [*everything, *(k.name for k in known)])}")
    typer.echo("\n".join(map(_of_a_key, chosen)))


def _of_user(reference: str) -> Iterator[str]:
    """What a user's file defines: as an entry of the catalogue if it is of a kind, and keeps its rules."""
    found = load_reference(reference, "name")
    bases = {f"{base.__module__}.{base.__qualname__}" for base in getattr(found, "__mro__", ())}
    kind = next((kind for base, kind in _KIND_BY_BASE.items() if base in bases), None)
    if kind is None and inspect.isclass(found):
        kind = next((kind for method, kind in _KIND_BY_METHOD.items() if hasattr(found, method)), None)
    if kind is not None:
        yield from _lines(kind, reference)
        return
    yield f"{in_short(reference)}{inspect.signature(found) if callable(found) else ''}"
    yield from ("", doc_of(found) or "(not described)")


def _of_a_key(key: Key) -> str:
    """One line, or more for a section, whose keys follow."""
    if is_schema(key.kind):
        return f"[{key.name}]  {key.description}\n"
    default = "required" if key.default is REQUIRED else f"default {key.default!r}"
    return f"{key.name}  {readable(key.kind)}, {default}  ({key.description})"


def registry_of(kind: Kind) -> Any:
    """The catalogue of one kind."""
    return getattr(catalogue, "sources" if kind is Kind.data else kind.value)


def _table(kind: Kind, registry: Any) -> Table:
    table = Table(
        title=kind.value, title_justify="left", title_style="bold", box=None, padding=(0, 1), pad_edge=False
    )
    facts_too = kind is Kind.algorithms
    table.add_column("name", no_wrap=facts_too, max_width=40, overflow="fold")
    table.add_column("what")
    for name in registry:
        if facts_too:  # without settings, which `explain` shows, so that the rest has room
            cells = [name, "\n".join((registry.summary(name), *_in_two_lines(registry[name].facts)))]
        else:
            cells = [registry.signature(name).replace(",", ", "), registry.summary(name)]
        table.add_row(*map(Text, cells))
    return table


def _in_two_lines(facts: Any) -> tuple[str, str]:
    measured = facts.measured.replace("_", " ")
    return (
        f"{facts.paper}; {kind_of_algorithm(facts)}; measured {measured}",
        f"communication per round: {facts.communication}",
    )


def _lines(kind: Kind, name: str) -> Iterator[str]:
    registry = registry_of(kind)
    entry = registry[name]
    yield f"{registry.kind} {in_short(registry.signature(name))}"
    yield ""
    yield doc_of(entry) or "(not described)"
    if kind is Kind.algorithms:
        yield from facts_of(entry.facts)
    yield from settings_of(entry)
    if kind is Kind.algorithms and entry.presets:
        yield from ("", "presets (--preset NAME)")
        for preset, values in entry.presets.items():
            yield f"  {preset}: " + ", ".join(f"{key} = {value}" for key, value in values.items())
    if kind is Kind.data:
        model, partition = getattr(entry, "default_model", "mlp"), getattr(entry, "default_partition", "iid")
        yield from ("", f"default model: {model}, default partition: {partition}")
        needs_files = getattr(entry, "needs_files", False)
        yield "read from the folder --data-dir or COTERIE_DATA" if needs_files else "needs no files"
