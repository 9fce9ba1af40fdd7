"""Guards and lies on a few models, against NumPy and by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.algorithms.parts.push_sum import PlausibleShares
from coterie.algorithms.parts.weighting import judged_by, weighted
from coterie.algorithms.robust.attacks import (
    ALittleIsEnough,
    Dissensus,
    Gaussian,
    InnerProduct,
    Lying,
    Mimic,
    Scaling,
    SignFlip,
)
from coterie.algorithms.robust.guards import (
    Balance,
    Clipping,
    GeometricMedian,
    Near,
    TrimmedMean,
    Ubar,
    Watched,
    geometric_median,
)
from coterie.algorithms.robust.received import messages_of, middle_of_rows
from coterie.catalogue import attacks, guards
from coterie.errors import ConfigError, ContractError
from coterie.protocol import Bundle, Exchange, Inbox
from coterie.protocol.plausible import Sized
from coterie.randomness import stream

RNG = np.random.default_rng(5)
MODELS = RNG.normal(size=(6, 7))  # of six nodes: `w` has the first four numbers, `b` the rest
ROWS = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
SENDERS = np.array([1, 2, 3, 5, 0, 4, 0, 1, 5])


def params(values: np.ndarray) -> dict[str, Tensor]:
    tensor = torch.tensor(values)
    return {"w": tensor[:, :4].reshape(-1, 2, 2), "b": tensor[:, 4:]}


def flat(models: dict[str, Tensor]) -> np.ndarray:
    return torch.cat([leaf.flatten(1) for leaf in models.values()], 1).numpy()


class Node(SimpleNamespace):
    """As much of a node as guards and lies need: three rows of six nodes."""

    def __init__(self, **more: Any) -> None:
        graph = SimpleNamespace(nodes=6)
        super().__init__(rows=3, graph=graph, round=2, rounds=8, evaluating=True, recorded={}, **more)

    def record(self, **values: Tensor) -> None:
        self.recorded |= values

    def rng(self, purpose: str) -> Any:
        return stream(3, purpose, self.round, torch.arange(3))


def inbox_of(payload: Any) -> Inbox:
    """Everyone's payload is stacked over the six nodes."""
    rows, senders = torch.tensor(ROWS), torch.tensor(SENDERS)
    first = Bundle(payload, senders[:5], rows[:5], senders[:5])
    return Inbox([first, Bundle(payload, senders[5:], rows[5:], senders[5:])], 3)


def changed(change: Any, node: Node | None = None, models: np.ndarray = MODELS) -> dict[tuple[int, int], Any]:
    """By row and sender, the models after a change."""
    own = params(models[:3])
    messages = messages_of(Exchange(own), inbox_of(params(models)))
    assert messages is not None
    return by_link(change(messages, node or Node()))


def by_link(inbox: Inbox) -> dict[tuple[int, int], Any]:
    bundle = inbox.pick(torch.ones(len(inbox.rows), dtype=torch.bool))
    links = zip(bundle.rows.tolist(), bundle.senders.tolist(), strict=True)
    return dict(zip(links, flat(bundle.payload), strict=True))  # type: ignore[arg-type]


def distances(row: int) -> np.ndarray:
    return np.linalg.norm(MODELS[SENDERS[row == ROWS]] - MODELS[row], axis=1)


def lower_median(values: np.ndarray) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])


def test_the_median_of_each_row() -> None:
    values = RNG.normal(size=len(ROWS))
    expected = [lower_median(values[row == ROWS]) for row in range(3)] + [np.inf]
    found = middle_of_rows(torch.tensor(values), torch.tensor(ROWS), 4)
    assert found.tolist() == expected


@pytest.mark.parametrize("tau", [0.0, 1.5])
def test_clipping_is_self_centred(tau: float) -> None:
    for (row, sender), model in changed(Clipping(tau)).items():
        away = MODELS[sender] - MODELS[row]
        most = tau or lower_median(distances(row))
        assert model == pytest.approx(MODELS[row] + away * min(1, most / np.linalg.norm(away)))


def test_near_leaves_out_the_distant_only() -> None:
    liar = MODELS.copy()
    liar[5] = 50.0
    found = changed(Near(), models=liar)
    assert sorted(found) == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 4), (2, 0), (2, 1)]
    for (_, sender), model in found.items():
        assert (model == liar[sender]).all(), "bit by bit"


def test_where_nothing_is_wrong_the_inbox_is_what_it_was() -> None:
    messages = messages_of(Exchange(params(MODELS[:3])), inbox_of(params(MODELS)))
    assert messages is not None
    before = messages.inbox
    after = Near(100.0)(messages, Node())  # type: ignore[arg-type]
    assert after.senders.tolist() == before.senders.tolist()
    assert all(torch.equal(a, b) for a, b in zip(after.sum().values(), before.sum().values(), strict=True))  # type: ignore[union-attr]


