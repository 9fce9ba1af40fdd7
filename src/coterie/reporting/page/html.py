"""The page as HTML: of the dashboard, whose data come from its server, and of a report, which holds them."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

_SCRIPTS, _STYLES = ("uplot.js", "pictures.js", "page.js"), ("uplot.css", "page.css")
_HEAD = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
_VIEW = (
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
)
_BODY = """</head>
<body>
<a class="skip" href="#main">to the content</a>
<header><strong>Coterie</strong>{links}</header>
<main id="main" tabindex="-1"><h1>Coterie</h1><p>Reading ...</p></main>
<footer>{footer}</footer>
"""
_LINKS = '<nav aria-label="Views"><a href="#/runs">Runs</a> <a href="#/peers">Real peers</a></nav>'
_LINKS += '<span id="live"></span>'
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@functools.cache
def asset(name: str) -> bytes | None:
    """A file of the page; None if it has none of that name."""
    if name not in (*_SCRIPTS, *_STYLES):
        return None
    return files("coterie.reporting.page").joinpath("assets", name).read_bytes()


def page() -> str:
    """The dashboard's."""
    styles = "".join(f'<link rel="stylesheet" href="/assets/{n}">\n' for n in _STYLES)
    body = _BODY.format(links=_LINKS, footer="Nothing on this page leaves this machine.")
    scripts = "".join(f'<script src="/assets/{name}"></script>\n' for name in _SCRIPTS)
    return f"{_HEAD}{_VIEW}<title>Coterie</title>\n{styles}{body}{scripts}</body>\n</html>\n"


def report_page(title: str, start: dict[str, Any], data: dict[str, Any]) -> str:
    """Everything in one file. start: the view that it opens with; data: answers, by their addresses."""
    styles = "".join(f"<style>{_text(name)}</style>\n" for name in _STYLES)
    stored = _escaped(json.dumps({"start": start, "data": data}, allow_nan=False, separators=(",", ":")))
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    link = '<nav aria-label="Views"><a href="#/">Start of this report</a></nav>'
    body = _BODY.format(links=link, footer="A report of Coterie; it asks nothing of any server.")
    scripts = f'<script type="application/json" id="data">{stored}</script>\n'
    scripts += "".join(f"<script>{_text(name)}</script>\n" for name in _SCRIPTS)
    name = title.replace("&", "&amp;").replace("<", "&lt;")
    return f"{_HEAD}{policy}{_VIEW}<title>{name}</title>\n{styles}{body}{scripts}</body>\n</html>\n"


def _text(name: str) -> str:
    content = asset(name)
    assert content is not None
    return content.decode()


def _escaped(text: str) -> str:
    """So that nothing in it ends the block."""
    return text.replace("<", "\\u003c")
