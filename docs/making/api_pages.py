"""The reference of what Python code may use: every public name, from its signature and docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import coterie
import coterie.testing

GROUPS = {
    "Run and read": ["simulate", "compare", "sweep", "open", "Run", "Experiment", "Training", "Observer"],
    "Data and graphs": [
        "load", "split", "from_arrays", "from_peers", "Source", "Federation", "Graph", "Topology",
        "sources", "partitions", "topologies",
    ],
    "Tasks": ["Task", "Metric"],
    "Write an algorithm": [
        "Algorithm", "ModelAlgorithm", "ModelState", "Facts", "Node", "Round", "Exchange", "pull", "Inbox",
        "Links", "Params", "average",
    ],
    "Errors": ["CoterieError"],
}  # fmt: skip


def page() -> str:
    parts = [
        "# Python",
        "Every public name, from the code itself. `import coterie` gives those of the first parts.",
    ]
    for title, names in groups().items():
        parts.append(f"## {title}")
        for name in names:
            parts += list(_entry(name, getattr(coterie, name), "coterie"))
    parts += ["## Test an algorithm under faults", _words(inspect.getdoc(coterie.testing) or "")]
    for name in coterie.testing.__all__:
        parts += list(_entry(name, getattr(coterie.testing, name), "coterie.testing"))
    return "\n\n".join(parts) + "\n"


def groups() -> dict[str, list[str]]:
    """Each public name once; one that no group has is shown among the others."""
    known = {name for names in GROUPS.values() for name in names}
    others = [name for name in coterie.__all__ if name not in known]
    return {**GROUPS, **({"Others": others} if others else {})}


def _entry(name: str, value: Any, module: str) -> Iterator[str]:
    yield f"### {module}.{name}"
    if inspect.isclass(value):
        yield _code(name, value)
        yield _words(_own_doc(value))
        for member, what in vars(value).items():
            yield from _member(member, what)
    elif callable(value) and hasattr(value, "__name__"):
        yield _code(name, value)
        yield _words(inspect.getdoc(value) or "")
    else:
        yield _words(_own_doc(value) if not hasattr(value, "__origin__") else "") or f"`{value}`"


def _member(name: str, what: Any) -> Iterator[str]:
    what = what.__func__ if isinstance(what, (classmethod, staticmethod)) else what
    is_property = isinstance(what, property) or hasattr(what, "func")  # also cached ones
    if name.startswith("_") or not (is_property or inspect.isfunction(what)):
        return
    doc = inspect.getdoc(what) or ""
    shown = f"`{name}`" if is_property else f"`{name}{_signature(what)}`"
    yield f"* {shown}" + (f"  \n    {_words(doc).replace(chr(10), chr(10) + '    ')}" if doc else "")


def _code(name: str, value: Any) -> str:
    return f"```python\n{name}{_signature(value, wide=True)}\n```"


def _signature(value: Any, wide: bool = False) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(found))
    text = re.sub(r"<factory>", "...", text).replace("(self, ", "(").replace("(self)", "()")
    if wide and len(text) > 90:
        inside = ",\n".join(f"    {one}" for one in _arguments(text))
        return f"(\n{inside},\n){text[text.rindex(')') + 1 :] if ' -> ' in text else ''}"
    return text


def _arguments(text: str) -> list[str]:
    """What stands between the outer brackets, split at the commas that are not within others."""
    depth, parts, end = 0, [""], text.rindex(")", 0, text.rfind(" -> ") if " -> " in text else None)
    for letter in text[1:end]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _own_doc(value: Any) -> str:
    """Not the signature that a dataclass has in the place of a docstring."""
    doc = vars(type(value) if not inspect.isclass(value) else value).get("__doc__") or ""
    name = getattr(value, "__name__", "")
    return "" if name and doc.startswith(f"{name}(") else inspect.cleandoc(doc)


def _words(doc: str) -> str:
    """Sentences as they are; what is indented, or tried at a prompt, is code."""
    parts = []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith("    "):
            parts.append(f"```python\n{inspect.cleandoc(paragraph)}\n```")
        elif paragraph.startswith(">>> "):
            parts.append(f"```pycon\n{paragraph}\n```")
        else:
            text = re.sub(r"([*_<|])", r"\\\1", paragraph) if "`" not in paragraph else paragraph
            parts.append(re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](\1.md)", text))
    return "\n\n".join(parts)
