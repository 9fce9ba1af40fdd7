"""The options that describe an experiment, shared by `run`, `compare` and `data show`.

Precedence: TOML file < flags < --set. Paths in the file start from the file's folder, paths in flags from
the current one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.completing import names_of
from coterie.errors import ConfigError
from coterie.experiments.setup.config import inline_settings, override, with_absolute_paths
from coterie.registry import parse_call
from coterie.toml_tables import load_toml, merged


def _option(kind: Any, help: str, *, metavar: str | None = None, offer: str = "") -> Any:
    """offer: the kind of names that a shell completes it with."""
    offered = names_of(offer) if offer else None
    return Annotated[
        kind | None, typer.Option(help=help, metavar=metavar, show_default=False, autocompletion=offered)
    ]


_FLAGS: dict[str, tuple[str, Any]] = {
    "algorithm": (
        "algorithm",
        _option(
            str,
            "Algorithm, such as d-psgd, random-gossip(3) or file.py:Class.",
            metavar="NAME",
            offer="algorithms",
        ),
    ),
    "data": (
        "data",
        _option(
            str,
            "Data: digits, mnist, ...; ward.csv, wards/*.csv; file.py:function.",
            metavar="NAME",
            offer="sources",
        ),
    ),
    "data_dir": ("data_dir", _option(str, "Folder of data files; default: COTERIE_DATA.", metavar="DIR")),
    "model": ("model", _option(str, "Model: mlp, ... or file.py:Class.", metavar="NAME", offer="models")),
    "task": ("task", _option(str, "What is learned, such as regression.", metavar="NAME", offer="tasks")),
    "partition": (
        "partition",
        _option(str, "Partition, such as dirichlet(0.3).", metavar="NAME", offer="partitions"),
    ),
    "topology": (
        "topology",
        _option(str, "Topology, such as ring or edges(file).", metavar="NAME", offer="topologies"),
    ),
    "peers": ("peers", _option(int, "Number of peers; default 20.")),
    "rounds": ("rounds", _option(int, "Number of rounds; default 20.")),
    "seed": ("seed", _option(int, "Seed of everything random; default 0.")),
    "preset": ("preset", _option(str, "Named settings of the algorithm.", metavar="NAME")),
    "lr": ("training.lr", _option(float, "Learning rate (training.lr).")),
    "epochs": ("training.epochs", _option(int, "Local epochs per round (training.epochs).")),
    "batch_size": ("training.batch_size", _option(int, "Mini-batch size (training.batch_size).")),
    "work": (
        "training.work",
        _option(
            str,
            "Local work: own, as each method counts, or equal, the default of compare and sweep.",
            metavar="NAME",
        ),
    ),
    "executor": ("execution.executor", _option(str, "auto, stacked or looped.", metavar="NAME")),
    "engine": (
        "execution.engine",
        _option(str, "local, ray, or the address ray://head:10001.", metavar="NAME"),
    ),
    "workers": (
        "execution.workers",
        _option(int, "Worker threads, or processes of Ray; default: all cores."),
    ),
    "force": (
        "execution.force",
        Annotated[
            bool | None,
            typer.Option("--force", help="Run also if too little memory is free.", show_default=False),
        ],
    ),
}
DATA_FLAGS = ("task", "data", "data_dir", "partition", "peers", "seed")
_CONFIG = Annotated[
    Path | None,
    typer.Option("--config", help="The experiment's TOML file.", metavar="FILE", show_default=False),
]
_SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any key of the TOML file, such as training.lr=0.1; repeatable.",
        metavar="KEY=VALUE",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Asked:
    """What the user said about an experiment."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    config: Path | None = None
    sets: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """The options that were given, as the user writes them."""
        given = [f"--{name.replace('_', '-')}" for name in self.flags]
        return [*given, *(["--config"] if self.config else []), *(["--set"] if self.sets else [])]

    def refuse_with(self, option: str, *more: str) -> None:
        """Fail if anything was said about the experiment, because `option` says it all."""
        names = [*self.names(), *more]
        if names:
            raise ConfigError(
                f"{option} takes the whole experiment from its folder; leave out {', '.join(names)}"
            )

    def table(self, algorithm: str | None = None) -> dict[str, Any]:
        """The experiment as one table; `algorithm` replaces what was asked for."""
        table: dict[str, Any] = {}
        if self.config is not None:
            table = with_absolute_paths(load_toml(self.config), self.config.resolve().parent)
        said: dict[str, Any] = {}
        for name, value in self.flags.items():
            _put(said, _FLAGS[name][0].split("."), value)
        if algorithm is not None:
            said["algorithm"] = algorithm
        said = with_absolute_paths(said, Path.cwd())
        if "algorithm" in said:
            _choose_algorithm(table, said)
        for assignment in self.sets:
            override(said, assignment)
        return merged(table, with_absolute_paths(said, Path.cwd()))


def experiment_options(
    *names: str, without: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: give a command the experiment's options and pass them to it as one `asked`."""
    chosen = [name for name in names or _FLAGS if name not in without]
    shared: dict[str, Any] = {name: _FLAGS[name][1] for name in chosen}
    shared |= {"config": _CONFIG, "sets": _SET}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**values: Any) -> None:
            flags = {name: values.pop(name) for name in chosen}
            given = {name: value for name, value in flags.items() if value is not None}
            sets = tuple(values.pop("sets") or ())
            command(asked=Asked(given, values.pop("config"), sets), **values)

        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != "asked"]
        kind = inspect.Parameter.KEYWORD_ONLY
        options = [inspect.Parameter(n, kind, default=None, annotation=a) for n, a in shared.items()]
        parameters = [*(p for p in own if p.kind is not kind), *options, *(p for p in own if p.kind is kind)]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
        return wrapped

    return decorate


def _choose_algorithm(table: dict[str, Any], said: dict[str, Any]) -> None:
    """An algorithm in a flag: its settings beat the file's, and the file's are not for another algorithm."""
    name, inline = inline_settings(said["algorithm"])
    if name != parse_call(str(table.get("algorithm", "local")), "algorithm")[0]:
        for belongs_to_another in ("algorithm", "settings", "preset"):
            table.pop(belongs_to_another, None)
    elif "algorithm" in table:
        said["algorithm"] = table["algorithm"]  # with the file's own inline settings
    if inline:
        said["settings"] = inline


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        table = table.setdefault(part, {})
    table[path[-1]] = value
