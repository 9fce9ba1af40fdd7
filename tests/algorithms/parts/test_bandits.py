"""PPDL's sparse bandit against the dense definition, which this file writes out over all arms."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.algorithms.parts.bandits import Arms, Bandit, Choice, Groups, pseudo_rewards, tsallis_inf
from coterie.protocol import Links
from coterie.randomness import numpy_generator, stream


@dataclass
class Dense:
    """Every arm in a list, every pull in a list; equations 3 and 4 taken literally, in exact numbers."""

    nodes: list[int]
    size: int
    pulled: list[tuple[tuple[int, ...], str | Fraction, str]] = field(default_factory=list)  # arm, reward, q

    @property
    def arms(self) -> list[tuple[int, ...]]:
        return list(itertools.combinations(sorted(self.nodes), self.size))

    def n(self, arm: tuple[int, ...]) -> int:
        return sum(played == arm for played, _, _ in self.pulled)

    def mu(self, arm: tuple[int, ...]) -> Fraction:
        return Fraction(sum(Fraction(r) for played, r, _ in self.pulled if played == arm), self.n(arm))

    def phi(self, arm: tuple[int, ...], j: tuple[int, ...]) -> Fraction:
        total, u = Fraction(0), len(set(arm) & set(j))
        for r, q in ((Fraction(r), Fraction(q)) for played, r, q in self.pulled if played == j):
            total += 1 if u == 0 else r if u == self.size else min(r + q / u, Fraction(1))
        return total / self.n(j)

    def competitive(self) -> set[tuple[int, ...]]:
        arms, t = self.arms, len(self.pulled) + 1
        tried = sorted({arm for arm, _, _ in self.pulled})
        significant = [arm for arm in tried if self.n(arm) >= (t - 1) / len(arms)] or tried
        playable = [arm for arm in significant if arm in arms]
        if not playable:
            return set(arms)
        best = max(playable, key=lambda arm: (self.mu(arm), [-node for node in arm]))
        chosen = {arm for arm in arms if min(self.phi(arm, j) for j in significant) >= self.mu(best)}
        return chosen | {best}


@st.composite
def histories(draw: st.DrawFn) -> Dense:
    """Pulls with rewards on a coarse grid (as validation accuracies are), so that ties happen."""
    size = draw(st.integers(1, 4))
    n = draw(st.integers(size + 1, 8 if size < 4 else 7))
    ids = draw(st.permutations(range(3, 3 + 2 * n)))
    reachable, away = sorted(ids[:n]), sorted(ids[n : n + 2])
    dense = Dense(reachable, size)
    arms = list(itertools.combinations(sorted(reachable + away), size))
    few = draw(st.lists(st.sampled_from(arms), min_size=1, max_size=6))
    for _ in range(draw(st.integers(0, 12))):
        reward = Fraction(draw(st.integers(0, 20)), 20)
        q = draw(st.sampled_from(["0", "0.05", "0.1", "0.5", "3"]))
        dense.pulled.append((draw(st.sampled_from(few)), reward, q))
    return dense


def sparse(dense: Dense, probability: float = 0.5) -> Bandit:
    bandit = Bandit.fresh(1, max(1, len(dense.pulled)), dense.size)
    for arm, reward, q in dense.pulled:
        played = Arms(torch.tensor([arm]), torch.tensor([probability]).double(), torch.ones(1))
        accuracy = torch.tensor([float(Fraction(reward))])  # float32, as accuracies are
        bandit = bandit.update(played, accuracy, float(q), torch.tensor([True]))
    return bandit


def parts(dense: Dense) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The competitive arms of the sparse form: those never pulled, one by one, and the pulled ones."""
    ids = torch.tensor([dense.nodes])
    choice = Choice.of(sparse(dense), torch.tensor([0]), ids, torch.tensor([len(dense.nodes)]))
    unpulled, inside = choice.competitive()
    return listed(unpulled, dense.nodes), [
        tuple(dense.nodes[place] for place in choice.groups[0, arm].tolist())
        for arm in inside[0].nonzero().flatten().tolist()
    ]


def listed(groups: Groups, names: list[int]) -> list[tuple[int, ...]]:
    numbers = torch.arange(int(groups.count))
    if not len(numbers):
        return []
    places = groups.take(torch.zeros_like(numbers)).pick(numbers)
    return [tuple(names[place] for place in row) for row in places.tolist()]


@settings(max_examples=150, deadline=None)
@given(histories())
def test_the_sparse_competitive_set_is_the_dense_one(dense: Dense) -> None:
    new, tried = parts(dense)
    assert len(set(new)) == len(new)
    assert not set(new) & {arm for arm, _, _ in dense.pulled}
    assert {*new, *tried} == dense.competitive()
    assert new == sorted(new)


