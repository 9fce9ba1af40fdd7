"""The page in a real browser: every view opens and shows the numbers that the records have."""

from __future__ import annotations

import csv
import gzip
import http.client
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from in_browser import show
from playwright.sync_api import Page
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.dashboard.server import Dashboard
from coterie.reporting.page.found import FoundRuns
from coterie.reporting.page.html import asset, page
from coterie.reporting.page.report import write_report


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison, a damaged run and one of another version."""
    root = tmp_path_factory.mktemp("page") / "runs"
    small = {"partition": "rotations(2)", "topology": "full", "peers": 6, "rounds": 4, "model": "mlr"}
    coterie.compare(["oracle", "d-psgd"], **small, run_dir=root / "both")  # type: ignore[arg-type]
    shutil.copytree(root / "both" / "oracle", root / "older")
    text = (root / "older" / "environment.json").read_text()
    (root / "older" / "environment.json").write_text(text.replace('"coterie": "', '"coterie": "0.0.'))
    shutil.copytree(root / "both" / "oracle", root / "damaged")
    (root / "damaged" / "result.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def board(runs: Path) -> Iterator[Dashboard]:
    made = Dashboard(runs)
    made.runs.look()
    made.start()
    yield made
    made.stop()


def test_the_runs_are_listed_with_what_is_wrong(tab: Page, board: Dashboard) -> None:
    show(tab, f"{board.url}#/runs?open=both")
    assert "result.json cannot be read" in tab.inner_text("tr[data-id=damaged]")
    oracle = board.runs.run("both/oracle")
    shown = float(tab.get_attribute("tr[data-id='both/oracle']", "data-score") or "nan")
    assert shown == pytest.approx(float(oracle.run.reported.mean()), abs=1e-6)
    tab.fill("input[type=search]", "d-psgd")
    assert tab.locator("tbody tr").count() == 2  # the comparison, and its run
    assert "q=d-psgd" in tab.evaluate("location.href")


def recorded(folder: Path, last: int) -> tuple[int, float]:
    """From the CSV files alone: links of the first rounds, and the mean share inside clusters."""
    with open(folder / "peers.csv", newline="") as file:
        cluster = {line["peer"]: line["cluster"] for line in csv.DictReader(file)}
    counts: dict[str, Counter[str]] = {}
    with open(folder / "links.csv", newline="") as file:
        for line in csv.DictReader(file):
            if int(line["round"]) < last and line["delivered"] == "1":
                counts.setdefault(line["receiver"], Counter())[line["sender"]] += 1
    shares = [
        sum(n for sender, n in heard.items() if cluster[sender] == cluster[receiver]) / heard.total()
        for receiver, heard in counts.items()
    ]
    return sum(len(heard) for heard in counts.values()), sum(shares) / len(shares)


@pytest.mark.parametrize("name", ["oracle", "d-psgd"])
def test_the_slider_shows_what_the_records_have(name: str, tab: Page, board: Dashboard, runs: Path) -> None:
    show(tab, f"{board.url}#/run?id=both%2F{name}&kind=so+far")
    tab.wait_for_selector("#links-said[data-total]")
    for place in (0, 3, 1):
        tab.locator("#round").fill(str(place))
        tab.wait_for_selector(f"#links-said[data-round='{place + 1}']")
        total, inside = recorded(runs / "both" / name, place + 1)
        assert tab.get_attribute("#links-said", "data-total") == str(total)
        shown = float(tab.get_attribute("#links-said", "data-inside") or "nan")
        assert shown == pytest.approx(inside, abs=1e-4)
    with open(runs / "both" / name / "metrics.csv", newline="") as file:
        mine = [line for line in csv.DictReader(file) if line["round"] == "3"]
    with open(runs / "both" / "local" / "metrics.csv", newline="") as file:
        alone = [line for line in csv.DictReader(file) if line["round"] == "3"]
    point = {"oracle": "accuracy_after_local", "d-psgd": "accuracy_after_mixing"}[name]
    own = [
        float(line[point]) - float(other["accuracy_after_local"])
        for line, other in zip(mine, alone, strict=True)
    ]
    assert tab.get_attribute("#peers", "data-hurt") == str(sum(gain < 0 for gain in own))
    assert tab.get_attribute("#peers", "data-helped") == str(sum(gain > 0 for gain in own))


def test_the_pointer_is_told_what_it_is_at(tab: Page, board: Dashboard) -> None:
    """Two clusters of three: with the oracle, a peer receives as much from each of its two mates."""
    show(tab, f"{board.url}#/run?id=both%2Foracle&kind=so+far")
    tab.wait_for_selector("#links-said[data-total]")
    run = board.runs.one("both/oracle")
    first, second, *_ = run["links"]["order"]
    map_ = tab.locator("canvas[aria-label^='Heat map']")
    frame = 26  # pixels: names of peers, and the strip of the clusters
    side = (int(map_.evaluate("one => one.clientWidth")) - frame) / run["peers"]
    map_.hover(position={"x": frame + 1.5 * side, "y": frame + 0.5 * side})
    assert tab.inner_text("#tip") == f"peer {first} learned 50.0 % from peer {second}"
    graph = tab.locator("canvas[aria-label^='Graph of who']")
    x, y = run["links"]["positions"][first]
    size = graph.evaluate("one => one.clientWidth")
    graph.hover(position={"x": x * size, "y": y * size})
    assert tab.inner_text("#tip").startswith(f"peer {first} learned from ")
    assert tab.inner_text("#tip").count("(50.0 %)") == 2
    best = run["gains"]["order"][0]
    tab.locator("#peers").hover(position={"x": 70, "y": 60})
    assert tab.inner_text("#tip").startswith(f"peer {best}: ")
    tab.mouse.move(2, 2)
    assert not tab.is_visible("#tip")


def cells(tab: Page, summary: str) -> list[list[str]]:
    """The table twin of a picture, as it is shown."""
    box = tab.locator(f"details:has(> summary:text-is('The numbers as a table: {summary}'))").first
    box.locator("summary").click()
    box.locator("tbody tr").first.wait_for()
    rows = "all => all.map((row) => [...row.cells].map((one) => one.innerText))"
    found: list[list[str]] = box.locator("tbody tr").evaluate_all(rows)
    return found


def test_every_picture_has_a_table_with_the_numbers_of_the_records(
    tab: Page, board: Dashboard, runs: Path
) -> None:
    folder = runs / "both" / "d-psgd"
    show(tab, f"{board.url}#/run?id=both%2Fd-psgd&kind=so+far")
    tab.wait_for_selector("#links-said[data-total]")
    for figure in tab.locator("figure:has([role=img])").all():
        there = figure.locator("details").count() or figure.locator("xpath=../..").locator("details").count()
        assert there, figure.inner_text()
    with open(folder / "peers.csv", newline="") as file:
        people = list(csv.DictReader(file))
    classes = [name for name in people[0] if name.startswith("class ")]
    assert cells(tab, "labels") == [[one["peer"], *(one[name] for name in classes)] for one in people]
    with open(folder / "links.csv", newline="") as file:
        links = list(csv.DictReader(file))
    sent: Counter[str] = Counter()
    for line in links:
        sent[line["sender"]] += int(line["bytes"])
    assert {row[0] for row in cells(tab, "bytes by peer")} == set(sent)
    (size,) = set(sent.values())  # each peer sends the same model to all others
    assert tab.get_attribute("#traffic", "data-busiest") == str(size)
    messages = Counter((f"peer {line['sender']}", f"peer {line['receiver']}") for line in links)
    assert {(row[0], row[1]): int(row[3]) for row in cells(tab, "bytes by link")} == messages
    with open(folder / "metrics.csv", newline="") as file:
        first = [
            float(line["accuracy_after_mixing"]) for line in csv.DictReader(file) if line["round"] == "0"
        ]
    assert cells(tab, "learning curves")[0][:2] == ["1", f"{100 * sum(first) / len(first):.1f} %"]


def test_a_peer_has_a_page_of_its_own(tab: Page, board: Dashboard, runs: Path) -> None:
    show(tab, f"{board.url}#/run?id=both%2Foracle&peer=1")
    with open(runs / "both" / "oracle" / "links.csv", newline="") as file:
        mine = [line for line in csv.DictReader(file) if line["receiver"] == "1"]
    heard = Counter(line["sender"] for line in mine if line["bytes"] != "0")  # others only asked for a model
    assert {row[0]: int(row[1]) for row in cells(tab, "partners")} == heard
    curves: dict[str, list[float]] = {"local": [], "oracle": []}
    for name, values in curves.items():
        with open(runs / "both" / name / "metrics.csv", newline="") as file:
            values += [
                float(line["accuracy_after_local"]) for line in csv.DictReader(file) if line["peer"] == "1"
            ]
    shown = cells(tab, "learning curves")
    assert [row[1] for row in shown] == [f"{100 * value:.1f} %" for value in curves["oracle"]]
    assert [row[-1] for row in shown] == [f"{100 * value:.1f} %" for value in curves["local"]]
    with open(runs / "both" / "oracle" / "peers.csv", newline="") as file:
        data = list(csv.DictReader(file))[1]
    counts = [value for name, value in data.items() if name.startswith("class ")]
    assert [row[1] for row in cells(tab, "labels")] == counts


def test_what_is_known_of_the_method_is_what_explain_says(tab: Page, board: Dashboard) -> None:
    show(tab, f"{board.url}#/run?id=both%2Fd-psgd")
    tab.click("text=Equations, settings, differences from the paper")
    shown = tab.inner_text("pre")
    told = CliRunner().invoke(app, ["explain", "d-psgd"]).output
    equations = [line.strip() for line in told.splitlines() if "<-" in line]
    assert equations
    assert all(line in shown for line in equations)


def test_two_runs_are_compared_in_one_click(tab: Page, board: Dashboard) -> None:
    show(tab, f"{board.url}#/runs?open=both")
    for name in ("both/oracle", "both/d-psgd"):
        tab.check(f"tr[data-id='{name}'] input")
    tab.click("text=Compare 2 picked")
    tab.wait_for_selector("#to-target")
    tab.locator("#target").fill("0")
    found = board.runs.compare(["both/oracle", "both/d-psgd"])["targets"]["rounds"]
    said = str(tab.get_attribute("#to-target", "data-rounds")).split(",")
    assert [float(text) for text in said] == [of_group[0] for of_group in found]
    assert "target=0" in tab.evaluate("location.href")


VIEWS = ["runs?open=both", "run?id=both%2Foracle", "run?id=both%2Foracle&peer=1", "compare?ids=both", "peers"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_shut_out(view: str, scheme: Any, tab: Page, board: Dashboard) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": 360, "height": 740})
    show(tab, f"{board.url}#/{view}")
    for box in tab.locator("main details").all():  # the tables of the pictures, too
        box.locator("summary").click()
    tab.wait_for_timeout(200)
    found = Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_keyboard_is_enough(tab: Page, board: Dashboard) -> None:
    """Fold a comparison open, pick two runs, compare them, and move the slider."""
    show(tab, f"{board.url}#/runs")

    def to(selector: str) -> None:
        for _ in range(60):
            if tab.evaluate("one => document.activeElement.matches(one)", selector):
                return
            tab.keyboard.press("Tab")
        raise AssertionError(f"the keyboard does not reach {selector}")

    to("tr[data-id=both] .fold")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.matches('tr[data-id=both] .fold[aria-expanded=true]')")
    for name in ("both/d-psgd", "both/oracle"):
        show(tab, tab.evaluate("location.href"))
        to(f"tr[data-id='{name}'] input")
        tab.keyboard.press("Space")
    show(tab, tab.evaluate("location.href"))
    to(".bar button")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#to-target")
    to("#target")
    before = int(tab.input_value("#target"))
    tab.keyboard.press("ArrowLeft")
    assert int(tab.input_value("#target")) == before - 1
    assert f"target={before - 1}" in tab.evaluate("location.href")


def test_the_address_brings_a_view_back(tab: Page, board: Dashboard) -> None:
    show(tab, f"{board.url}#/runs?q=d-psgd&open=both&sort=score&down=0&picked=both%2Fd-psgd")
    assert tab.input_value("input[type=search]") == "d-psgd"
    assert tab.locator("tbody tr").count() == 2
    assert tab.is_checked("tr[data-id='both/d-psgd'] input")
    assert tab.locator("th[aria-sort=ascending]").inner_text().startswith("accuracy")
    show(tab, f"{board.url}#/run?id=both%2Foracle&kind=in+this+round&round=2")
    tab.wait_for_selector("#links-said[data-round='2'][data-kind='in this round']")
    show(tab, f"{board.url}#/compare?ids=both&target=10")
    assert tab.input_value("#target") == "10"


def test_a_run_of_another_version_says_so(tab: Page, board: Dashboard) -> None:
    show(tab, f"{board.url}#/run?id=older")
    assert "made by version 0.0." in tab.inner_text("main")


def test_what_vanished_or_is_damaged_is_said(board: Dashboard) -> None:
    for name in ("damaged", "nothing", "../../etc"):
        status, _ = ask(board, f"/api/run?id={quote(name)}")
        assert status == 404


def test_other_names_and_methods_are_refused(board: Dashboard) -> None:
    assert ask(board, "/")[0] == 200
    assert ask(board, "/", host="evil.example")[0] == 421
    assert ask(board, "/", method="POST")[0] == 405


def ask(board: Dashboard, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", board.port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_whole_page_is_small() -> None:
    names = ("uplot.js", "pictures.js", "page.js", "uplot.css", "page.css")
    whole = page().encode() + b"".join(asset(name) or b"" for name in names)
    assert len(gzip.compress(whole)) < 150_000


def test_a_report_opens_from_disk(tab: Page, runs: Path, tmp_path: Path) -> None:
    path = write_report([runs / "both"], tmp_path / "report.html")
    assert path.stat().st_size < 500_000
    show(tab, path.as_uri())
    assert "Against learning alone" in tab.inner_text("main")
    tab.click("text=both/oracle >> nth=0")
    tab.wait_for_selector("#links-said[data-total]")
    assert tab.get_attribute("#links-said", "data-inside") == "1"


def test_beyond_this_machine_a_token_is_asked_for(runs: Path) -> None:
    """It comes by the address that is printed, and stays as a cookie; a name that is not ours is refused."""
    board = Dashboard(runs, host="0.0.0.0")
    board.start()
    try:
        assert f"?token={board.token}" in board.url
        assert ask(board, "/")[0] == 403
        assert ask(board, "/?token=wrong")[0] == 403
        assert ask(board, f"/?token={board.token}")[0] == 200
        assert ask(board, f"/api/runs?token={board.token}", host="evil.example")[0] == 421
        connection = http.client.HTTPConnection("127.0.0.1", board.port, timeout=10)
        connection.request("GET", "/api/runs", headers={"Cookie": f"coterie_token={board.token}"})
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        board.stop()


def test_names_with_commas_are_compared(runs: Path, tmp_path: Path, tab: Page) -> None:
    for name in ("a,b", "50%2C"):
        shutil.copytree(runs / "both" / "d-psgd", tmp_path / name)
    board = Dashboard(tmp_path)
    board.runs.look()
    board.start()
    try:
        show(tab, f"{board.url}#/runs")
        for name in ("a,b", "50%2C"):
            tab.check(f"tr[data-id='{name}'] input")
        tab.click("text=Compare 2 picked")
        tab.wait_for_selector("main[data-groups]")
        assert "seeds 0, 0" in tab.inner_text("main")
        tab.goto("about:blank")
    finally:
        board.stop()


def test_of_very_many_peers_a_sample_is_shown(tmp_path: Path) -> None:
    peers, folder = 2500, tmp_path / "many"
    folder.mkdir()
    (folder / "config.toml").write_text(f'algorithm = "d-psgd"\npeers = {peers}\nrounds = 1\nseed = 0\n')
    (folder / "rounds.csv").write_text("round,seconds,messages,bytes,hub_bytes\n0,1,2500,2500,0\n")
    scores = "".join(f"0,{peer},{peer / peers},{peer / peers}\n" for peer in range(peers))
    (folder / "metrics.csv").write_text("round,peer,accuracy_after_local,accuracy_after_mixing\n" + scores)
    links = "".join(f"0,0,{(peer + 1) % peers},{peer},1,1\n" for peer in range(peers))
    (folder / "links.csv").write_text("round,exchange,sender,receiver,bytes,delivered\n" + links)
    found = FoundRuns(tmp_path)
    found.look()
    run = found.one("many")
    assert "show a sample: 1000 of 2500 peers, evenly spaced." in " ".join(run["notes"])
    assert (len(run["shown"]), run["shown"][0], run["shown"][-1]) == (1000, 0, 2499)
    assert len(run["links"]["positions"]) == 1000
    assert found.peer("many", 999)["name"] == "2499"
    assert run["curve"]["mean"] == [pytest.approx(sum(range(peers)) / peers / peers, abs=1e-6)]  # of all