def test_balance_accepts_by_the_norm_of_ones_own() -> None:
    found = changed(Balance(gamma=1.9, kappa=0.5))
    most = 1.9 * np.exp(-0.5 * 2 / 8) * np.linalg.norm(MODELS[:3], axis=1)
    near = [
        (r, s) for r, s in zip(ROWS, SENDERS, strict=True) if np.linalg.norm(MODELS[s] - MODELS[r]) <= most[r]
    ]
    assert 0 < len(near) < len(ROWS)
    assert sorted(found) == sorted(near)


def test_ubar_takes_the_nearest_that_are_no_worse() -> None:
    """The loss of a model is its first number; one's own loss is that of the receiver's model."""

    def evaluate(models: dict[str, Tensor], split: str, rows: Tensor | None = None) -> Any:
        assert split == "train"
        return SimpleNamespace(loss=models["w"][:, 0, 0])

    found = changed(Ubar(0.7), Node(evaluate=evaluate, names=lambda: ("w", "b")))
    expected = []
    for row in range(3):
        senders = SENDERS[row == ROWS]
        nearest = senders[np.argsort(distances(row))[: int(np.ceil(0.7 * len(senders)))]]
        good = [s for s in nearest if MODELS[s, 0] <= MODELS[row, 0]] or [
            min(nearest, key=lambda s: MODELS[s, 0])
        ]
        expected += [(row, s) for s in good]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("trim", [0, 1, 2, 9])
