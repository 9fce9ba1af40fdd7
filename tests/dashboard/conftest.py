"""A browser, and a tab in which nothing may go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from in_browser import CHROMIUM, launch
from playwright.sync_api import Page, sync_playwright


@pytest.fixture(scope="module")  # not longer: its event loop would be in the way of other tests
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with sync_playwright() as playwright:
        opened = launch(playwright)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Page]:
    """A tab in which no error may happen, and which may ask nobody but this machine."""
    opened, problems = browser.new_page(viewport={"width": 1280, "height": 900}), []
    opened.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "request",
        lambda asked: (
            problems.append(asked.url)
            if not asked.url.startswith(("http://127.0.0.1:", "file:", "data:", "about:"))
            else None
        ),
    )
    yield opened
    opened.close()
    assert problems == []
