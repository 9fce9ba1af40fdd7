"""A page for each notebook of examples/: its cells are run when the site is built."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from example_pages import notebooks

matplotlib.use("Agg")
import matplotlib.pyplot as plt


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook, and what it printed and drew when it was run."""

    kind: str  # markdown or code
    text: str
    printed: str = ""
    pictures: tuple[bytes, ...] = ()  # PNG


def run(path: Path) -> Iterator[Cell]:
    """Each cell after the other, in one namespace, as a kernel would; the first that fails ends it."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(text, f"{path.name}, cell {number}", "exec"), names)
            yield Cell("code", text, printed.getvalue(), _drawn())
        else:
            yield Cell(cell["cell_type"], text)


def _drawn() -> tuple[bytes, ...]:
    """The figures that are open, as a notebook shows them after a cell; they are closed."""
    pictures = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", dpi=110)
        pictures.append(file.getvalue())
    plt.close("all")
    return tuple(pictures)


def pages() -> dict[str, str | bytes]:
    """Markdown and pictures by address."""
    found: dict[str, str | bytes] = {}
    for path in notebooks():
        parts = []
        for cell in run(path):
            parts += list(_parts(cell))
            for picture in cell.pictures:
                name = f"{path.stem}-{len(found)}.png"
                found[f"examples/{name}"] = picture
                parts.append(f"![What the cell above draws]({name})")
        title, _, text = "\n\n".join(parts).partition("\n\n")
        said = f"This page is `examples/{path.name}`, run when the site was built."
        found[f"examples/{path.stem}.md"] = f"{title}\n\n{said}\n\n{text}\n"
    return found


def _parts(cell: Cell) -> Iterator[str]:
    if cell.kind == "markdown":
        text = re.sub(r"`examples/(\w+)\.py`", r"[\1](\1.md)", cell.text)
        yield re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](../\1.md)", text)
        return
    yield f"```python\n{cell.text}\n```"
    if cell.printed:
        yield f"```text\n{cell.printed}```"
