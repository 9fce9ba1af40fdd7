"""Processes that do not keep step: a method that asks its peers gets answers all the same."""

from __future__ import annotations

from pathlib import Path

from real_peers import Swarm, experiment, slow_model


def test_kin_at_its_own_pace(tmp_path: Path) -> None:
    """Models arrive from every other peer, and the losses of those that did are known."""
    table = experiment(
        "kin",
        peers=4,
        rounds=12,
        model=slow_model(tmp_path, 0.01),
        settings={"private": "never", "peers": 2},
    )
    with Swarm(tmp_path / "peers", table, settings={"mode": "free"}) as swarm:
        swarm.start()
        swarm.finish()
        for number, peer in swarm.peers().items():
            assert peer.journal.round == 12
            seen = peer.state.looks[0]
            assert int(seen.sum()) >= 8, f"peer {number} saw {seen.tolist()}"
            others = [n for n in range(4) if n != number]
            assert bool((seen[others] > 0).all()), f"peer {number} saw {seen.tolist()}"
            assert bool(peer.state.known.mean[0, others].isfinite().all())
