"""JAX: all peers by vmap, all steps by scan, a whole round in one jit; written for this benchmark."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from work import BATCH, CLASSES, HIDDEN, INPUTS, LR, PEERS, SAMPLES, images, timed

x, y = (jnp.asarray(part) for part in images())
STEPS = math.ceil(SAMPLES / BATCH)
PLACES = np.arange(STEPS * BATCH)
PRESENT = jnp.asarray((PLACES < SAMPLES).reshape(STEPS, BATCH), jnp.float32)  # the last batch is smaller


def loss_of(params: Any, batch: Any, labels: Any, present: Any) -> Any:
    hidden = jax.nn.relu(batch @ params["w1"] + params["b1"])
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
shapes = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}
state = {name: jax.random.normal(next(keys), (PEERS, *shape)) * 0.05 for name, shape in shapes.items()}


def step() -> None:
    global state
    state = jax.block_until_ready(one_round(state, next(keys)))


timed(step)
