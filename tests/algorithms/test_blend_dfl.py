"""BlendDFL against a NumPy version of its equations, on softmax regression with full batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.algorithms.blend_dfl import BlendDFL, BlendState
from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.parts.distillation import class_weights
from coterie.data import from_peers
from coterie.errors import ConfigError
from coterie.learning import CLASSIFICATION, Executor, Workers
from coterie.protocol import Algorithm, Batch, Samples
from coterie.simulation import Simulation
from coterie.topology import Graph, Topology, make
from coterie.training import Training

Array = NDArray[np.float64]
softened, kl_from = CLASSIFICATION.softened, CLASSIFICATION.divergence

FEATURES, CLASSES, ROUNDS, LR = 3, 4, 4, 0.5
LABELS = ([0, 0, 0, 0, 0, 1, 2], [1, 1, 1, 3, 3], [2], [0, 1, 1, 1, 3, 3])  # peer 2 has one sample
EDGES = [(0, 1), (1, 2)]  # peer 3 has no neighbours


def data() -> list[tuple[Array, NDArray[np.int64]]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(len(y), FEATURES)), np.array(y)) for y in LABELS]


def simulation(
    algorithm: Algorithm[Any],
    topology: Topology | None = None,
    module: nn.Module | None = None,
    local_buffers: bool = False,
    **training: Any,
) -> Simulation:
    parts = [{"train": (x, y), "test": (x, y)} for x, y in data()]
    rng = np.random.default_rng(1)
    common = (rng.normal(size=(30, FEATURES)), rng.integers(0, CLASSES, 30))
    if module is None:
        module = nn.Sequential(nn.Linear(FEATURES, CLASSES))
        nn.init.zeros_(module[0].weight)
        nn.init.zeros_(module[0].bias)
    settings = {"epochs": 2, "batch_size": 100, "lr": LR, "clip": 0.0, **training}
    return Simulation(
        algorithm=algorithm,
        federation=from_peers(parts, n_classes=CLASSES, common_test=common),
        module=module,
        topology=topology or make(EDGES, peers=len(LABELS), seed=0),
        training=Training(**settings),
        executor=Executor("stacked", module, Workers(1)),
        seed=0,
        rounds=ROUNDS,
        local_buffers=local_buffers,
    )


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


class Reference:
    """Algorithm 1 of the paper, peer by peer. A model is one matrix; its last column is the bias."""

    def __init__(self, algorithm: BlendDFL) -> None:
        self.a = algorithm
        self.data = [(np.c_[x.astype(np.float32), np.ones(len(x))], y) for x, y in data()]
        self.aggregated = [np.zeros((CLASSES, FEATURES + 1)) for _ in LABELS]
        self.local: list[Array] = []
        self.near = [[i] + [b for a, b in EDGES + [e[::-1] for e in EDGES] if a == i] for i in range(4)]

    def round(self, t: int) -> None:
        self.local = [self.train(i, t) for i in range(len(LABELS))]
        self.aggregated = [np.mean([self.local[j] for j in near], 0) for near in self.near]

    def train(self, i: int, t: int) -> Array:
        x, y = self.data[i]
        model, w = self.aggregated[i], self.weights(y, t / (ROUNDS - 1))
        teacher = np.mean([x @ self.local[j].T for j in self.near[i]], 0) if t else None
        for _ in range(2):
            z = x @ model.T
            ce = w[:, None] * (softmax(z) - np.eye(CLASSES)[y])
            slope = ce / (w.sum() if self.a.ce_norm == "weights" else len(y))
            if teacher is not None:
                T = self.a.temperature
                # d/dz of T^2 KL(p || softmax(z/T)) is T (softmax(z/T) - p)
                kd = w[:, None] * T * (softmax(z / T) - softmax(teacher / T)) / w.sum()
                slope = slope + self.a.kd_weight * kd
            model = model - LR * slope.T @ x
        return model

    def weights(self, y: NDArray[np.int64], progress: float) -> Array:
        if self.a.weighting == "none":
            return np.ones(len(y))
        classes, counts = np.unique(y, return_counts=True)
        beta = 1 / counts
        beta = dict(zip(classes, beta / beta.sum() * len(classes), strict=True))
        b = np.array([beta[c] for c in y])
        return b if self.a.weighting == "fixed" else 1 + progress * (b - 1)


def stacked(models: list[Array]) -> tuple[Tensor, Tensor]:
    all_models = torch.tensor(np.stack(models)).float()
    return all_models[..., :-1], all_models[..., -1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kd_weight": 0.3, "temperature": 1.0, "weighting": "fixed"},
        {"weighting": "none"},
        {"ce_norm": "batch", "temperature": 2.0},
        {"kd_weight": 0.0},
    ],
    ids=str,
)
def test_rounds_follow_the_equations(settings: dict[str, Any]) -> None:
    algorithm = BlendDFL(**settings)
    reference, ours = Reference(algorithm), simulation(algorithm)
    for t in range(ROUNDS):
        reference.round(t)
        ours.step()
        weight, bias = stacked(reference.aggregated)
        params = ours.personal()
        torch.testing.assert_close(params["0.weight"], weight, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(params["0.bias"], bias, rtol=1e-4, atol=1e-5)


def test_without_distillation_and_weights_it_is_d_psgd_bit_for_bit() -> None:
    blend = simulation(BlendDFL(kd_weight=0.0, weighting="none"), batch_size=2, clip=1.0)
    plain = simulation(DPSGD(), batch_size=2, clip=1.0)
    for _ in range(3):
        blend.step()
        plain.step()
    for name, value in plain.personal().items():
        assert torch.equal(blend.personal()[name], value)


def samples_of(labels: list[list[int]], present: list[list[int]] | None = None) -> Samples:
    y = torch.tensor(labels)
    mask = None if present is None else torch.tensor(present).float()
    return Samples(y, torch.arange(len(y)), torch.zeros_like(y), mask)


def test_class_weights_by_hand() -> None:
    # Counts 3 and 1: 1/3 and 1, whose mean is 2/3: rescaled to 1/2 and 3/2.
    mixed, one_class = class_weights(samples_of([[0, 0, 0, 2], [1, 1, 1, 1]]))
    torch.testing.assert_close(mixed, torch.tensor([0.5, 0.5, 0.5, 1.5]))
    torch.testing.assert_close(one_class, torch.ones(4))


def test_padding_has_no_weight_and_counts_for_no_class() -> None:
    weights = class_weights(samples_of([[0, 0, 0, 2, 0, 0]], [[1, 1, 1, 1, 0, 0]]))
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0.5, 0.5, 1.5, 0.0, 0.0]]))


def test_weights_grow_from_1_to_beta() -> None:
    samples, blend = samples_of([[0, 0, 0, 2]]), BlendDFL()
    start, middle, end = (blend.weights(samples, progress) for progress in (0.0, 0.5, 1.0))
    assert torch.equal(start, torch.ones(1, 4))
    torch.testing.assert_close(middle, torch.tensor([[0.75, 0.75, 0.75, 1.25]]))
    torch.testing.assert_close(end, class_weights(samples))


def test_kl_divergence_is_that_of_the_softened_distributions() -> None:
    rng = np.random.default_rng(2)
    teacher, student = rng.normal(size=(2, 5, CLASSES))
    p, q = softmax(teacher / 3), softmax(student / 3)
    expected = (p * np.log(p / q)).sum(1)
    found = kl_from(
        softened(torch.tensor(teacher), 3.0),
        softened(torch.tensor(student), 3.0),
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert bool((found > 0).all())
    shifted = torch.tensor(student)  # softmax does not see a constant
    assert float(kl_from(softened(shifted, 3.0), softened(shifted + 7.0, 3.0)).abs().max()) < 1e-12


# y of two batches, and the weights of eq. 12 half-way: counts 3 and 1 give beta 1/2 and 3/2.
BATCHES = [[0, 0, 0, 2], [1, 3, 3, 3]]
HALF_WAY = np.array([[0.75, 0.75, 0.75, 1.25], [1.25, 0.75, 0.75, 0.75]])


def loss_of(blend: BlendDFL, teacher: Array, student: Array, taught: float = 1.0) -> Array:
    """The algorithm's own loss of both batches, in the middle of its rounds."""
    state = BlendState({}, torch.tensor(teacher), torch.full((2,), taught))
    node: Any = SimpleNamespace(round=2, rounds=5, task=CLASSIFICATION)
    index = torch.tensor([[3, 0, 2, 1], [0, 1, 2, 3]])  # of the samples in the teachers' table
    y, rows = torch.tensor(BATCHES), torch.arange(2)
    prepared = blend.prepare(state, node)(Samples(y, rows, index, None))
    batch = Batch(y, rows, index, None, torch.zeros(2, 4, 1), prepared=prepared)
    logits = np.take_along_axis(student, index.numpy()[..., None], 1)
    return blend.loss(CLASSIFICATION, torch.tensor(logits), batch).numpy()