@settings(max_examples=60, deadline=None)
@given(histories(), st.integers(0, 2**31))
def test_an_arm_is_drawn_from_the_competitive_set_with_its_tsallis_probability(
    dense: Dense, seed: int
) -> None:
    bandit, competitive = sparse(dense), sorted(dense.competitive())
    candidates = Links(torch.zeros(len(dense.nodes), dtype=torch.long), torch.tensor(dense.nodes))
    arms = bandit.draw(candidates, stream(seed, "group", 0, torch.tensor([7])))
    chosen = tuple(arms.groups[0].tolist())
    assert chosen in competitive
    assert int(arms.competitive) == len(competitive)
    losses = np.array(
        [sum(2 * (1 - float(Fraction(r))) for arm, r, _ in dense.pulled if arm == a) for a in competitive]
    )
    weights = _by_bisection(losses, len(dense.pulled) + 1)
    assert float(arms.probability) == pytest.approx(weights[competitive.index(chosen)], rel=1e-6)


def _by_bisection(losses: np.ndarray, t: int) -> np.ndarray:
    low, high = losses.min() - math.sqrt(len(losses) * t), losses.min() - math.sqrt(t)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (t / (losses - middle) ** 2).sum() < 1 else (low, middle)
    return t / (losses - low) ** 2


def test_all_arms_of_a_draw_are_equally_likely_at_first() -> None:
    nodes, rows = 5, 8000
    bandit = Bandit.fresh(rows, 1, 3)
    candidates = Links(torch.arange(rows).repeat_interleave(nodes), torch.arange(nodes).repeat(rows))
    arms = bandit.draw(candidates, stream(0, "group", 0, torch.arange(rows)))
    counts = torch.unique(arms.groups, dim=0, return_counts=True)[1].double()
    assert len(counts) == 10
    assert float(((counts - 800) ** 2 / 800).sum()) < 27.9  # chi-square, 9 degrees of freedom, p = 0.001
    assert torch.allclose(arms.probability, torch.tensor(0.1).double())


def test_pseudo_rewards_by_hand() -> None:
    """u = 0 -> 1, u = M -> r, between min(r + q / u, 1)."""
    found = pseudo_rewards(torch.tensor([0.5, 0.95]).double(), 0.1, 3)
    expected = torch.tensor([[1.0, 0.6, 0.55, 0.5], [1.0, 1.0, 1.0, 0.95]]).double()
    assert torch.allclose(found, expected)


def weights_of(losses: list[float], copies: list[int], t: int) -> list[float]:
    found = tsallis_inf(torch.tensor([losses]).double(), torch.tensor([copies]), torch.tensor([t]))
    return [float(weight) for weight in found[0]]


def test_tsallis_weights() -> None:
    assert weights_of([0.0], [156_849], 7) == pytest.approx([1 / 156_849], rel=1e-12)
    copies = [156_000, 1, 1]
    assert np.dot(copies, weights_of([0.0, 1e5, 3.0], copies, 30)) == pytest.approx(1.0, abs=1e-10)
    # Two arms with losses 0 and 2, t = 1: 1 / x^2 + 1 / (2 - x)^2 = 1 at x = 1 - sqrt(2 + sqrt 5).
    x = 1 - math.sqrt(2 + math.sqrt(5))
    assert weights_of([0.0, 2.0], [1, 1], 1) == pytest.approx([1 / x**2, 1 / (2 - x) ** 2])
    assert weights_of([0.0, 2.0, 5.0], [0, 1, 0], 9) == pytest.approx([0.0, 1.0, 0.0])


def test_an_infinite_q_leaves_what_was_never_pulled_and_the_best() -> None:
    new, pulled = parts(
        Dense(
            list(range(6)),
            3,
            [((0, 1, 2), "0.4", "1e9"), ((1, 2, 3), "0.8", "1e9"), ((0, 4, 5), "0.6", "1e9")],
        )
    )
    assert len(new) == 20 - 3
    assert pulled == [(1, 2, 3)]


def test_with_q_zero_only_arms_disjoint_from_worse_groups_and_the_best_compete() -> None:
    new, pulled = parts(Dense(list(range(7)), 3, [((0, 1, 2), "0.4", "0"), ((0, 1, 3), "0.8", "0")]))
    assert new == list(itertools.combinations([3, 4, 5, 6], 3))
    assert pulled == [(0, 1, 3)]  # k_bar, although it shares nodes with the worse group


def test_a_perfect_reward_leaves_arms_whose_bound_is_one() -> None:
    new, pulled = parts(Dense(list(range(6)), 3, [((0, 1, 2), "0.2", "0.1"), ((3, 4, 5), "1", "0.1")]))
    assert (new, pulled) == ([], [(3, 4, 5)])


@pytest.mark.parametrize("hundredths", range(0, 90, 7))
def test_a_bound_that_equals_the_best_mean_competes(hundredths: int) -> None:
    """Accuracies of 100 validation images, q = 0.1; in float32 half of these bounds would be below."""
    worse, best = Fraction(hundredths, 100), Fraction(hundredths + 10, 100)
    new, pulled = parts(Dense(list(range(8)), 3, [((0, 1, 2), worse, "0.1"), ((3, 4, 5), best, "0.1")]))
    # One node of (0, 1, 2) may come again, as r + q / 1 equals the best mean; two may not.
    allowed = [arm for arm in itertools.combinations(range(8), 3) if len({0, 1, 2} & set(arm)) <= 1]
    assert new == [arm for arm in allowed if arm != (3, 4, 5)]
    assert pulled == [(3, 4, 5)]


