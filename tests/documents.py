"""The blocks of a Markdown document, for tests that carry out what it says.

A block of code after a line that ends in a file's name and a colon, such as "Save this as `own.py`:", is that
file. A block without a kind holds commands: either one in each line, or those after $, each followed by what
it prints; a line of three dots stands for lines that are left out. A block of kind `text` is what something
printed.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n\s*\n(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)\n *```", re.DOTALL
)
_FILE = re.compile(r"`(?P<file>[\w./-]+\.\w+)`(?:, in `(?P<place>\w+)`)?:$")


@dataclass(frozen=True)
class Block:
    """One block of a document."""

    kind: str  # python, toml, text, or empty: commands
    text: str
    file: str  # whose content it is; empty: nothing says so
    place: str  # where in that file it belongs; empty: it is all of it


@dataclass(frozen=True)
class Shown:
    """A command of a document, and what it is said to print."""

    arguments: list[str]
    lines: list[str]

    def missing_from(self, output: str) -> list[str]:
        """The words that the document shows and the output lacks; numbers may differ from run to run."""
        printed = set(_words(output))
        return [word for line in self.lines for word in _words(line) if word not in printed]


def blocks(document: Path) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        named = _FILE.search(match["before"])
        file, place = (named["file"], named["place"] or "") if named else ("", "")
        found.append(Block(match["kind"], textwrap.dedent(match["text"]) + "\n", file, place))
    return found


def commands(block: Block) -> list[Shown]:
    """The commands of a block; a backslash at the end goes on in the next line."""
    if block.kind:
        return []
    found: list[Shown] = []
    lines = block.text.replace("\\\n", " ").splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return [Shown(shlex.split(line, comments=True), []) for line in lines if line.strip()]
    for line in lines:
        if line.startswith("$ "):
            found.append(Shown(shlex.split(line[2:], comments=True), []))
        elif found and line.strip() != "...":
            found[-1].lines.append(line)
    return found


def _words(text: str) -> list[str]:
    """Without fingerprints, which differ like numbers."""
    text = re.sub(r"\b[0-9A-F]{2}(:[0-9A-F]{2})+", "", text)
    return re.findall(r"[A-Za-z][A-Za-z-]+", text)