def test_the_value_of_the_loss_is_cross_entropy_and_distillation() -> None:
    rng = np.random.default_rng(8)
    teacher, student = rng.normal(size=(2, 2, 4, CLASSES))
    order = [[3, 0, 2, 1], [0, 1, 2, 3]]
    for temperature in (1.0, 3.0):
        blend = BlendDFL(kd_weight=0.7, temperature=temperature)
        found, untaught = loss_of(blend, teacher, student), loss_of(blend, teacher, student, taught=0.0)
        for row in range(2):
            z, z_teacher, w = student[row][order[row]], teacher[row][order[row]], HALF_WAY[row]
            ce = -np.log(softmax(z)[np.arange(4), BATCHES[row]])
            p, q = softmax(z_teacher / temperature), softmax(z / temperature)
            kl = (p * np.log(p / q)).sum(1)
            expected_ce, kd = (w * ce).sum() / w.sum(), temperature**2 * (w * kl).sum() / w.sum()
            assert kd > 0
            assert untaught[row] == pytest.approx(expected_ce, rel=1e-6)
            assert found[row] == pytest.approx(expected_ce + 0.7 * kd, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_distillation_is_zero_where_the_student_is_its_teacher_and_never_negative(temperature: float) -> None:
    rng = np.random.default_rng(9)
    blend = BlendDFL(kd_weight=2.0, temperature=temperature)
    for scale in (0.01, 1.0, 10.0):
        teacher, student = scale * rng.normal(size=(2, 2, 4, CLASSES))
        same = loss_of(blend, teacher, teacher) - loss_of(blend, teacher, teacher, taught=0.0)
        other = loss_of(blend, teacher, student) - loss_of(blend, teacher, student, taught=0.0)
        np.testing.assert_allclose(same, 0.0, atol=1e-5 * max(1.0, scale))
        assert (other > 0).all()


def test_squared_temperature_keeps_the_order_of_the_gradient() -> None:
    torch.manual_seed(0)
    teacher = torch.randn(1, 50, CLASSES)
    norms = []
    for temperature in range(1, 6):
        student = torch.randn(1, 50, CLASSES, generator=torch.Generator().manual_seed(1)).requires_grad_()
        kl = kl_from(softened(teacher, temperature), softened(student, temperature)) * temperature**2
        norms.append(float(torch.autograd.grad(kl.sum(), student)[0].norm()))
    assert max(norms) < 2 * min(norms)


class Late(Topology):
    """Peer 1 sits out the first round."""

    def __init__(self) -> None:
        self.nodes, self.hub, self.directed, self.time_varying = len(LABELS), None, False, False

    def graph(self, round: int) -> Graph:
        return make(EDGES, peers=self.nodes, seed=0).graph(0)

    def online(self, round: int) -> Tensor:
        return torch.arange(self.nodes) != (1 if round == 0 else -1)


def test_a_peer_that_comes_late_has_no_teachers_yet() -> None:
    """In its first round it must not be drawn to an empty table: it trains as in D-PSGD."""
    taught, alone = (simulation(BlendDFL(kd_weight=k, weighting="none"), Late()) for k in (25.0, 0.0))
    for played in (taught, alone):
        played.step()
    assert taught.blocks[0].state.taught.tolist() == [1, 0, 1, 1]
    shown = []
    for played in (taught, alone):
        played.step()
        shown.append(played.blocks[0].node.shown["after_local"]["0.weight"])
    assert torch.equal(shown[0][1], shown[1][1])
    assert not torch.equal(shown[0][3], shown[1][3])
    assert taught.blocks[0].state.taught.tolist() == [1, 1, 1, 1]


def test_divergence_is_the_accuracy_lost_by_local_training_on_the_common_test_set() -> None:
    ours = simulation(BlendDFL())
    ours.step(evaluate=False)
    assert not ours.blocks[0].node.recorded
    start = ours.personal()
    record = ours.step()
    x = torch.tensor(np.random.default_rng(1).normal(size=(30, FEATURES))).float()
    y = ours.federation.y[ours.federation.common_test]

    def accuracy(params: dict[str, Tensor]) -> Tensor:
        logits = torch.einsum("pcf,nf->pnc", params["0.weight"], x) + params["0.bias"][:, None]
        return (logits.argmax(-1) == y).float().mean(1)

    local = ours.blocks[0].node.shown["after_local"]
    torch.testing.assert_close(record.diagnostics["divergence"], accuracy(local) - accuracy(start))


def test_teachers_without_statistics_are_heard_with_ones_own() -> None:
    """With BatchNorm statistics kept at home a message is no whole model."""
    net = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES))
    ours = simulation(BlendDFL(), module=net, local_buffers=True)
    ours.step()
    state, node = ours.blocks[0].state, ours.blocks[0].node
    local = node.shown["after_local"]
    mean = torch.zeros(len(LABELS[0]), CLASSES)
    for teacher in (0, 1):  # peer 0 hears itself and peer 1
        x = ours.federation.x[ours.federation.train.of(0)]
        normal = (x - local["0.running_mean"][0]) / (local["0.running_var"][0] + 1e-5).sqrt()
        normal = normal * local["0.weight"][teacher] + local["0.bias"][teacher]
        mean += (normal @ local["1.weight"][teacher].T + local["1.bias"][teacher]) / 2
    torch.testing.assert_close(state.teacher_logits[0], mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [{"kd_weight": -1.0}, {"temperature": 0.0}], ids=str)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BlendDFL(**wrong)
