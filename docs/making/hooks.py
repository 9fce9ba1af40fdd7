"""What mkdocs calls while it builds the site: pages from elsewhere, links between them, and a last check."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import algorithm_pages
import api_pages
import example_pages
import notebook_pages
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")  # pages at the top of the repository
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object|link)\b[^>]*?\b(?:src|href|data)\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(\s*["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)""",
    re.IGNORECASE,
)


def on_config(config: Any) -> Any:
    """Fill the sections of the navigation whose pages are made here."""
    _put(config["nav"], "Examples", example_pages.addresses())
    _put(config["nav"], "Algorithms", algorithm_pages.addresses())
    return config


def _put(nav: list[Any], section: str, names: list[Any]) -> None:
    (place,) = (entry for entry in nav if section in entry)
    place[section] = [*names, *(place[section] or [])]


def on_files(files: Files, config: Any) -> Files:
    outside = {name: (ROOT / name).read_text(encoding="utf-8") for name in OUTSIDE}
    made = {**example_pages.pages(), **notebook_pages.pages(), **algorithm_pages.pages()}
    made["api.md"] = api_pages.page()
    for name, text in {**outside, **made}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return links_of_site(markdown, outside=page.file.src_uri in OUTSIDE)


def links_of_site(markdown: str, outside: bool) -> str:
    """Links as the site has them: on disk, some pages are at the top of the repository and most in docs."""
    if outside:
        return re.sub(r"\]\(docs/", "](", markdown)
    names = "|".join(map(re.escape, OUTSIDE))
    markdown = re.sub(rf"\]\(\.\./({names})", r"](\1", markdown)
    return re.sub(r"\]\(\.\./examples/(\w+)\.(?:py|ipynb)\)", r"](examples/\1.md)", markdown)


def on_post_page(output: str, **_: Any) -> str:
    """The theme gives the search no name, which screen readers need."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def on_post_build(config: Any) -> None:
    found = [line for path in _pages(Path(config["site_dir"])) for line in asked_elsewhere(path)]
    if found:
        raise PluginError("pages load something from another host:\n" + "\n".join(found))


def asked_elsewhere(path: Path) -> list[str]:
    """What a browser would load from another host when it opens this page or style sheet."""
    text = path.read_text(encoding="utf-8")
    return [f"{path}: {next(filter(None, match.groups()))}" for match in _LOADED.finditer(text)]


def _pages(site: Path) -> list[Path]:
    return [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css", ".svg")]
