"""FedJAX. It has a server and no ring: everyone's models are averaged."""

from __future__ import annotations

from typing import Any

import fedjax
import haiku
import jax
import jax.numpy as jnp
from work import BATCH, CHANNELS, CLASSES, HIDDEN, LR, MODEL, PEERS, images, timed

x, y = images()
data = [fedjax.ClientDataset({"x": x[peer], "y": y[peer]}) for peer in range(PEERS)]


def convolutional(images_first: Any) -> Any:
    found = images_first.transpose(0, 2, 3, 1)
    for channels in CHANNELS:
        found = haiku.max_pool(jax.nn.relu(haiku.Conv2D(channels, 3)(found)), (2, 2, 1), (2, 2, 1), "VALID")
    return haiku.Linear(CLASSES)(haiku.Flatten()(found))


dense = haiku.nets.MLP
network = haiku.transform(
    lambda batch: dense([HIDDEN, CLASSES])(batch["x"]) if MODEL == "mlp" else convolutional(batch["x"])
)
sample = {"x": x[0, :BATCH], "y": y[0, :BATCH]}
model = fedjax.create_model_from_haiku(
    network,
    sample,
    train_loss=lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs),
)
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    fedjax.model_grad(model),
    fedjax.optimizers.sgd(LR),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
)
state: Any = algorithm.init(model.init(jax.random.PRNGKey(0)))
keys = iter(jax.random.split(jax.random.PRNGKey(1), 10_000))


def step() -> None:
    global state
    clients = [
        (f"{peer}".encode(), data[peer], key) for peer, key in enumerate(jax.random.split(next(keys), PEERS))
    ]
    state, _ = algorithm.apply(state, clients)
    jax.block_until_ready(jax.tree_util.tree_map(jnp.asarray, state.params))


timed(step)
