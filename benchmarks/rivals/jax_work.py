"""JAX: all peers by vmap, all steps by scan, a whole round in one jit; written for this benchmark."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from work import BATCH, CHANNELS, CLASSES, HIDDEN, INPUTS, LR, MODEL, PEERS, SAMPLES, images, timed

x, y = (jnp.asarray(part) for part in images())
STEPS = math.ceil(SAMPLES / BATCH)
PLACES = np.arange(STEPS * BATCH)
PRESENT = jnp.asarray((PLACES < SAMPLES).reshape(STEPS, BATCH), jnp.float32)  # the last batch is smaller


def convolved(params: Any, batch: Any) -> Any:
    images = batch.transpose(0, 2, 3, 1)  # channels last, which XLA prefers on a CPU
    for kernel, bias in (("k1", "c1"), ("k2", "c2")):
        layout = ("NHWC", "HWIO", "NHWC")
        found = jax.lax.conv_general_dilated(images, params[kernel], (1, 1), "SAME", dimension_numbers=layout)
        found = jax.nn.relu(found + params[bias])
        images = jax.lax.reduce_window(found, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return images.reshape(len(images), -1)


def loss_of(params: Any, batch: Any, labels: Any, present: Any) -> Any:
    hidden = jax.nn.relu(batch @ params["w1"] + params["b1"]) if MODEL == "mlp" else convolved(params, batch)
    logits = hidden @ params["w2"] + params["b2"]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]
    return (losses * present).sum() / present.sum()


def trained(params: Any, own_x: Any, own_y: Any, key: Any) -> Any:
    order = jax.random.permutation(key, SAMPLES)[jnp.asarray(PLACES % SAMPLES)].reshape(STEPS, BATCH)

    def step(params: Any, at: Any) -> Any:
        chosen, present = at
        gradient = jax.grad(loss_of)(params, own_x[chosen], own_y[chosen], present)
        return jax.tree.map(lambda value, slope: value - LR * slope, params, gradient), None

    return jax.lax.scan(step, params, (order, PRESENT))[0]


@jax.jit
def one_round(params: Any, key: Any) -> Any:
    mine = jax.vmap(trained)(params, x, y, jax.random.split(key, PEERS))
    return jax.tree.map(lambda value: (jnp.roll(value, 1, 0) + value + jnp.roll(value, -1, 0)) / 3, mine)


keys = iter(jax.random.split(jax.random.key(0), 10_000))
first, second = CHANNELS
shapes: dict[str, tuple[int, ...]] = {
    "mlp": {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)},
    "cnn": {
        **{"k1": (3, 3, 1, first), "c1": (first,), "k2": (3, 3, first, second), "c2": (second,)},
        **{"w2": (second * 49, CLASSES), "b2": (CLASSES,)},
    },
}[MODEL]
state = {name: jax.random.normal(next(keys), (PEERS, *shape)) * 0.05 for name, shape in shapes.items()}


def step() -> None:
    global state
    state = jax.block_until_ready(one_round(state, next(keys)))


timed(step)
