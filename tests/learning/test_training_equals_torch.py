"""Local training against torch.optim on the same batches, peer by peer, for all three ways to run a model.

In float64, so that equal mathematics agrees to 1e-9 however the products are batched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_lab import (
    CLASSES,
    FEATURES,
    Branches,
    Lab,
    assert_equal_models,
    batches_of,
    dense,
    peers,
    seeded,
    stacked,
    torch_training,
)

from coterie.algorithms.dfedsam import SharpnessAware
from coterie.data import Federation, from_peers
from coterie.errors import ConfigError
from coterie.learning import Executor, ExecutorName, Workers, cross_entropy, model_tree
from coterie.learning.batched import OneByOne, Vmapped
from coterie.learning.stacked import StackedLayers
from coterie.learning.updates import Moved, Outer, add_, clipped, moved, norm, scaled
from coterie.protocol import Batch, Params
from coterie.training import Training


def wide() -> nn.Module:
    """Wide layers, whose weights are turned in memory while batches of 16 or more train them."""
    return nn.Sequential(
        nn.Linear(FEATURES, 40), nn.ReLU(), nn.Linear(40, 33), nn.Tanh(), nn.Linear(33, CLASSES)
    )


def reused_and_in_place() -> nn.Module:
    """One ReLU object in two places, working in place: `named_children` names it once only."""
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(nn.Linear(FEATURES, 7), relu, nn.Linear(7, 6), relu, nn.Linear(6, CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm1d(FEATURES),
        nn.Linear(FEATURES, 7),
        nn.Tanh(),  # without it the second normalisation would cancel the first one's shift
        nn.BatchNorm1d(7, momentum=0.3),
        nn.Linear(7, CLASSES),
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, FEATURES, 1)),
        nn.Conv2d(1, 4, (2, 1), bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * (FEATURES - 1), CLASSES),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "reused-in-place": reused_and_in_place,
    "batch-norm": normalised,
    "branches": Branches,
    "convolution": convolutional,
}
RUNS: list[tuple[str, ExecutorName, type]] = [
    ("dense", "stacked", StackedLayers),
    ("reused-in-place", "stacked", StackedLayers),
    ("batch-norm", "stacked", StackedLayers),
    ("branches", "stacked", Vmapped),
    ("dense", "looped", OneByOne),
    ("batch-norm", "looped", OneByOne),
    ("branches", "looped", OneByOne),
    ("convolution", "looped", OneByOne),
]
OPTIMISERS: dict[str, tuple[dict[str, Any], Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": ({"weight_decay": 0.05}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05)),
    "momentum-decay": (
        {"momentum": 0.5, "weight_decay": 0.05},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.05),
    ),
    "clip": ({"clip": 0.3}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
    "adam-decay": (
        {"optimizer": "adam", "weight_decay": 0.05},
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.05),
    ),
    "nesterov": (
        {"momentum": 0.9, "nesterov": True},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "nesterov-decay-clip": (
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.05, "clip": 0.3},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.05, nesterov=True),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.5},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
    ),
    "adamw-clip": (
        {"optimizer": "adamw", "clip": 0.3},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0),
    ),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Workers(2) as workers:
        yield Lab(workers)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize(("model", "executor", "kind"), RUNS, ids=[f"{m}-{e}" for m, e, _ in RUNS])
def test_training_equals_torch_optim(
    model: str, executor: ExecutorName, kind: type, optimiser: str, lab: Lab
) -> None:
    module, data = seeded(MODELS[model]), peers()
    settings, make = OPTIMISERS[optimiser]
    training = Training(**{"epochs": 3, "batch_size": 4, "lr": 0.1, "clip": 0.0, **settings})
    assert isinstance(Executor(executor, module, lab.workers)._model, kind)
    params, losses = lab.coterie(module, executor, data, training)
    for peer in range(data.peers):
        net, loss = torch_training(module, batches_of(data, peer, training), make, training.clip)
        assert_equal_models(params, peer, net)
        assert float(losses[peer]) == pytest.approx(loss, rel=1e-5)


@pytest.fixture
def turning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor on which the memory order of the weights matters."""
    monkeypatch.setattr("coterie.learning.stacked._either_order_is_fast", lambda: False)


