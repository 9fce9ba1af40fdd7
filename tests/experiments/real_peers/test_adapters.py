"""Eight real peers train and send an adapter, as the simulator's do: its models, its scores, its bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformer import CLASSES, HIDDEN, LAYERS, LORA, save_tiny_model

import coterie
from coterie.cli.swarm.folders import make_folders
from coterie.experiments.real_peers.joining import join
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records

PEERS, ROUNDS = 8, 2
NUMBERS = (
    LAYERS * 2 * 2 * (2 * HIDDEN) + CLASSES * HIDDEN + CLASSES
)  # factors of rank 2, and a new classifier
HEADING = 2500  # bytes of a message besides its numbers, at most: names of layers, mostly


def test_they_have_the_numbers_of_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "texts.py").write_text(
        f"from tiny_transformer import sentences\n\n\ndef load():\n    return sentences({PEERS})\n"
    )
    table: dict[str, Any] = {
        "algorithm": "d-psgd",
        "data": f"{tmp_path / 'texts.py'}:load",
        "model": f"hf:{save_tiny_model(tmp_path / 'tiny')}",
        "adapter": LORA,
        "topology": "full",
        "peers": PEERS,
        "rounds": ROUNDS,
        "training": {"optimizer": "adamw", "optimizer_state": "kept", "lr": 0.02, "batch_size": 5},
    }
    places = make_folders(tmp_path, table, [f"peer-{number}" for number in range(PEERS)], "synchronous")

    async def learn() -> list[Any]:
        joined = [join(place) for place in places]
        await asyncio.gather(*(one.take_part() for one in joined))
        return [one.peer for one in joined]

    peers = asyncio.run(learn())
    expected = coterie.simulate(**table, execution={"executor": "looped"})
    messages, numbers = ROUNDS * (PEERS - 1), 4 * NUMBERS
    assert expected.totals.bytes_sent.tolist() == [messages * numbers] * PEERS
    for number, (peer, place) in enumerate(zip(peers, places, strict=True)):
        found = peer.algorithm.personal(peer.state)
        assert set(found) == set(expected.params)
        for name, value in found.items():
            torch.testing.assert_close(value[0], expected.params[name][number], rtol=1e-3, atol=1e-5)
        scores = Records(place / RECORDS_FILE).read()[-1]["accuracy"]
        simulated = float(expected.scores_over_time(point="after_mixing")[-1][number])
        assert scores["after_mixing"] == pytest.approx(simulated, abs=1e-6)
        sent = sum(peer.metrics.bytes_out.values())
        assert messages * numbers <= sent <= messages * (numbers + HEADING)
