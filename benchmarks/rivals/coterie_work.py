"""Coterie. The models are measured in the last round only, which is not counted."""

from __future__ import annotations

from work import BATCH, LR, MODEL, PEERS, ROUNDS, Clock, images, torch_network

import coterie

x, y = images()
clock = Clock()
coterie.simulate(
    "d-psgd",
    data=[{"train": (x[peer], y[peer]), "test": (x[peer, :1], y[peer, :1])} for peer in range(PEERS)],
    model="mlp(128)" if MODEL == "mlp" else torch_network(),
    topology="ring",
    rounds=ROUNDS + 1,
    training={"batch_size": BATCH, "epochs": 1, "lr": LR, "clip": 0.0},
    evaluation={"every": ROUNDS + 1, "global_accuracy": "never"},
    observer=lambda record, history: clock.tick(),
)
clock.ends.pop()
clock.report()