def test_of_two_best_arms_the_lowest_is_always_played() -> None:
    """With q = 0 a worse arm that overlaps both leaves only k_bar, and nodes that it does not have."""
    pulls = [((1, 4, 5), "0.8", "0"), ((0, 2, 3), "0.8", "0"), ((0, 1, 6), "0.4", "0")]
    for order in itertools.permutations(pulls):
        new, pulled = parts(Dense(list(range(7)), 3, list(order)))
        assert pulled == [(0, 2, 3)]
        assert new == list(itertools.combinations([2, 3, 4, 5], 3))


def test_state_and_draws_do_not_depend_on_the_rows_beside_them() -> None:
    nodes = 12
    links = Links(torch.arange(4).repeat_interleave(nodes), torch.arange(nodes).repeat(4))
    bandit = Bandit.fresh(4, 30, 3)
    alone = Bandit.fresh(1, 30, 3)
    for t in range(30):
        arms = bandit.draw(links, stream(1, "group", t, torch.tensor([4, 9, 2, 6])))
        single = alone.draw(
            Links(links.rows[:nodes], links.ids[:nodes]), stream(1, "group", t, torch.tensor([2]))
        )
        assert torch.equal(single.groups[0], arms.groups[2])
        reward = 0.5 + 0.1 * (arms.groups < 4).sum(1)
        bandit = bandit.update(arms, reward, 0.1, torch.ones(4, dtype=torch.bool))
        alone = alone.update(single, reward[2:3], 0.1, torch.ones(1, dtype=torch.bool))
    assert torch.equal(alone.losses[0], bandit.losses[2])


def test_it_locks_on_a_good_group() -> None:
    """Nodes 0 to 9 of 50 are good; rewards are noisy. By round 80 all rows replay groups of good nodes."""
    rows, nodes = 8, 50
    links = Links(torch.arange(rows).repeat_interleave(nodes), torch.arange(nodes).repeat(rows))
    bandit, good = Bandit.fresh(rows, 100, 3), []
    for t in range(100):
        arms = bandit.draw(links, stream(0, "group", t, torch.arange(rows)))
        share = (arms.groups < 10).double().mean(1)
        noise = 0.02 * torch.from_numpy(numpy_generator(0, "noise", t).normal(size=rows))
        bandit = bandit.update(arms, (0.4 + 0.3 * share + noise).clamp(0, 1), 0.1, torch.ones(rows) > 0)
        good.append(float(share.mean()))
    assert np.mean(good[:10]) < 0.4
    assert np.mean(good[-20:]) > 0.85
    assert (arms.competitive <= 5).all()


def test_unobserved_rewards_change_nothing() -> None:
    bandit = Bandit.fresh(2, 3, 2)
    arms = Arms(torch.tensor([[1, 2], [4, -1]]), torch.ones(2).double(), torch.ones(2))
    after = bandit.update(arms, torch.tensor([0.5, 0.5]), 0.1, torch.tensor([False, True]))
    assert int(after.pulls.sum()) == 0


def test_memory_is_kilobytes_per_node() -> None:
    bandit = Bandit.fresh(10, 200, 3)
    total = sum(getattr(bandit, name).nbytes for name in ("groups", "pulls", "pseudo", "losses"))
    assert total / 10 < 12_000


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_groups_without_limits_are_all_sets(size: int) -> None:
    nobody = torch.empty(1, 0, size, dtype=torch.long)
    everything = Groups(torch.ones(1, 7) > 0, nobody, torch.empty(1, 0, dtype=torch.long), size)
    assert listed(everything, list(range(7))) == list(itertools.combinations(range(7), size))


@pytest.mark.parametrize("together", [1, 300, 1 << 20], ids=["one by one", "some", "all"])
@pytest.mark.parametrize("size", [4, 5])
def test_large_sets_are_counted_in_parts(size: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows and lowest nodes at a time: the sets that a loop over all of them finds."""
    monkeypatch.setattr("coterie.algorithms.parts.bandits._TOGETHER", together)
    rng, n, rows = np.random.default_rng(5), 10, 3
    free = torch.from_numpy(rng.random((rows, n)) < 0.9)
    pulled = torch.stack(
        [torch.from_numpy(np.sort(rng.choice(n + 1, size, replace=False))) for _ in range(rows * 2)]
    ).view(rows, 2, size)
    limits = torch.from_numpy(rng.integers(2, size, (rows, 2)))
    made = Groups(free, pulled, limits, size)
    for row in range(rows):
        nodes = free[row].nonzero().flatten().tolist()
        allowed = [
            chosen
            for chosen in itertools.combinations(nodes, size)
            if all(
                len(set(chosen) & set(group.tolist())) <= limit
                for group, limit in zip(pulled[row], limits[row].tolist(), strict=True)
            )
        ]
        assert allowed
        assert int(made.count[row]) == len(allowed)
        own = made.take(torch.full((len(allowed),), row))
        assert [tuple(set_) for set_ in own.pick(torch.arange(len(allowed))).tolist()] == allowed