def test_the_trimmed_mean_of_each_coordinate(trim: int) -> None:
    for (row, _), model in changed(TrimmedMean(trim)).items():
        values = np.sort(MODELS[[row, *SENDERS[row == ROWS]]], axis=0)
        cut = min(trim, (len(values) - 1) // 2)
        assert model == pytest.approx(values[cut : len(values) - cut].mean(0))


def test_the_geometric_median_balances_all_directions() -> None:
    """Where the sum of distances is smallest, the unit vectors towards all others add up to nothing."""
    for (row, _), model in changed(GeometricMedian()).items():
        points = MODELS[[row, *SENDERS[row == ROWS]]]
        towards = points - model
        lengths = np.linalg.norm(towards, axis=1)
        units = (towards / lengths[:, None])[lengths > 1e-6]
        assert np.linalg.norm(units.sum(0)) <= 1e-3 + (len(points) - len(units))
        best = np.linalg.norm(points - model, axis=1).sum()
        for other in (points.mean(0), np.median(points, axis=0)):
            assert best <= np.linalg.norm(points - other, axis=1).sum() + 1e-9
    same = torch.ones(4, 3, dtype=torch.float64)
    assert torch.allclose(geometric_median(same), same[0])


@pytest.mark.parametrize(
    "guard", [Near(), Clipping(), Clipping(0.5), Balance(), TrimmedMean(), GeometricMedian()]
)
def test_nothing_that_is_no_number_gets_through(guard: Any) -> None:
    models = MODELS.copy()
    models[5] = np.nan
    models[3] = np.inf
    for model in changed(guard, models=models).values():
        assert np.isfinite(model).all()


def test_weights_of_samples_stay_with_their_models() -> None:
    n = torch.tensor([10.0, 1e6, 3.0, 40.0, 5.0, 60.0], dtype=torch.float64)
    mine, everyone = params(MODELS[:3]), params(MODELS)
    exchange = Exchange(weighted(mine, n[:3]), check=judged_by(mine))
    messages = messages_of(exchange, inbox_of(weighted(everyone, n)))
    assert messages is not None
    after = Clipping()(messages, Node())  # type: ignore[arg-type]
    found = after.pick(torch.ones(len(after.rows), dtype=torch.bool))
    payload: Any = found.payload
    assert payload["samples"]["n"].tolist() == n[found.senders].tolist()
    plain = changed(Clipping())
    models = flat(payload["model"]) / payload["samples"]["n"].numpy()[:, None]
    for row, sender, model in zip(found.rows.tolist(), found.senders.tolist(), models, strict=True):
        assert model == pytest.approx(plain[row, sender])


def test_push_sum_keeps_its_mass() -> None:
    mass = torch.tensor([0.5, 1.0, 0.2, 2.0, 0.1, 0.7], dtype=torch.float64)
    mine, everyone = params(MODELS[:3]), params(MODELS)

    def shares(models: dict[str, Tensor], mu: Tensor) -> dict[str, dict[str, Tensor]]:
        by_mass = {name: leaf * mu.reshape(-1, *[1] * (leaf.dim() - 1)) for name, leaf in models.items()}
        return {"values": by_mass, "mass": {"mu": mu}}

    check = PlausibleShares(6.0, Sized(mine, "values", "mass/mu"))
    exchange = Exchange(shares(mine, mass[:3]), conserved=True, check=check)
    inbox = inbox_of(shares(everyone, mass))
    messages = messages_of(exchange, inbox)
    assert messages is not None
    after: Any = Balance(gamma=1e-9)(messages, Node())  # type: ignore[arg-type]
    assert torch.allclose(after.sum()["mass"]["mu"], inbox.sum()["mass"]["mu"])  # type: ignore[index, arg-type]
    total = flat(after.sum()["values"])
    for row in range(3):
        expected = MODELS[row] * float(mass[SENDERS[row == ROWS]].sum())
        assert total[row] == pytest.approx(expected), "whoever is too far counts as the receiver's own model"


def test_how_far_everyone_is_can_be_looked_up() -> None:
    node = Node()
    changed(Watched(Near()), node)
    far = node.recorded["far"].numpy()
    assert far.shape == (3, 6)
    for row, enough in ((0, True), (1, False), (2, True)):
        for sender, distance in zip(SENDERS[row == ROWS], distances(row), strict=True):
            expected = distance / lower_median(distances(row)) if enough else 0
            assert far[row, sender] == pytest.approx(expected)


# --- lies ----------------------------------------------------------------------------------------

LIARS = (3, 5)
HONEST = {row: [s for s in SENDERS[row == ROWS] if s not in LIARS] for row in range(3)}
TOLD = {row: [s for s in SENDERS[row == ROWS] if s in LIARS] for row in range(3)}


def lied(attack: Any) -> dict[tuple[int, int], Any]:
    found = changed(Lying(attack, LIARS))
    for row, senders in HONEST.items():
        for sender in senders:
            assert (found[row, sender] == MODELS[sender]).all(), "the honest are as they were"
    return {link: model for link, model in found.items() if link[1] in LIARS}


@pytest.mark.parametrize(("attack", "factor"), [(SignFlip(), -1.0), (Scaling(), 10.0), (Scaling(3.0), 3.0)])
def test_models_times_a_factor(attack: Any, factor: float) -> None:
    for (_, sender), model in lied(attack).items():
        assert model == pytest.approx(MODELS[sender] * factor)


def test_lies_that_know_the_honest() -> None:
    inner, hidden, away, same = (
        lied(InnerProduct(0.3)),
        lied(ALittleIsEnough(1.5)),
        lied(Dissensus(0.7)),
        lied(Mimic()),
    )
    assert {row for row, _ in inner} == {0, 2}
    for row, sender in inner:
        everyone = MODELS[[row, *HONEST[row]]]
        assert inner[row, sender] == pytest.approx(-0.3 * everyone.mean(0))
        assert hidden[row, sender] == pytest.approx(everyone.mean(0) - 1.5 * everyone.std(0))
        others = MODELS[HONEST[row]] - MODELS[row]
        assert away[row, sender] == pytest.approx(MODELS[row] - 0.7 * others.sum(0) / len(TOLD[row]))
        assert same[row, sender] == pytest.approx(MODELS[HONEST[row][0]])


def test_how_far_a_lie_can_hide() -> None:
    """Baruch et al.: 50 nodes with 24 liars need 2 supporters of 26, and the normal quantile at 24 / 26."""
    from coterie.algorithms.robust.attacks import _hidden

    assert _hidden(50, 24) == pytest.approx(1.4260768722, abs=1e-8)
    assert _hidden(4, 1) == 0.0, "no room to hide"


def test_noise_is_normal_and_repeats_itself() -> None:
    wide = np.zeros((6, 4000))
    own, payload = {"w": torch.tensor(wide[:3])}, {"w": torch.tensor(wide)}

    def told() -> np.ndarray:
        messages = messages_of(Exchange(own), inbox_of(payload))
        assert messages is not None
        return Gaussian(2.0)(messages, torch.isin(messages.senders, torch.tensor(LIARS)), Node())["w"].numpy()  # type: ignore[arg-type]

    noise = told()
    assert noise.shape == (3, 4000)
    assert abs(noise.mean()) < 0.1
    assert noise.std() == pytest.approx(2.0, rel=0.05)
    assert np.abs(np.corrcoef(noise) - np.eye(3)).max() < 0.1, "for every receiver and liar its own"
    assert (told() == noise).all()


# --- what is not guarded -------------------------------------------------------------------------


def test_exchanges_without_models_pass() -> None:
    empty = Inbox([Bundle({}, torch.zeros(1).long(), torch.zeros(1).long(), torch.ones(1).long())], 1)
    assert messages_of(Exchange({}), empty) is None
    gradient = Exchange(params(MODELS[:3]), averaged=False)
    assert messages_of(gradient, inbox_of(params(MODELS))) is None
    nested = {"values": params(MODELS[:3])}
    with pytest.raises(ContractError, match="this method sends none"):
        messages_of(Exchange(nested), inbox_of({"values": params(MODELS)}))


@pytest.mark.parametrize(
    ("registry", "text"),
    [
        (guards, "near(0.5)"),
        (guards, "clipping(-1)"),
        (guards, "balance(0)"),
        (guards, "ubar(0)"),
        (guards, "trimmed-mean(-1)"),
        (guards, "clip"),
        (attacks, "sign-flap"),
    ],
)
def test_settings_that_cannot_be(registry: Any, text: str) -> None:
    with pytest.raises(ConfigError):
        registry.build(text)
