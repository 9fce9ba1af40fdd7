"""The site in a real browser, from disk: all can read it, on any screen, and it asks nobody for anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
PAGES = ["index.html", "tutorial.html", "choosing.html", "algorithms/kin.html"]
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "preload": False}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab of some width and scheme, in which no error may happen, and which may ask nobody."""
    width, scheme = getattr(request, "param", (1280, "light"))
    context, problems = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme), []
    opened = context.new_page()
    opened.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda asked: None if asked.url.startswith("file:") else problems.append(asked.url))
    yield opened
    context.close()
    assert problems == []


@pytest.mark.parametrize("tab", [(1280, "light"), (360, "dark")], indirect=True, ids=["wide", "narrow"])
def test_pages_fit_and_axe_finds_nothing(tab: Page, site: Path) -> None:
    for name in PAGES:
        tab.goto((site / name).as_uri())
        assert tab.evaluate(TOO_WIDE) <= 0, name
        found = Axe().run(tab, options=RULES).response["violations"]
        assert not found, f"{name}: {[(one['id'], one['nodes'][0]['html']) for one in found]}"


def test_pictures_are_there_and_have_a_text(tab: Page, site: Path) -> None:
    for name in ("index.html", "examples/tour.html", "reproductions.html"):
        tab.goto((site / name).as_uri())
        pictures = tab.locator(".md-content img")
        assert pictures.count() > 0
        for number in range(pictures.count()):
            assert pictures.nth(number).get_attribute("alt")
            assert (
                pictures.nth(number).evaluate("picture => picture.decode().then(() => picture.naturalWidth)")
                > 0
            )


def test_the_search_works_from_disk(tab: Page, site: Path) -> None:
    tab.goto((site / "algorithms" / "kin.html").as_uri())
    tab.click(".md-search__input")
    tab.keyboard.type("sealed sum")
    tab.wait_for_selector(".md-search-result__item")
    first = tab.locator(".md-search-result__link").first
    assert "sealed" in first.inner_text().lower()
