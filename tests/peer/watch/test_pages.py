"""What a peer shows: Prometheus' text line by line, and how it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from peers_in_memory import Size, World

from coterie.peer.watch.pages import pages_of
from coterie.peer.watch.standing import Standing, health_of, standing_of
from coterie.testing import run_virtually

NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|NaN"
SAMPLE = re.compile(r'([a-z_]+)(?:\{([a-z]+)="((?:[^"\\\n]|\\["\\n])*)"\})? ' + f"({NUMBER})")


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and value of the label; every line must be of the format."""
    samples: dict[tuple[str, str], float] = {}
    kinds: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, _, label, value = match.groups()
            assert name in kinds, "HELP and TYPE come first"
            assert name.endswith("_total") == (kinds[name] == "counter")
            assert (name, label or "") not in samples
            samples[name, label or ""] = float(value)
    return samples


def shown(tmp_path: Path, algorithm: str, **keywords: object) -> tuple[str, Standing, dict[str, object]]:
    """Metrics, standing and health of peer 0 after two rounds."""
    world = World(algorithm, tmp_path, Size(peers=4, rounds=2), **keywords)  # type: ignore[arg-type]

    async def play() -> tuple[str, Standing, dict[str, object]]:
        await world.play()
        peer = world.peers_by_number[0]
        peer.metrics.refused['a "strange"\\reason\n'] += 2
        return pages_of(peer)["/metrics"].text(), standing_of(peer), health_of(peer)

    return run_virtually(play())


PLAIN = {
    "round",
    "rounds",
    "finished",
    "uptime_seconds",
    "rounds_played_total",
    "rounds_alone_total",
    "rounds_skipped_total",
    "waiting_seconds_total",
    "sealed_sums_total",
    "sealed_failures_total",
    "sealed_implausible_total",
    "shares_in_doubt_total",
    "shares_returned_total",
    "shares_forgotten_total",
}
BY_LABEL = {
    "point": {"accuracy"},
    "reason": {"refused_total", "refused_by_others_total"},
    "peer": {
        "received_bytes_total",
        "sent_bytes_total",
        "received_messages_total",
        "sent_messages_total",
        "implausible_total",
        "overdrawn_total",
        "far_total",
        "missing_total",
        "neighbour_alive",
        "neighbour_awaited",
        "neighbour_behind_seconds",
        "neighbour_trouble",  # and by reason; nobody has any here
        "neighbour_round",
        "neighbour_exchange",
        "neighbour_weight",
        "neighbour_staleness_rounds",
    },
}


def test_names_and_labels_are_those_that_dashboards_know(tmp_path: Path) -> None:
    text, *_ = shown(tmp_path, "d-psgd")
    kinds = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert kinds == {f"coterie_peer_{name}" for name in PLAIN.union(*BY_LABEL.values())}
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line)
        if match:
            name, label = match[1].removeprefix("coterie_peer_"), match[2]
            assert name in (PLAIN if label is None else BY_LABEL[label])


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    text, standing, _ = shown(tmp_path, "d-psgd")
    samples = parsed(text)
    assert samples["coterie_peer_round", ""] == samples["coterie_peer_rounds_played_total", ""] == 2
    assert samples["coterie_peer_finished", ""] == 1
    assert samples["coterie_peer_uptime_seconds", ""] > 0
    assert samples["coterie_peer_refused_total", r"a \"strange\"\\reason\n"] == 2
    for one in standing.neighbours:
        assert samples["coterie_peer_received_bytes_total", one.name] == one.bytes_in > 0
        assert samples["coterie_peer_sent_bytes_total", one.name] == one.bytes_out > 0
        assert samples["coterie_peer_sent_messages_total", one.name] == 2
        assert samples["coterie_peer_neighbour_alive", one.name] == 1
        assert samples["coterie_peer_neighbour_staleness_rounds", one.name] == 0


def test_sealed_sums_are_counted(tmp_path: Path) -> None:
    text, standing, _ = shown(tmp_path, "ppdl")
    assert parsed(text)["coterie_peer_sealed_sums_total", ""] > 0
    assert standing.bytes_in > 0
    assert standing.bytes_out > 0


def test_the_standing_says_who_is_there_and_what_weighs(tmp_path: Path) -> None:
    _, standing, health = shown(tmp_path, "d-psgd")
    assert (standing.name, standing.round, standing.rounds) == ("peer-0", 2, 2)
    assert standing.finished
    assert standing.seconds_left == 0
    assert set(standing.scores) == {"after_local", "after_mixing"}
    assert [one.name for one in standing.neighbours] == ["peer-1", "peer-2", "peer-3"]
    assert [one.weight for one in standing.neighbours] == pytest.approx([1 / 3] * 3)
    assert all(one.alive and not one.trouble for one in standing.neighbours)
    assert health["alive"] == ["peer-1", "peer-2", "peer-3"]
    assert health["absent"] == []
    assert (health["round"], health["rounds"], health["finished"]) == (2, 2, True)


def test_learned_weights_are_shown(tmp_path: Path) -> None:
    world = World("kd-pdfl", tmp_path, Size(peers=4, rounds=2))

    async def play() -> Standing:
        await world.play()
        return standing_of(world.peers_by_number[0])

    weights = [one.weight for one in run_virtually(play()).neighbours]
    assert weights == pytest.approx(world.reports[0][-1].diagnostics["collaboration"][0, 1:].tolist())
