"""The page in headless Chromium: the first paint with 200 runs, a step of the slider with 1,000 peers."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Row
from coterie.dashboard.server import Dashboard

RUNS, PEERS, LINKS, ROUNDS = 200, 1_000, 10_000, 12
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
_DRAWN = """
const look = () => { const main = document.getElementById("main");
  if (main && main.dataset.ready) requestAnimationFrame(() => { window.drawnAt = performance.now(); });
  else setTimeout(look, 2); };
look();
"""
_STEP = """
([place, round]) => new Promise((done) => {
  const slider = document.getElementById("round"), said = document.getElementById("links-said");
  const begun = performance.now();
  slider.value = String(place);
  slider.dispatchEvent(new Event("input"));
  const look = () => said.dataset.round === String(round)
    ? requestAnimationFrame(() => done(performance.now() - begun)) : setTimeout(look, 0);
  look();
})
"""


def first_paint() -> Iterator[Row]:
    """From opening the address until the table of runs is drawn; the server has read the folders."""
    with tempfile.TemporaryDirectory() as place, tab(_runs(Path(place))) as (page, url):
        times = []
        for _ in range(5):
            page.goto("about:blank")
            page.goto(url)
            page.wait_for_selector("main[data-ready]")
            page.wait_for_timeout(100)
            times.append(page.evaluate("window.drawnAt") / 1000)
        assert page.locator("tbody tr").count() == RUNS
    yield Row(
        f"the page: first paint with {RUNS} runs / 1 s, median", statistics.median(times), 1.0, 1.0, False
    )


def slider() -> Iterator[Row]:
    """A step to the next round, and a jump to one that the page has not asked for."""
    with tempfile.TemporaryDirectory() as place, tab(_large(Path(place))) as (page, url):
        page.goto(f"{url}#/run?id=large&kind=in+this+round&round=1")
        page.wait_for_selector("#links-said[data-round='1']", timeout=60_000)
        steps = []
        for number in range(2, ROUNDS):
            page.wait_for_timeout(500)  # the next round is fetched meanwhile
            steps.append(page.evaluate(_STEP, [number - 1, number]) / 1000)
        assert page.get_attribute("#links-said", "data-total") == str(LINKS)
        page.reload()
        page.wait_for_selector(f"#links-said[data-round='{ROUNDS - 1}']", timeout=60_000)
        jump = page.evaluate(_STEP, [0, 1]) / 1000
    what = f"{PEERS} peers, {LINKS} links"
    yield Row(
        f"the page: slider step with {what} / 50 ms, median", statistics.median(steps), 0.05, 1.0, False
    )
    yield Row(f"the page: slider jump with {what} / 50 ms", jump, 0.05, None, False)


@contextmanager
def tab(folder: Path) -> Iterator[tuple[Any, str]]:
    """A page of the dashboard on this folder."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        raise SystemExit("this benchmark needs chromium and playwright: pip install 'coterie[test]'")
    board = Dashboard(folder)
    board.runs.look()
    board.start()
    try:
        with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.add_init_script(_DRAWN)
            yield page, board.url
            browser.close()
    finally:
        board.stop()


def _runs(folder: Path) -> Path:
    """Small runs, each with its records."""
    for number in range(RUNS):
        _write(folder / f"run-{number}", 20, number, links=60)
    return folder


def _large(folder: Path) -> Path:
    _write(folder / "large", PEERS, 0, links=LINKS)
    return folder


def _write(folder: Path, peers: int, seed: int, links: int) -> None:
    """Records such as a run leaves, with random numbers: `links` of them in each round."""
    folder.mkdir(parents=True)
    rng, algorithm = np.random.default_rng(seed), ("d-psgd", "kin", "local")[seed % 3]
    lines = [f'algorithm = "{algorithm}"', f"peers = {peers}", f"rounds = {ROUNDS}", f"seed = {seed}"]
    (folder / "config.toml").write_text("\n".join([*lines, 'data = "digits"', ""]))
    rounds = [f"{number},0.1,{links},{links * 1000},0" for number in range(ROUNDS)]
    (folder / "rounds.csv").write_text("\n".join(["round,seconds,messages,bytes,hub_bytes", *rounds, ""]))
    scores = [
        f"{round},{peer},{rng.random():.4f},{rng.random():.4f}"
        for round in range(ROUNDS)
        for peer in range(peers)
    ]
    head = "round,peer,accuracy_after_local,accuracy_after_mixing"
    (folder / "metrics.csv").write_text("\n".join([head, *scores, ""]))
    whole = ["round,exchange,sender,receiver,bytes,delivered"]
    for round in range(ROUNDS):
        for link in range(links):  # each peer hears of as many others, none of them twice
            receiver, place = link % peers, link // peers
            sender = (receiver + 1 + place * 7 + round * 13 + seed) % peers
            sender = sender if sender != receiver else (sender + 3) % peers
            whole.append(f"{round},0,{sender},{receiver},1000,1")
    (folder / "links.csv").write_text("\n".join([*whole, ""]))
    people = [f"{peer},,60,0,20,{peer * 10 // peers}" for peer in range(peers)]
    (folder / "peers.csv").write_text("\n".join(["peer,name,train,validation,test,cluster", *people, ""]))
