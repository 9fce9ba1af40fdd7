"""The screenshots of docs/: run it from the repository's root when the page has changed.

    python docs/making/screenshots.py

It runs the demo and a sweep in a temporary folder, opens the page in Chromium, and writes small PNG files.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from coterie.dashboard.server import Dashboard

DOCS = Path(__file__).resolve().parents[1]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
WIDE, PHONE = (1280, 900), (360, 740)
COLOURS = 128  # of a file: a page has few, and it stays small


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        make_runs(Path(place))
        os.chdir(place)  # so that the page says: runs
        board = Dashboard(Path("runs"))
        board.runs.look()
        board.start()
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
                for name, view, size, scheme, part in SHOTS:
                    shoot(browser, f"{board.url}#/{view}", size, scheme, part, DOCS / name)
                browser.close()
        finally:
            board.stop()


SHOTS: tuple[tuple[str, str, tuple[int, int], str, str], ...] = (
    ("dashboard.png", "run?id=demo%2Fkin&kind=so+far", WIDE, "light", "h2:has-text('Who learned')"),
    ("dashboard-run.png", "run?id=demo%2Fkin", WIDE, "light", ""),
    ("dashboard-runs.png", "runs?open=sweep", WIDE, "light", ""),
    ("dashboard-compare.png", "compare?ids=demo", WIDE, "dark", ""),
    ("dashboard-phone.png", "run?id=demo%2Fkin", PHONE, "dark", ""),
)
"""File, view, size, colours, and the heading of the part that is shown; empty: the first screen."""
_UNTIL_THE_NEXT = """one => {
  const top = (node) => node.getBoundingClientRect().top + scrollY;
  const all = [...document.querySelectorAll("h2")];
  return { y: top(one) - 12, height: top(all[all.indexOf(one) + 1]) - top(one) };
}"""


def make_runs(folder: Path) -> None:
    def coterie(*arguments: str) -> None:
        command = [sys.executable, "-m", "coterie", *arguments, "--quiet"]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ})

    coterie("demo")
    (made,) = (folder / "runs").iterdir()
    made.rename(folder / "runs" / "demo")
    over = ["--over", "algorithm=local,d-psgd", "--over", "training.lr=0.01,0.1"]
    coterie("sweep", *over, "--peers", "8", "--rounds", "8", "--seeds", "2", "--out", "runs/sweep")
    coterie("run", "--algorithm", "dfedpgp", "--rounds", "20", "--run-dir", "runs/first")
    (folder / "runs" / "first" / "result.json").unlink()  # as if it had been interrupted


def shoot(browser: Any, url: str, size: tuple[int, int], scheme: str, part: str, path: Path) -> None:
    tab = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    tab.goto(url)
    tab.set_default_timeout(120_000)  # on a busy machine
    tab.wait_for_selector("main[data-ready]")
    if "run?" in url:
        tab.wait_for_selector("#links-said[data-total]")  # graph and map are there
    tab.wait_for_timeout(500)
    clip = {"x": 0, "width": size[0], **tab.locator(part).evaluate(_UNTIL_THE_NEXT)} if part else None
    picture = Image.open(io.BytesIO(tab.screenshot(clip=clip, full_page=bool(part)))).convert("RGB")
    picture = picture.quantize(COLOURS)
    picture.save(path, optimize=True)
    tab.close()


if __name__ == "__main__":
    main()
