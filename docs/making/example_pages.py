"""A page for each file of examples/: what its docstring says, and the file."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def pages() -> dict[str, str]:
    """Markdown by address; the first is the overview."""
    texts = {f"examples/{path.stem}.md": page_of(path) for path in sorted(EXAMPLES.glob("*.py"))}
    lines = [f"* [{title_of(text)}]({Path(name).name})" for name, text in texts.items()]
    tours = [f"* [{title_of_notebook(path)}]({path.stem}.md), a notebook" for path in notebooks()]
    overview = [
        "# Examples",
        "Programs to copy from. Each is one file, works offline, and is run by the tests at small scale.",
        "\n".join([*tours, *lines]),
    ]
    return {"examples/index.md": "\n\n".join(overview) + "\n", **texts}


def addresses() -> list[str | dict[str, str]]:
    """The overview, notebooks, and programs, by short names."""
    names = [path.stem for path in (*notebooks(), *sorted(EXAMPLES.glob("*.py")))]
    return ["examples/index.md", *({_short(name): f"examples/{name}.md"} for name in names)]


def _short(name: str) -> str:
    words = name.replace("_", " ").replace("auc", "by AUC").replace("latex", "LaTeX")
    return words[0].upper() + words[1:]


def notebooks() -> list[Path]:
    return sorted(EXAMPLES.glob("*.ipynb"))


def title_of_notebook(path: Path) -> str:
    """The heading that its first cell begins with."""
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    return str(first["source"][0]).strip("# \n")


def page_of(path: Path) -> str:
    """The first sentence of the docstring is the title; what is indented there are commands."""
    code = path.read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(code)) or path.stem
    title, _, rest = said.partition("\n")
    body = "\n\n".join(_paragraph(text) for text in rest.strip("\n").split("\n\n"))
    return f"# {title.rstrip('.')}\n\n{body}\n\n`examples/{path.name}`:\n\n```python\n{code}```\n"


def title_of(page: str) -> str:
    return page.partition("\n")[0].removeprefix("# ")


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return f"```\n{textwrap.dedent(text)}\n```"
    return re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](../\1.md)", text)
