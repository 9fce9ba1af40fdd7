"""A consortium that changes while it runs: real peers over TLS, commands as their operators give them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from real_peers import PORT, Swarm, experiment, free_hosts, same_as_simulated, slow_model
from typer.testing import CliRunner

from coterie.cli import app
from coterie.peer.trust.identity import NEXT_FILE, Identity
from coterie.peer.trust.roster import ROSTER_FILE, Roster, roster_text
from coterie.peer.trust.settings import SETTINGS_FILE

# Who gets no processor for some seconds must not look absent.
QUICK = {"deadline": 20.0, "heartbeat": 0.2, "suspect_after": 5.0, "join_seconds": 40.0}


def said(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["peer", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


class Consortium(Swarm):
    """Its last peers are not known to the others."""

    def without(self, *strangers: int) -> None:
        for number in range(self.nodes):
            roster = Roster.load(self.place(number))
            kept = {} if number in strangers else dict(roster.members)
            for stranger in strangers:
                kept.pop(f"peer-{stranger}", None)
            (self.place(number) / ROSTER_FILE).write_text(roster_text(kept), encoding="utf-8")

    def change(self, number: int, file: str, **changes: Any) -> None:
        path = self.place(number) / file
        path.write_text(tomli_w.dumps({**tomllib.loads(path.read_text()), **changes}), encoding="utf-8")


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    model = slow_model(tmp_path / "model", 0.02)
    return experiment("osgp", model=model, topology="full", peers=4, rounds=60)


def test_a_member_comes_and_one_goes(tmp_path: Path, table: dict[str, Any]) -> None:
    """Three learn; two of them invite a fourth, which is a quorum; then the first one leaves."""
    with Consortium(tmp_path / "peers", table, QUICK) as swarm:
        swarm.without(3)
        swarm.start(0, 1, 2)
        card, once, twice = tmp_path / "card", tmp_path / "once", tmp_path / "twice"
        card.write_text(said("card", "--dir", swarm.place(3)))
        once.write_text(said("invite", card, "--dir", swarm.place(0)))
        refused = CliRunner().invoke(app, ["peer", "accept", str(once), "--dir", str(swarm.place(3))])
        assert "is signed by 1 of 3 members, and 2 must" in refused.stderr
        twice.write_text(said("invite", once, "--dir", swarm.place(1)))
        said("accept", twice, "--dir", swarm.place(3))
        swarm.until(lambda: swarm.round(0) >= 2, "the first rounds")
        swarm.start(3)
        swarm.until(lambda: len(swarm.records(3)) >= 2, "the new member takes part")
        said("leave", "--dir", swarm.place(0))
        swarm.finish()
        peers = swarm.peers()
        joined, left = swarm.records(3)[0]["round"], len(swarm.records(0))
        assert 2 <= joined < left < table["rounds"]
        assert [line["round"] for line in swarm.records(3)] == list(range(joined, table["rounds"]))
        assert float(peers[0].state.mass[0]) == 0.0
        assert sum(float(peer.state.mass[0]) for peer in peers.values()) == pytest.approx(4, abs=1e-5)
        assert Roster.load(swarm.place(2)).left["peer-0"].round == left
        assert "peer-3 (number 3) is invited by peer-0, peer-1" in swarm.log(2)
        faults = {"joins": {str(joined): "3"}, "leaves": {str(left): "0"}}
        ends = {number: peer for number, peer in peers.items() if number}
        same_as_simulated({**table, "faults": faults}, ends, swarm)
        swarm.start(0)
        swarm.finish(0)
        assert f"peer-0 has left the experiment after round {left}" in swarm.log(0)


@pytest.mark.slow
def test_a_new_key_and_a_new_address_get_round(tmp_path: Path, table: dict[str, Any]) -> None:
    table = {**table, "peers": 3, "algorithm": "d-psgd"}
    with Consortium(tmp_path / "peers", table, QUICK) as swarm:
        old = Roster.load(swarm.place(0)).members["peer-1"].fingerprint
        swarm.start()
        swarm.until(lambda: swarm.round(2) >= 2, "the first rounds")
        swarm.kill(2)  # it is away while a key is rotated
        shown = said("rotate", "--dir", swarm.place(1))
        assert Identity.load(swarm.place(1)).fingerprint == old, "the others are told first"
        swarm.until(lambda: not (swarm.place(1) / NEXT_FILE).exists(), "the new key is used")
        new = Identity.load(swarm.place(1)).fingerprint
        assert new in shown
        assert Roster.load(swarm.place(0)).members["peer-1"].fingerprint == new
        (host,) = free_hosts(1)
        swarm.change(2, SETTINGS_FILE, listen=f"{host}:{PORT}")
        swarm.start(2)
        swarm.finish()
        assert Roster.load(swarm.place(2)).members["peer-1"].fingerprint == new
        for number in (0, 1):
            assert Roster.load(swarm.place(number)).members["peer-2"].address == f"{host}:{PORT}"
        assert f"peer-1 has a new key: {new}" in swarm.log(2)
        assert not [line for line in swarm.records(0) if line["skipped"]]


@pytest.mark.slow
def test_more_rounds_and_another_rate_when_a_quorum_wants_them(tmp_path: Path, table: dict[str, Any]) -> None:
    table = {**table, "peers": 3, "algorithm": "d-psgd", "rounds": 50}
    with Consortium(tmp_path / "peers", table, QUICK) as swarm:
        swarm.start()
        swarm.until(lambda: swarm.round(0) >= 1, "the first round")
        more = {**table, "rounds": 55, "training": {**table["training"], "lr": 0.05}}
        swarm.write_experiment(0, more)
        swarm.until(lambda: swarm.round(0) >= 4, "some rounds")
        assert "a quorum of members wants" not in swarm.log(0)
        swarm.write_experiment(1, more)
        swarm.finish()
        assert swarm.rounds() == [55, 55, 55]
        assert "a quorum of members wants another experiment: rounds 50 -> 55, lr 0.1 -> 0.05" in swarm.log(2)
