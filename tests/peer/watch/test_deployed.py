"""What whoever runs a peer for months looks at: the unit, the certificate's end, the time in exchanges."""

from __future__ import annotations

import asyncio
import configparser
import json
import re
from pathlib import Path

import pytest

from coterie.cli.swarm.folders import make_folders
from coterie.experiments.real_peers.joining import join
from coterie.peer.trust.identity import Identity
from coterie.peer.watch.pages import pages_of

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT, BOARD = DEPLOY / "coterie.service", DEPLOY / "grafana.json"
NAME = re.compile(r"coterie_peer_\w+")


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """What /metrics says after two rounds, and when the certificate expires."""
    table = {"algorithm": "d-psgd", "model": "mlr", "topology": "full", "peers": 2, "rounds": 2}
    places = make_folders(tmp_path_factory.mktemp("peers"), table, ["anna", "bob"], "synchronous")
    expires = Identity.load(places[0]).certificate.not_valid_after_utc.timestamp()

    async def learn() -> str:
        peers = [join(place) for place in places]
        await asyncio.gather(*(peer.take_part() for peer in peers))
        return pages_of(peers[0].peer, lambda: expires)["/metrics"].text()

    return asyncio.run(learn()), expires


def test_metrics_say_when_the_certificate_expires_and_how_long_exchanges_took(
    metrics: tuple[str, float],
) -> None:
    text, expires = metrics
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    found = {line[0]: float(line[1]) for line in lines if len(line) == 2}
    assert found["coterie_peer_certificate_expires_timestamp_seconds"] == expires
    assert found["coterie_peer_waiting_seconds_total"] > 0
    assert found["coterie_peer_rounds_skipped_total"] == 0


def test_the_board_asks_for_metrics_that_exist(metrics: tuple[str, float]) -> None:
    board = json.loads(BOARD.read_text())
    variables = {one["name"]: one for one in board["templating"]["list"]}
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    asked = [target["expr"].replace("${metric}", variables["metric"]["query"]) for target in targets]
    there = set(re.findall(r"^# TYPE (\S+)", metrics[0], re.M))
    named = {name for text in [*asked, variables["instance"]["definition"]] for name in NAME.findall(text)}
    assert named <= there, named - there
    assert len(named) > 15
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", metrics[0], re.M))
    for text in asked:  # a counter is shown by its growth
        for name in NAME.findall(text):
            assert (kinds[name] == "counter") == ("rate(" in text or "increase(" in text), text
    for target, text in zip(targets, asked, strict=True):
        labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert labels <= {"instance", "peer", "point", "reason"}
        grouped = re.search(r"by \(([^)]*)\)", text)
        assert grouped is None or labels <= set(grouped[1].replace(" ", "").split(","))
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_the_unit_restarts_what_may_be_cured_and_nothing_else() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["ExecStart"].split()[1:3] == ["peer", "run"]
    assert service["ReadWritePaths"] == service["ExecStart"].split()[-1]
    assert (service["SuccessExitStatus"], service["RestartPreventExitStatus"]) == ("3", "2")
    assert service["ProtectSystem"] == "strict"


def test_the_board_holds_together() -> None:
    """Panels do not overlap, every reference leads somewhere, and every query is closed.

    Its keys are those of Grafana's dashboard schema, and its queries PromQL: see docs/dashboard.md.
    """
    board = json.loads(BOARD.read_text())
    panels, variables = board["panels"], {one["name"] for one in board["templating"]["list"]}
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
    assert {panel["type"] for panel in panels} <= {"stat", "timeseries"}
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    for panel in panels:
        assert all([panel["title"], panel["description"], panel["fieldConfig"]["defaults"]["unit"]])
        targets = panel["targets"]
        assert len({target["refId"] for target in targets}) == len(targets) > 0
        for source in [panel["datasource"], *(target["datasource"] for target in targets)]:
            assert source == {"type": "prometheus", "uid": "${datasource}"}
    for text in [target["expr"] for panel in panels for target in panel["targets"]]:
        asked = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__range", "__interval"}
        assert asked <= variables, text
        assert all(text.count(first) == text.count(last) for first, last in ("()", "[]", "{}"))
        assert text.count('"') % 2 == 0
        assert 'instance=~"$instance"' in text  # the choice of peers counts in every panel