@pytest.mark.usefixtures("turning")
@pytest.mark.parametrize("proximal", [0.0, 0.3], ids=["", "proximal"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_weights_that_are_turned_in_memory_train_as_others(optimiser: str, proximal: float, lab: Lab) -> None:
    """All rows, whose results share memory, and every other row, whose do not; nobody's start is changed."""
    module, data = seeded(wide), peers((20, 33, 17, 16))
    training = Training(**{"epochs": 3, "batch_size": 16, "lr": 0.1, "clip": 0.0, **OPTIMISERS[optimiser][0]})
    start = stacked(module, data.peers)
    anchor = {name: value + 0.1 for name, value in start.items()}
    before = {name: value.clone() for name, value in start.items()}
    layers = StackedLayers(module)  # type: ignore[arg-type]
    assert layers.turned(16) == {"0.weight", "2.weight"}
    assert not layers.turned(15)
    for rows in (torch.arange(4), torch.tensor([0, 2])):
        found = {
            executor: lab.coterie(
                module, executor, data, training, start=start, rows=rows, proximal=(proximal, anchor)
            )[0]
            for executor in ("stacked", "looped")
        }
        for name, value in found["stacked"].items():
            assert value.is_contiguous()
            torch.testing.assert_close(value, found["looped"][name], rtol=1e-9, atol=1e-9, msg=name)
            assert not torch.equal(value[rows], before[name][rows]), name
    assert all(torch.equal(value, before[name]) for name, value in start.items())


def test_weights_stay_as_they_are_where_either_order_is_fast(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And train to the same model."""
    module, data = seeded(wide), peers((20, 33, 17, 16))
    training = Training(epochs=3, batch_size=16, lr=0.1, clip=0.0)
    found = {}
    for fast in (False, True):
        monkeypatch.setattr("coterie.learning.stacked._either_order_is_fast", lambda fast=fast: fast)
        assert bool(StackedLayers(module).turned(16)) is not fast  # type: ignore[arg-type]
        found[fast] = lab.coterie(module, "stacked", data, training)[0]
    for name, value in found[True].items():
        torch.testing.assert_close(value, found[False][name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.usefixtures("turning")
def test_a_turned_weight_of_one_feature_is_a_copy(lab: Lab) -> None:
    """It has the same memory order either way, and still must not be the caller's own."""
    module = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, CLASSES)).double()
    rng = np.random.default_rng(0)
    made = from_peers([(rng.normal(size=(20, 1)), rng.integers(0, CLASSES, 20))] * 2, n_classes=CLASSES)
    data = Federation(**{**vars(made), "x": made.x.double()})
    start = stacked(module, 2)
    before = {name: value.clone() for name, value in start.items()}
    lab.coterie(module, "stacked", data, Training(epochs=1, batch_size=16, lr=0.1), start=start)
    assert all(torch.equal(value, before[name]) for name, value in start.items())


@pytest.mark.parametrize(("model", "executor", "kind"), RUNS, ids=[f"{m}-{e}" for m, e, _ in RUNS])
def test_chunking_and_company_do_not_matter(
    model: str, executor: ExecutorName, kind: type, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, data = seeded(MODELS[model]), peers()
    training = Training(epochs=2, batch_size=3, lr=0.1)
    together, _ = lab.coterie(module, executor, data, training)
    monkeypatch.setattr("coterie.learning.executor._CACHE_BYTES", 1)
    one_each, _ = lab.coterie(module, executor, data, training)
    alone, _ = lab.coterie(module, executor, data, training, rows=torch.tensor([3]))
    for name, value in together.items():
        torch.testing.assert_close(one_each[name], value, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(alone[name][3], value[3], rtol=1e-9, atol=1e-9)
        assert torch.equal(alone[name][:3], stacked(module, 4)[name][:3]), "only row 3 was to train"


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_only_changes_those_names(executor: ExecutorName, lab: Lab) -> None:
    module, data, training = seeded(dense), peers(), Training(epochs=2, batch_size=4, weight_decay=0.1)
    start = stacked(module, data.peers)
    for only in (("1.weight",), ("1.bias", "3.weight"), ("3.weight",)):
        params, _ = lab.coterie(module, executor, data, training, only=only)
        for name in start:
            assert torch.equal(params[name], start[name]) is (name not in only), (only, name)
        for peer in range(data.peers):  # what stays is a constant for the gradient of what changes
            frozen = copy.deepcopy(module)
            for name, parameter in frozen.named_parameters():
                parameter.requires_grad_(name in only)
            net, _ = torch_training(
                frozen,
                batches_of(data, peer, training),
                lambda p: torch.optim.SGD([q for q in p if q.requires_grad], lr=0.05, weight_decay=0.1),
                training.clip,
            )
            assert_equal_models(params, peer, net.requires_grad_())


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_uneven_epochs(executor: ExecutorName, lab: Lab) -> None:
    module, data = seeded(dense), peers()
    epochs = torch.tensor([2, 0, 3, 1])
    params, losses = lab.coterie(module, executor, data, Training(batch_size=4), epochs=epochs)
    assert losses.isnan().tolist() == [False, True, False, False]
    for peer, count in enumerate(epochs.tolist()):
        training = Training(batch_size=4, epochs=count)
        net, _ = torch_training(
            module,
            batches_of(data, peer, training) if count else [],
            lambda p: torch.optim.SGD(p, lr=0.05),
            training.clip,
        )
        assert_equal_models(params, peer, net)


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_proximal_pulls_towards_the_anchor(executor: ExecutorName, lab: Lab) -> None:
    """By hand: w <- w - lr (g + mu (w - anchor)), every row with its own anchor."""
    module, data, mu, lr = seeded(dense), peers(), 0.7, 0.1
    anchors = {
        name: value + torch.arange(4.0).reshape(-1, *[1] * (value.dim() - 1))
        for name, value in stacked(module, 4).items()
    }
    training = Training(epochs=2, batch_size=4, lr=lr, clip=0.0)
    params, _ = lab.coterie(module, executor, data, training, proximal=(mu, anchors))
    for peer in range(data.peers):
        net = copy.deepcopy(module)
        for x, y in batches_of(data, peer, training):
            gradients = torch.autograd.grad(nn.functional.cross_entropy(net(x), y), list(net.parameters()))
            with torch.no_grad():
                for (name, p), g in zip(net.named_parameters(), gradients, strict=True):
                    p -= lr * (g + mu * (p - anchors[name][peer]))
        assert_equal_models(params, peer, net)


def one_batch(module: nn.Module, padded: bool) -> tuple[Params, Batch, list[int]]:
    """Two rows of six samples; with padding, the second row has only four."""
    rng = np.random.default_rng(5)
    x, y = torch.tensor(rng.normal(size=(2, 6, FEATURES))), torch.tensor(rng.integers(0, CLASSES, (2, 6)))
    sizes = [6, 4] if padded else [6, 6]
    present = torch.tensor([[float(k < size) for k in range(6)] for size in sizes]) if padded else None
    params = stacked(module, 2)
    for name in dict(module.named_parameters()):
        params[name] += 0.1 * torch.tensor(rng.normal(size=params[name].shape))
    return params, Batch(y, torch.arange(2), torch.zeros(2, 6, dtype=torch.long), present, x), sizes


def row_module(module: nn.Module, params: Params, row: int) -> nn.Module:
    net = copy.deepcopy(module)
    net.load_state_dict({name: value[row] for name, value in params.items()}, strict=False)
    return net.train()


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("model", ["dense", "reused-in-place", "batch-norm", "branches"])
def test_gradients_of_many_rows_equal_autograd(model: str, padded: bool) -> None:
    """Also factored ones, and their norm, which comes from Gram matrices."""
    module = seeded(MODELS[model])
    params, batch, sizes = one_batch(module, padded)
    names = tuple(dict(module.named_parameters()))
    nets = [row_module(module, params, row) for row in range(2)]
    batched = StackedLayers(module) if StackedLayers.supports(module) else Vmapped(module)  # type: ignore[arg-type]
    losses, gradients = batched.gradients(params, batch, cross_entropy, names)
    norms = norm(gradients)
    for row, (net, size) in enumerate(zip(nets, sizes, strict=True)):
        loss = nn.functional.cross_entropy(net(batch.x[row, :size]), batch.y[row, :size])
        expected = torch.autograd.grad(loss, list(net.parameters()))
        assert float(losses[row]) == pytest.approx(loss.item(), rel=1e-12)
        for name, value in zip(names, expected, strict=True):
            found = gradients[name]
            found = found.dense(value[None]) if isinstance(found, Outer) else found
            torch.testing.assert_close(found[row], value, rtol=1e-9, atol=1e-12, msg=name)
        total = torch.cat([value.flatten() for value in expected]).norm()
        assert float(norms[row]) == pytest.approx(float(total), rel=1e-9)
        for name, buffer in net.named_buffers():  # the running statistics after this batch
            if buffer.is_floating_point():
                torch.testing.assert_close(params[name][row], buffer, rtol=1e-9, atol=1e-12, msg=name)
    limit = float(norms.min()) * 1.01
    small = norm(clipped(gradients, limit))
    assert float(small.max()) <= limit
    assert float(small[norms.argmin()]) == pytest.approx(float(norms.min()), rel=1e-5)


@pytest.mark.parametrize("same", [True, False], ids=["same-batch", "other-batch"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("model", ["dense", "batch-norm"])
def test_gradients_at_moved_weights_are_those_at_the_sum(model: str, padded: bool, same: bool) -> None:
    """A step away that is never added to the weights, as sharpness-aware steps take it.

    The step may come from the same batch, whose products are known by then, or from another one.
    """
    module = seeded(MODELS[model])
    params, batch, _ = one_batch(module, padded)
    first = batch if same else replace(batch, x=batch.x.flip(1) * 1.5)
    names = tuple(dict(module.named_parameters()))
    batched = StackedLayers(module)  # type: ignore[arg-type]

    def gradients(at: Params) -> dict[str, Tensor]:
        own = {name: value if isinstance(value, Moved) else value.clone() for name, value in at.items()}
        found = batched.gradients(own, batch, cross_entropy, names)[1]
        return {name: g.dense(params[name]) if isinstance(g, Outer) else g for name, g in found.items()}

    step = scaled(batched.gradients(dict(params), first, cross_entropy, names)[1], torch.tensor([0.5, -2.0]))
    assert any(isinstance(value, Outer) for value in step.values())
    apart = gradients({**params, **{name: moved(params[name], step[name]) for name in names}})
    added = {name: params[name].clone() for name in names}
    for name in names:
        add_(added[name], step[name], 1.0)
    together = gradients({**params, **added})
    before = gradients(params)
    for name in names:
        torch.testing.assert_close(apart[name], together[name], rtol=1e-9, atol=1e-12, msg=name)
    assert any(not torch.allclose(apart[name], before[name]) for name in names)


@pytest.mark.parametrize("model", ["dense", "batch-norm", "branches"])
def test_logits_equal_the_module_in_evaluation_mode(model: str) -> None:
    module = seeded(MODELS[model])
    params, batch, _ = one_batch(module, False)
    for way in (StackedLayers, Vmapped):
        if not way.supports(module):
            continue
        logits = way(module).outputs(params, batch.x)  # type: ignore[arg-type]
        for row in range(2):
            expected = row_module(module, params, row).eval()(batch.x[row])
            torch.testing.assert_close(logits[row], expected, rtol=1e-9, atol=1e-12)


class Scaled(nn.Linear):
    """A Linear that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


def tied() -> nn.Module:
    square = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(square, nn.Tanh(), square, nn.Linear(FEATURES, CLASSES))


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    module[0].register_forward_hook(lambda layer, inputs, output: 3.0 * output)
    return module


@pytest.mark.parametrize(
    "build",
    [lambda: nn.Sequential(Scaled(FEATURES, CLASSES)), tied, hooked],
    ids=["subclass", "tied", "hook"],
)
def test_what_only_looks_like_dense_layers_is_run_as_it_is(build: Callable[[], nn.Module], lab: Lab) -> None:
    module, data, training = seeded(build), peers(), Training(epochs=1, batch_size=4, lr=0.1)
    for executor in ("stacked", "looped"):
        params, _ = lab.coterie(module, executor, data, training)  # type: ignore[arg-type]
        for peer in range(data.peers):
            net, _ = torch_training(
                module, batches_of(data, peer, training), lambda p: torch.optim.SGD(p, lr=0.1), training.clip
            )
            assert_equal_models(params, peer, net)


def test_batch_norm_before_flatten_is_not_stacked() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(10, CLASSES))
    assert not StackedLayers.supports(module)
    with pytest.raises(ConfigError, match="looped"):
        Executor("stacked", module, Workers(1))


def test_a_batch_of_one_sample_uses_the_running_statistics(lab: Lab) -> None:
    """One sample has no variance: neither executor may divide by it, nor learn statistics from it."""
    module, data, training = seeded(normalised), peers((1,)), Training(epochs=2, lr=0.1)
    results = [lab.coterie(module, executor, data, training)[0] for executor in ("stacked", "looped")]  # type: ignore[arg-type]
    for params in results:
        for name in ("0.running_mean", "0.running_var", "3.running_mean", "3.running_var"):
            assert torch.equal(params[name], model_tree(module)[name])
        assert not torch.equal(params["4.weight"], model_tree(module)["4.weight"])
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-9, atol=1e-9)


def test_the_iot_network_agrees_in_both_executors(lab: Lab) -> None:
    from coterie.models import build

    module = build("iot-mlp(16)", (FEATURES,), CLASSES, seed=3).double()
    data, training = peers((9, 5, 2, 1, 14)), Training(epochs=3, batch_size=4, lr=0.1, momentum=0.9)
    ours, theirs = (lab.coterie(module, executor, data, training)[0] for executor in ("stacked", "looped"))  # type: ignore[arg-type]
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_batches_drawn_for_a_few_rows_at_a_time_are_the_same(
    executor: ExecutorName, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Very many peers are not drawn all at once; also with unequal numbers of samples."""
    module, data = seeded(dense), peers((9, 5, 2, 1, 14, 14, 3, 8, 8))
    for training in (Training(epochs=2, batch_size=4, lr=0.1), Training(steps=7, batch_size=4, lr=0.1)):
        together, losses = lab.coterie(module, executor, data, training)
        with monkeypatch.context() as patched:
            patched.setattr("coterie.learning.executor._DRAWN_BYTES", 1)
            apart, same_losses = lab.coterie(module, executor, data, training)
        assert torch.equal(losses, same_losses)
        for name, value in together.items():
            assert torch.equal(apart[name], value), name


@pytest.mark.parametrize("optimiser", ["sgd", "momentum-decay", "clip", "adam"])
@pytest.mark.parametrize("model", ["dense", "branches"])
@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_accumulated_gradients_are_those_of_a_larger_batch(
    executor: ExecutorName, model: str, optimiser: str, lab: Lab
) -> None:
    """Three batches of 2 are one of 6; rows that have 1, 2 or 4 of them left end with a smaller step."""
    module, data = seeded(MODELS[model]), peers((12, 6, 2, 8))
    settings, make = OPTIMISERS[optimiser]
    training = Training(**{"epochs": 1, "batch_size": 2, "lr": 0.1, "clip": 0.0, "accumulate": 3, **settings})
    params, losses = lab.coterie(module, executor, data, training)
    for peer in range(data.peers):
        small = batches_of(data, peer, training)
        groups = [small[first : first + 3] for first in range(0, len(small), 3)]
        large = [(torch.cat([x for x, _ in group]), torch.cat([y for _, y in group])) for group in groups]
        net, _ = torch_training(module, large, make, training.clip)
        assert_equal_models(params, peer, net)
    assert bool(losses.isfinite().all())


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_a_rule_may_ask_for_accumulated_gradients_twice(executor: ExecutorName, lab: Lab) -> None:
    """Sharpness-aware steps: the second gradient is taken elsewhere, over the same batches."""
    module, data = seeded(dense), peers((12, 6))
    around = partial(SharpnessAware, 0.1)
    small = Training(batch_size=2, lr=0.1, accumulate=3)
    found, _ = lab.coterie(module, executor, data, small, around=around)
    for peer in range(2):
        batches = batches_of(data, peer, small)
        net = copy.deepcopy(module)
        for first in range(0, len(batches), 3):
            x, y = (torch.cat(part) for part in zip(*batches[first : first + 3], strict=True))
            weights = list(net.parameters())
            ascent = torch.autograd.grad(nn.functional.cross_entropy(net(x), y), weights)
            length = torch.cat([g.flatten() for g in ascent]).norm()
            with torch.no_grad():
                for p, g in zip(weights, ascent, strict=True):
                    p += 0.1 * g / length
            there = torch.autograd.grad(nn.functional.cross_entropy(net(x), y), weights)
            with torch.no_grad():
                for p, g, g2 in zip(weights, ascent, there, strict=True):
                    p -= 0.1 * g / length + 0.1 * g2
        assert_equal_models(found, peer, net)
