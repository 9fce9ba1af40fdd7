"""Local training: our executors against a plain PyTorch loop, a hand-written kernel and the processor."""

from __future__ import annotations

import itertools
import statistics
import time
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.timing import Row, Turns, best_seconds, by_turns
from coterie.data import Federation, Split
from coterie.learning import Executor, Workers, cores, cross_entropy, model_tree
from coterie.learning.local_steps import LocalWork
from coterie.models import build
from coterie.randomness import stream
from coterie.results.simulating import simulate
from coterie.training import Training

PEERS, SAMPLES, BATCH, STEPS, LR = 100, 600, 20, 30, 0.05


def pool(shape: tuple[int, ...], peers: int, samples: int) -> Federation:
    """Random samples of a given shape, equally many for every peer."""
    generator = torch.Generator().manual_seed(0)
    n = peers * samples
    x, y = torch.randn(n, *shape, generator=generator), torch.randint(0, 10, (n,), generator=generator)
    train = Split(torch.arange(n), torch.arange(peers + 1) * samples)
    nobody = Split.empty(peers)
    return Federation(x, y, train, nobody, nobody, None, 10, tuple("0123456789"))


def executor_seconds(
    name: str, module: nn.Module, data: Federation, workers: int, steps: int, batch: int
) -> float:
    """Seconds per local step of one client."""
    params = {k: v.expand(data.peers, *v.shape[1:]).clone() for k, v in model_tree(module).items()}
    work = LocalWork.resolve(Training(lr=LR, clip=0.0, batch_size=batch, steps=steps), 0, {})
    rows = torch.arange(data.peers)
    with Workers(workers) as pool_of_workers:
        executor = Executor(name, module, pool_of_workers)  # type: ignore[arg-type]

        def once() -> None:
            executor.train(
                params, data, rows, stream(0, "batches", 0, rows), work, cross_entropy, executor.trainable
            )

        return best_seconds(once) / (data.peers * steps)


def plain_loop_seconds(module: nn.Module, data: Federation, steps: int, batch: int) -> float:
    """One client after another with an nn.Module, an optimiser and one thread, as most simulators do."""
    initial = {name: value.clone() for name, value in module.state_dict().items()}

    def once() -> None:
        for peer in range(data.peers):
            module.load_state_dict(initial)
            optimizer = torch.optim.SGD(module.parameters(), lr=LR)
            mine = data.train.of(peer)
            for step in range(steps):
                chosen = mine[torch.arange(step * batch, (step + 1) * batch) % len(mine)]
                optimizer.zero_grad()
                functional.cross_entropy(module(data.x[chosen]), data.y[chosen]).backward()
                optimizer.step()

    return best_seconds(once) / (data.peers * steps)


def hand_written_seconds(data: Federation, workers: int, steps: int, batch: int, chunk: int = 10) -> float:
    """The same MLP as batched matrix products with the update fused in, nothing general about it."""
    hidden = 128
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(data.peers, 784, hidden, generator=generator) * 0.03,
        torch.zeros(data.peers, 1, hidden),
        torch.randn(data.peers, hidden, 10, generator=generator) * 0.1,
        torch.zeros(data.peers, 1, 10),
    ]
    x = data.x.flatten(1)

    def train(peers: Tensor) -> None:
        w1, b1, w2, b2 = (w[peers] for w in weights)
        k = len(peers)
        for step in range(steps):
            place = peers[:, None] * SAMPLES + (torch.arange(batch) + step * batch) % SAMPLES
            inputs, labels = x.index_select(0, place.flatten()).view(k, batch, 784), data.y[place.flatten()]
            h = torch.baddbmm(b1, inputs, w1).relu_()
            delta = torch.baddbmm(b2, h, w2).softmax(-1)
            delta.view(-1, 10)[torch.arange(k * batch), labels] -= 1
            delta /= batch
            back = torch.bmm(delta, w2.transpose(1, 2)).mul_(h > 0)
            w2.baddbmm_(h.transpose(1, 2), delta, alpha=-LR)
            b2.sub_(delta.sum(1, keepdim=True), alpha=LR)
            w1.baddbmm_(inputs.transpose(1, 2), back, alpha=-LR)
            b1.sub_(back.sum(1, keepdim=True), alpha=LR)
        for w, new in zip(weights, (w1, b1, w2, b2), strict=True):
            w[peers] = new

    with Workers(workers) as pool_of_workers:
        tasks = torch.arange(data.peers).split(chunk)
        return best_seconds(lambda: pool_of_workers.map(train, tasks)) / (data.peers * steps)


