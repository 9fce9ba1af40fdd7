"""Flower's simulation. It has a server and no ring: everyone's models are averaged."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import flwr
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, LR, PEERS, ROUNDS, SAMPLES, Clock, images, torch_network

clock, client, server = Clock(), ClientApp(), ServerApp()
x, y = images()


@client.train()
def train(message: Message, context: Context) -> Message:
    peer = int(context.node_config["partition-id"])
    model = torch_network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    own = TensorDataset(torch.from_numpy(x[peer]), torch.from_numpy(y[peer]))
    for batch, labels in DataLoader(own, batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(content=RecordDict(content), reply_to=message)


class Ticking(FedAvg):
    """Says when a round has ended."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        if len(replies) < PEERS or any(reply.has_error() for reply in replies):
            raise RuntimeError("some clients failed")
        found = super().aggregate_train(server_round, replies)
        clock.tick()
        return found


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Ticking(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=PEERS, min_available_nodes=PEERS
    )
    strategy.start(grid=grid, initial_arrays=ArrayRecord(torch_network().state_dict()), num_rounds=ROUNDS)


flwr.simulation.run_simulation(
    server_app=server,
    client_app=client,
    num_supernodes=PEERS,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
clock.report()
