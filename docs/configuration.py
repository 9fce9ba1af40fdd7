"""Writes docs/configuration.md, the reference of all keys of an experiment, from the schema itself.

python docs/configuration.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from coterie.experiments.setup.schema import Experiment
from coterie.registry import readable
from coterie.toml_tables import Key, is_schema, keys

_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "section"}
PAGE = Path(__file__).with_suffix(".md")
INTRODUCTION = """\
# All keys of an experiment

The same keys work in a TOML file (`--config`), on the command line (`--set training.lr=0.1`, and as flags
where there are any), in a sweep (`--over training.lr=0.01,0.1`) and in Python
(`coterie.simulate(training={"lr": 0.1})`). An unknown key gets the nearest valid one. `coterie explain
training.lr` prints what stands here; `coterie explain ALGORITHM` has the keys of `settings`, which differ
from method to method.

This page is written by `python docs/configuration.py` from the schema.
"""


def reference() -> str:
    """The page: keys without a section first, then each section with its own."""
    every = list(keys(Experiment))
    sections = [key for key in every if is_schema(key.kind)]
    parts = [INTRODUCTION, *_table([key for key in every if "." not in key.name and key not in sections])]
    for section in sections:
        inside = [key for key in every if key.name.startswith(f"{section.name}.")]
        parts += [f"\n## {section.name}\n", f"{section.description}\n", *_table(inside)]
    return "\n".join(parts) + "\n"


def _table(rows: list[Key]) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for key in rows:
        cells = (f"`{key.name}`", _kind(key.kind), _default(key), _escaped(key.description))
        yield f"| {' | '.join(cells)} |"


def _kind(hint: Any) -> str:
    """The type of a value in words; what may be left out is not said."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part not in (type(None), ...)]
    if origin is Literal:
        return " or ".join(f"`{word}`" for word in parts)
    if origin is Annotated:
        return _kind(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_kind, parts))
    if origin in (tuple, list):
        return f"list of {_kind(parts[0])}"
    return _WORDS.get(origin or hint) or readable(hint)


def _default(key: Key) -> str:
    return "" if key.default in (None, "", (), {}, []) else f"`{_escaped(str(key.default))}`"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
