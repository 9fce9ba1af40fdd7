"""Chromium as tests, benchmarks and screenshots start it: it keeps quiet, and asks nobody for anything."""

from __future__ import annotations

import shutil
from typing import Any

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]


def launch(playwright: Any) -> Any:
    return playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)


def show(tab: Any, url: str) -> None:
    """Open a view, and wait until it is drawn."""
    tab.goto("about:blank")
    tab.goto(url)
    tab.wait_for_selector("main[data-ready]")
