"""What is known of an entry of the catalogue: its docstring, facts and settings."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any

from coterie.catalogue import algorithms
from coterie.registry import hints_of, parse_call, readable
from coterie.user_code import is_file_reference


def of_algorithm(name: str) -> list[str]:
    """Equations, facts and settings of a method of the catalogue; nobody's own file is run to tell."""
    bare = parse_call(name)[0]
    if is_file_reference(bare) or bare not in algorithms:
        return [f"{name} is an algorithm of your own: coterie explain {name}"]
    entry: Any = algorithms[bare]
    return [doc_of(entry) or "(not described)", *facts_of(entry.facts), *settings_of(entry)]


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


def doc_of(entry: Any) -> str:
    """Its own, not that of torch.nn.Module or of a value's type."""
    if not (inspect.isclass(entry) or inspect.isroutine(entry)):
        return ""
    own = vars(entry).get("__doc__") if inspect.isclass(entry) else entry.__doc__
    return inspect.cleandoc(own or "")


def facts_of(facts: Any) -> Iterator[str]:
    yield ""
    yield f"paper:         {facts.paper}"
    yield f"kind:          {kind_of_algorithm(facts)}"
    yield f"measured:      {facts.measured.replace('_', ' ')} (both points are always recorded)"
    yield f"communication: {facts.communication}"
    if facts.symmetric_only:
        yield "topology:      only links that go both ways"
    if facts.validation:
        yield "data:          needs validation data (splitting.validation; 0.2 unless it is set)"
    if facts.architectures:
        yield "models:        peers may have different ones (the experiment's `models`)"


def settings_of(entry: Any) -> Iterator[str]:
    parameters = list(inspect.signature(entry).parameters.values())
    if not parameters:
        return
    hints, meanings = hints_of(entry, "settings"), meanings_of(entry)
    yield from ("", "settings")
    width = max(len(p.name) for p in parameters)
    for p in parameters:
        several = p.kind is inspect.Parameter.VAR_POSITIONAL
        default = "required" if p.default is p.empty else f"default {p.default!r}"
        wanted = readable(hints[p.name]) if p.name in hints else "any"
        meaning = f"  ({meanings[p.name]})" if p.name in meanings else ""
        yield f"  {p.name:{width}}  {wanted}, {'any number of them' if several else default}{meaning}"


def meanings_of(entry: Any) -> dict[str, str]:
    """The comment behind each field of a dataclass and of those it inherits from; none without the source."""
    found: dict[str, str] = {}
    kinds = inspect.getmro(entry) if inspect.isclass(entry) and dataclasses.is_dataclass(entry) else ()
    for kind in reversed(kinds):
        with contextlib.suppress(OSError, TypeError, SyntaxError, tokenize.TokenError):
            source = textwrap.dedent(inspect.getsource(kind))
            tokens = tokenize.generate_tokens(io.StringIO(source).readline)
            comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
            for line in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
                if isinstance(line, ast.AnnAssign) and line.end_lineno in comments:
                    found[ast.unparse(line.target)] = comments[line.end_lineno]
    return found