def dense() -> list[Row]:
    """MLR and MLP-128 on MNIST shapes, 100 peers, batch 20."""
    data = pool((1, 28, 28), PEERS, SAMPLES)
    mlr, mlp = (build(name, (1, 28, 28), 10, seed=0) for name in ("mlr", "mlp"))
    seconds = by_turns(
        lambda: plain_loop_seconds(mlr, data, STEPS, BATCH),
        lambda: executor_seconds("stacked", mlr, data, cores(), STEPS, BATCH),
        lambda: plain_loop_seconds(mlp, data, STEPS, BATCH),
        lambda: executor_seconds("stacked", mlp, data, cores(), STEPS, BATCH),
        lambda: hand_written_seconds(data, cores(), STEPS, BATCH),
        _seconds_of_a_flop,
    )
    small, large = (_limit(operations(of, (1, 28, 28)) * BATCH * seconds[5]) for of in (mlr, mlp))
    return [
        Row("mlr: plain one-thread loop / stacked", seconds[0], seconds[1], 10.0, True, small),
        Row("mlp: plain one-thread loop / stacked", seconds[2], seconds[3], 3.0, True, large),
        Row("mlp: stacked / hand-written kernel", seconds[3], seconds[4], 1.6, False, large),
    ]


def operations(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Of the products of one sample's forward and backward pass; nobody needs gradients of the samples."""
    products: list[int] = []

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        products.append(out.numel() * layer.weight[0].numel())  # type: ignore[index]

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        module.eval()(torch.zeros(1, *shape))
    module.train()
    for hook in hooks:
        hook.remove()
    return 6 * sum(products) - 2 * products[0]


def logistic() -> list[Row]:
    """The MLR of `synthetic`: 60 features and a bias, 10 classes, 100 peers, batch 20."""
    data = pool((60,), PEERS, SAMPLES)
    mlr = build("mlr", (60,), 10, seed=0)
    loop, ours, flop = by_turns(
        lambda: plain_loop_seconds(mlr, data, STEPS, BATCH),
        lambda: executor_seconds("stacked", mlr, data, cores(), STEPS, BATCH),
        _seconds_of_a_flop,
        turns=5,
    )
    limit = _limit(operations(mlr, (60,)) * BATCH * flop)
    return [Row("mlr-610: plain one-thread loop / stacked", loop, ours, 20.0, at_least=True, limit=limit)]


def whole_rounds() -> list[Row]:
    """MLP-128 on a ring, 300 images of 28 x 28 each, batch 32, one epoch: a round against its products."""
    rows = []
    for peers in (20, 100):
        ours, product = by_turns(partial(_round_seconds, peers), _seconds_of_a_flop, turns=5)
        for counted, wanted, what in (
            (6 * (784 + 10) * 128, 1.6, "all products, as limits of rounds are counted"),
            (4 * 784 * 128 + 6 * 10 * 128, None, "those that it needs: no gradients of images"),
        ):
            limit = Turns.of([counted * peers * 300 * flop for flop in product.turns])
            best = f"{1000 * limit:.1f} ms"
            rows.append(
                Row(f"mlp-128 x {peers}: a round / {what}", ours, limit, wanted, at_least=False, limit=best)
            )
    return rows


def _round_seconds(peers: int) -> float:
    """The median of a run's rounds, but for the first and the last."""
    generator, ends = torch.Generator().manual_seed(0), list[float]()
    x = torch.rand(peers, 300, 784, generator=generator)
    y = torch.randint(10, (peers, 300), generator=generator)
    rounds = 16
    simulate(
        "d-psgd",
        data=[{"train": (a, b), "test": (a[:1], b[:1])} for a, b in zip(x.numpy(), y.numpy(), strict=True)],
        model="mlp(128)",
        topology="ring",
        rounds=rounds,
        training={"batch_size": 32, "epochs": 1, "lr": LR, "clip": 0.0},
        evaluation={"every": rounds, "global_accuracy": "never"},
        execution={"executor": "stacked"},
        observer=lambda record, history: ends.append(time.perf_counter()),
    )
    return statistics.median(after - before for before, after in itertools.pairwise(ends[:-1]))


def _seconds_of_a_flop() -> float:
    """At the speed of large products on all cores at once."""
    size, a = 1024, torch.randn(1024, 1024)
    with Workers() as workers:
        took = best_seconds(lambda: workers.map(lambda _: torch.mm(a, a), range(2 * workers.count)), 5)
        return took / (2 * workers.count * 2 * size**3)


def _limit(seconds: float) -> str:
    return f"a step's products: {1e6 * seconds:.3g} us"


def convolutional() -> list[Row]:
    """The papers' CNNs: looped on all cores against a one-thread loop."""
    rows = []
    for name, shape, peers, steps, batch in (
        ("ppdl-cnn", (3, 32, 32), 8, 12, 8),
        ("emnist-cnn-bn", (1, 28, 28), 8, 6, 32),
        ("blend-cnn", (3, 32, 32), 4, 4, 64),
    ):
        module, data = build(name, shape, 10, seed=0), pool(shape, peers, steps * batch)
        loop, ours, flop = by_turns(
            partial(plain_loop_seconds, module, data, steps, batch),
            partial(executor_seconds, "looped", module, data, cores(), steps, batch),
            _seconds_of_a_flop,
        )
        what, limit = (
            f"{name}: one-thread loop / looped on {cores()}",
            operations(module, shape) * batch * flop,
        )
        rows.append(Row(what, loop, ours, 1.8, at_least=True, limit=_limit(limit)))
    return rows
