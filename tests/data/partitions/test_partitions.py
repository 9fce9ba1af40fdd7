"""What every partition must keep, and what each one promises beyond that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from coterie.catalogue import partitions
from coterie.data import Assignment, Federation, Source, from_arrays, load, split
from coterie.data.partitions.dirichlet import class_over_peers, draw_from_stock
from coterie.data.partitions.partition import proportional_sizes
from coterie.data.partitions.pathological import deal_classes
from coterie.errors import ConfigError, DataError

LABEL_SKEWS = [
    "iid",
    "dirichlet(0.3,min_size=2)",
    "dirichlet-prior(0.2)",
    "dirichlet-blocks(0.5)",
    "pathological(2)",
    "digit-pairs(0.5)",
    "label-groups(0+1,2+3)",
    "label-pairs(2)",
]
EVERY = [*LABEL_SKEWS, "rotations(4)", "rotations(0:7,180:2,10:1)"]


def toy(per_class: list[int], test_per_class: int = 5) -> Source:
    """Samples whose features are their own number, so that any sample can be recognised."""
    y = np.repeat(np.arange(len(per_class)), per_class)
    y_test = np.repeat(np.arange(len(per_class)), test_per_class)
    x = np.arange(len(y), dtype=np.float32).reshape(-1, 1, 1, 1)
    x_test = 1e6 + np.arange(len(y_test), dtype=np.float32).reshape(-1, 1, 1, 1)
    return from_arrays(x, y, x_test, y_test, n_classes=len(per_class))


def check_invariants(source: Source, federation: Federation, peers: int) -> None:
    training = torch.cat((federation.train.index, federation.validation.index))
    ids = federation.x[training].flatten().long()
    assert federation.peers == peers
    assert len(ids.unique()) == len(ids), "a training sample belongs to two peers"
    assert len(ids) + federation.dropped == len(source.y_train)
    assert torch.equal(federation.y[training], source.y_train[ids])
    assert int(federation.train.sizes.min()) >= 1
    assert int(federation.test.sizes.min()) >= 1
    test_ids = federation.x[federation.test.index].flatten().long() - 10**6
    assert torch.equal(federation.y[federation.test.index], source.y_test[test_ids])
    train, test = federation.label_histogram("train"), federation.label_histogram("test")
    assert bool((train > 0)[test > 0].all()), "a class occurs in a test set but not in its training set"
    # Per label ceil(share * n_test / peers), as far as the test set has samples of that label.
    share = train.double() / train.sum(1, keepdim=True)
    wanted = (share * len(source.y_test) / peers - 1e-9).ceil().long()
    stock = torch.bincount(source.y_test, minlength=source.n_classes)
    assert torch.equal(test, torch.minimum(wanted, stock))
    for peer in range(peers):
        mine = federation.test.of(peer)
        assert len(mine.unique()) == len(mine), "a peer is tested twice on one sample"


@pytest.mark.parametrize("partition", EVERY)
@given(
    per_class=st.lists(st.integers(20, 60), min_size=4, max_size=6),
    peers=st.integers(3, 8),
    seed=st.integers(0, 10_000),
    validation=st.sampled_from([0.0, 0.25]),
)
def test_every_partition_keeps_the_invariants(partition, per_class, peers, seed, validation):
    source = toy(per_class)
    try:
        federation = split(source, partition, peers=peers, seed=seed, validation=validation)
    except DataError as refusal:
        assume("clusters need" not in str(refusal) and "draws of Dir" not in str(refusal))
        assume("did not fit" not in str(refusal))
        raise
    check_invariants(source, federation, peers)
    again = split(source, partition, peers=peers, seed=seed, validation=validation)
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(federation, part).index, getattr(again, part).index)
    assert torch.equal(federation.x, again.x)


@pytest.mark.parametrize("partition", EVERY)
def test_another_seed_gives_another_partition(partition):
    source = toy([40] * 5)
    one, other = (split(source, partition, peers=4, seed=seed) for seed in (0, 1))
    assert not torch.equal(one.x[one.train.index], other.x[other.train.index])


@pytest.mark.parametrize("partition", LABEL_SKEWS)
def test_common_test_is_balanced_over_the_classes_that_somebody_learns(partition):
    source = toy([40] * 5, test_per_class=7)
    federation = split(source, partition, peers=4, seed=3, common_test_samples=20)
    assert federation.common_test is not None
    counts = torch.bincount(federation.y[federation.common_test], minlength=5)
    learnt = federation.label_histogram("train").sum(0) > 0
    each = 20 // int(learnt.sum())
    assert counts.tolist() == [each if known else 0 for known in learnt.tolist()]
    assert split(source, partition, peers=4, seed=3, common_test_samples=0).common_test is None


@pytest.mark.parametrize("partition", ["iid", "dirichlet-prior(0.3)"])
def test_equal_sizes(partition):
    sizes = split(toy([41, 40, 42]), partition, peers=10, seed=0).train.sizes
    assert sorted(set(sizes.tolist())) == [12, 13]  # 123 samples
    assert int(sizes.sum()) == 123


def test_dirichlet_concentration_decides_how_skewed_labels_are():
    source = toy([400] * 10)
    for name in ("dirichlet", "dirichlet-prior", "dirichlet-blocks"):
        even, skewed = (
            split(source, f"{name}({a})", peers=10, seed=0).label_histogram().double() for a in (1000, 0.1)
        )
        # With a -> infinity every peer has a tenth of every class; with a -> 0 few peers share a class.
        assert float((even - 40).abs().max()) < 25
        assert float((skewed / skewed.sum(1, keepdim=True)).max(1).values.mean()) > 0.45


def test_dirichlet_min_size_is_kept_or_refused_with_what_was_reached():
    source = toy([30] * 10)
    sizes = split(source, "dirichlet(0.5,min_size=12)", peers=10, seed=0).train.sizes
    assert int(sizes.min()) >= 12
    with pytest.raises(DataError, match="cannot give 31 peers 10 each; they suffice for at most 30"):
        split(source, "dirichlet(0.5)", peers=31, seed=0)
    with pytest.raises(DataError, match=r"never had 9 .* at best 0; .* dirichlet-prior\(0.001\)"):
        split(toy([100, 100]), "dirichlet(0.001,min_size=9)", peers=20, seed=0)
    with pytest.raises(DataError, match=r"at best (\d+); .* dirichlet\(0.5,min_size=\1\)"):
        split(source, "dirichlet(0.5,min_size=29)", peers=10, seed=0)


@given(
    stock=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    peers=st.integers(1, 12),
    a=st.sampled_from([1e-4, 0.01, 0.5, 100.0]),
    seed=st.integers(0, 99),
)
def test_class_over_peers_hands_out_every_sample(stock, peers, a, seed):
    counts = class_over_peers(np.array(stock), peers, a, np.random.default_rng(seed))
    assert counts.min() >= 0
    assert counts.sum(0).tolist() == stock


@given(
    stock=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    peers=st.integers(1, 10),
    a=st.sampled_from([1e-4, 0.1, 10.0]),
    seed=st.integers(0, 99),
)
def test_prior_draws_end_and_use_up_the_stock(stock, peers, a, seed):
    rng = np.random.default_rng(seed)
    prior = rng.dirichlet(np.full(len(stock), a), size=peers)
    total = sum(stock)
    sizes = np.full(peers, total // peers) + (np.arange(peers) < total % peers)
    counts = draw_from_stock(prior, sizes, np.array(stock), rng)
    assert counts.sum(0).tolist() == stock
    assert counts.sum(1).tolist() == sizes.tolist()


def test_tiny_concentration_puts_each_class_on_one_peer_with_room():
    for seed in range(50):
        counts = class_over_peers(np.array([100, 100]), 20, 1e-6, np.random.default_rng(seed))
        assert sorted(counts[counts > 0].tolist()) == [100, 100]
        assert (counts.sum(1) <= 100).all()  # whoever is full gets no second class


class FixedShares:
    """Stands for a random generator: Dirichlet draws that are known beforehand."""

    def __init__(self, *shares: list[float]) -> None:
        self.shares = list(shares)

    def dirichlet(self, concentrations):
        share = self.shares.pop(0)
        assert len(share) == len(concentrations), "another number of peers has room"
        return np.array(share)


def test_who_holds_the_fair_share_gets_no_more():
    """15 samples and 3 peers: the fair share is 5."""
    draws = FixedShares(
        [1.0, 0.0, 0.0],  # all 5 of class 0 go to peer 0, which then is full
        [0.5, 0.5],  # the 2 of class 1 to peers 1 and 2
        [5 / 6, 1 / 6],  # both hold 1 and have room: 5 and 1 of class 2, so that peer 1 holds 6
        [1.0],  # the 2 of class 3 to peer 2, which holds 2
    )
    counts = class_over_peers(np.array([5, 2, 6, 2]), 3, 0.5, draws)
    assert counts.tolist() == [[5, 0, 0, 0], [0, 1, 5, 0], [0, 1, 1, 2]]


def test_prior_is_followed_while_stock_lasts():
    prior = np.array([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    counts = draw_from_stock(prior, np.array([400, 400]), np.array([1000] * 3), np.random.default_rng(0))
    assert counts[0, 2] == counts[1, 0] == 0
    assert abs(counts[0, 0] - 200) < 60  # six standard deviations of 10
    assert abs(counts[1, 2] - 300) < 60


@given(classes=st.integers(1, 10), c=st.integers(1, 10), peers=st.integers(1, 30), seed=st.integers(0, 99))
def test_deal_classes_gives_each_peer_c_different_classes(classes, c, peers, seed):
    assume(c <= classes)
    shards = np.full(classes, peers * c // classes) + (np.arange(classes) < peers * c % classes)
    chosen = deal_classes(shards, peers, c, np.random.default_rng(seed))
    assert (chosen.sum(1) == c).all()
    assert (chosen.sum(0) == shards).all()


def test_pathological_shards_are_equal_and_cover_everything():
    federation = split(toy([100] * 10), "pathological(2)", peers=20, seed=1)
    histogram = federation.label_histogram()
    # 2 * 20 / 10 = 4 shards of 25 samples per class.
    assert set(histogram.unique().tolist()) == {0, 25}
    assert ((histogram > 0).sum(1) == 2).all()
    assert federation.dropped == 0


def test_pathological_edges():
    with pytest.raises(DataError, match="use c <= 3"):
        split(toy([10] * 3), "pathological(4)", peers=3, seed=0)
    few = split(toy([10] * 6), "pathological(2)", peers=2, seed=0)
    assert few.dropped == 20  # 4 of 6 classes are used
    with pytest.raises(DataError, match="at most about 15 peers"):
        split(toy([10] * 3), "pathological(2)", peers=16, seed=0)
    with pytest.raises(ConfigError):
        partitions.build("pathological(0)")


def test_digit_pairs_sizes_are_evenly_spaced_and_labels_are_pairs():
    federation = split(toy([600] * 10), "digit-pairs(0.5)", peers=20, seed=0)
    # A tenth of MNIST: a tenth of the paper's 1165 ... 3834.
    assert federation.train.sizes.tolist() == np.linspace(116, 383, 20).astype(int).tolist()
    assert ((federation.label_histogram() > 0).sum(1) == 2).all()
    assert federation.dropped == 6000 - int(federation.train.sizes.sum())
    own = split(toy([60] * 4), "digit-pairs(0.5,smallest=10,largest=16)", peers=7, seed=0)
    assert own.train.sizes.tolist() == [10, 11, 12, 13, 14, 15, 16]


def test_digit_pairs_refuses_what_cannot_fit():
    with pytest.raises(DataError, match="enough for 4 peers of these sizes"):
        split(toy([20] * 2), "digit-pairs(0.5,smallest=10,largest=10)", peers=5, seed=0)
    with pytest.raises(DataError, match="did not fit"):
        # Both peers need a sample of the class that has one.
        split(toy([12, 1]), "digit-pairs(0.5,smallest=5,largest=5)", peers=2, seed=0)
    with pytest.raises(DataError, match="two classes"):
        split(toy([20]), "digit-pairs(0.5)", peers=2, seed=0)


def test_label_groups_by_number_by_name_and_with_counts():
    federation = split(toy([40] * 5), "label-groups(0+1:3,2+3+4:1)", peers=8, seed=0)
    assert federation.clusters is not None
    assert federation.clusters.tolist() == [0] * 6 + [1] * 2
    known = federation.label_histogram() > 0
    assert known[:6].tolist() == [[True, True, False, False, False]] * 6
    assert known[6:].tolist() == [[False, False, True, True, True]] * 2
    named = from_arrays(
        np.zeros((60, 2)), np.repeat(["cat", "dog", "ship"], 20), class_names=("cat", "dog", "ship")
    )
    pets = split(named, "label-groups(cat+dog,ship)", peers=4, seed=0)
    assert (pets.label_histogram()[:2, 2] == 0).all()
    with pytest.raises(ConfigError, match="did you mean ship"):
        split(named, "label-groups(cat,shop)", peers=2, seed=0)
    with pytest.raises(ConfigError, match="'bird' in group 'animals'"):
        split(named, "label-groups(animals,ship)", peers=2, seed=0)


def test_label_groups_drop_and_count_labels_of_no_group():
    federation = split(toy([40, 40, 7]), "label-groups(0,1)", peers=2, seed=0)
    assert federation.dropped == 7
    overlapping = split(toy([40, 40, 40]), "label-groups(0+1,1+2)", peers=2, seed=0)
    assert overlapping.label_histogram().tolist() == [[40, 20, 0], [0, 20, 40]]


def test_label_pairs_are_pairs_and_halves():
    federation = split(toy([100] * 10), "label-pairs(5)", peers=20, seed=4)
    assert federation.clusters is not None
    histogram = federation.label_histogram()
    assert torch.bincount(federation.clusters).tolist() == [4] * 5
    assert set(histogram.unique().tolist()) == {0, 25}
    assert ((histogram > 0).sum(1) == 2).all()
    for cluster in range(5):
        members = histogram[federation.clusters == cluster] > 0
        assert (members == members[0]).all()
    with pytest.raises(DataError, match="1 to 5 clusters"):
        split(toy([10] * 10), "label-pairs(6)", peers=6, seed=0)
    with pytest.raises(DataError, match="need at least 5 peers"):
        split(toy([10] * 10), "label-pairs(5)", peers=4, seed=0)


def test_more_peers_than_samples_is_refused_with_the_possible_number():
    for partition in ("iid", "dirichlet-prior(1)", "dirichlet-blocks(1)", "rotations(2)"):
        with pytest.raises(DataError, match="at most 30 peers"):
            split(toy([10] * 3), partition, peers=31, seed=0)
    with pytest.raises(DataError, match="no training sample"):
        split(toy([10] * 3), "label-groups(0,1+2)", peers=40, seed=0)


def test_a_class_without_test_samples_is_refused():
    source = from_arrays(np.zeros((20, 1)), np.repeat([0, 1], 10), np.zeros((5, 1)), np.zeros(5, dtype=int))
    with pytest.raises(DataError, match="no test sample"):
        split(source, "label-groups(0,1)", peers=2, seed=0)


@pytest.mark.parametrize(
    ("weights", "peers", "sizes"),
    [
        ([70, 20, 5, 5], 100, [70, 20, 5, 5]),
        ([70, 20, 5, 5], 20, [14, 4, 1, 1]),
        ([70, 20, 5, 5], 10, [7, 2, 1, 0]),  # before the empty cluster is filled from the largest
        ([1, 1, 1, 1], 6, [2, 2, 1, 1]),
        ([1, 2, 4], 10, [1, 3, 6]),  # 1.43, 2.86 and 5.71: the two left over go to .86 and .71
        ([1, 1, 3], 8, [2, 1, 5]),  # 1.6, 1.6 and 4.8: to .8, then to the first of two equal ones
    ],
)
def test_proportional_sizes(weights, peers, sizes):
    if 0 in sizes:
        sizes = [sizes[0] - 1, *sizes[1:-1], 1]
    assert proportional_sizes(np.array(weights, dtype=float), peers).tolist() == sizes


@pytest.mark.parametrize(
    "text",
    [
        "dirichlet(0)",
        "dirichlet(nan)",
        "dirichlet(0.1,min_size=0)",
        "dirichlet-blocks(1,block=0)",
        "rotations(0:0,90:1)",
        "rotations(0,360)",
        "rotations(x:1,90:1)",
        "rotations(-2)",
        "rotations(²)",
        "rotations(1000000000)",
        f"rotations({'9' * 5000})",
        f"rotations(0:{'9' * 5000},90:1)",
        "rotations",
        "label-groups",
        "label-groups(0:x)",
        "digit-pairs(0)",
        "digit-pairs(inf)",
        "dirichlet(inf)",
        "dirichlet(1e308)",
        "dirichelt(0.1)",
    ],
)
def test_malformed_partitions_are_configuration_errors(text):
    with pytest.raises(ConfigError):
        partitions.build(text)


def test_labels_of_groups_are_plain_digits():
    for group in ("²", "9" * 5000):
        with pytest.raises(ConfigError, match=f"'{group}' in group"):
            split(toy([9] * 3), f"label-groups({group},1)", peers=2, seed=0)


@dataclass(frozen=True)
class ByHand:
    """A user's own partition, which returns what it is told."""

    returned: Any

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        return self.returned


HALVES = np.arange(12) % 2


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (HALVES, "must return a coterie.data.Assignment, not ndarray"),
        (Assignment(HALVES[:-1]), r"owner must have shape \(12,\), not \(11,\)"),
        (Assignment(HALVES[:, None]), r"owner must have shape \(12,\), not \(12, 1\)"),
        (Assignment(HALVES + 1), "owner must lie from -1 to 1, not from 1 to 2"),
        (Assignment(HALVES - 2), "owner must lie from -1 to 1, not from -2 to -1"),
        (Assignment(HALVES / 2), "owner must be a NumPy array of integer, not float64"),
        (Assignment(HALVES.tolist()), "owner must be a NumPy array of integer, not list"),
        (Assignment(None), "owner must be a NumPy array of integer, not NoneType"),
        (Assignment(HALVES, test_owner=HALVES), r"test_owner must have shape \(10,\), not \(12,\)"),
        (Assignment(HALVES, clusters=np.array([0, -5])), "clusters must lie from 0 to .*, not from -5 to 0"),
        (Assignment(HALVES, degrees=np.array([0.0, np.nan])), "degrees must lie from -360 to 360"),
    ],
)
def test_what_a_partition_of_ones_own_returns_is_checked(returned, said):
    with pytest.raises(ConfigError, match=f"partition ByHand: .*{said}"):
        split(toy([6, 6]), ByHand(returned), peers=2, seed=0)


def test_a_partition_of_ones_own():
    federation = split(toy([6, 6]), ByHand(Assignment(HALVES)), peers=2, seed=0)
    assert federation.train.sizes.tolist() == [6, 6]


def test_every_partition_has_a_summary_for_the_catalogue():
    assert set(partitions) == {
        "iid",
        "dirichlet",
        "dirichlet-prior",
        "dirichlet-blocks",
        "pathological",
        "digit-pairs",
        "rotations",
        "label-groups",
        "label-pairs",
        "natural",
    }
    assert all(partitions.summary(name) for name in partitions)


def test_cifar_animals_and_vehicles(data_dir):
    source = load("cifar-10", data_dir=data_dir, peers=10, seed=0)
    federation = split(source, "label-groups(animals:60,vehicles:40)", peers=10, seed=0)
    known = federation.label_histogram() > 0
    assert known[0].nonzero().flatten().tolist() == [2, 3, 4, 5, 6, 7]
    assert known[9].nonzero().flatten().tolist() == [0, 1, 8, 9]


@pytest.mark.parametrize(
    "partition",
    [
        "dirichlet(0.3)",
        "dirichlet-prior(0.3)",
        "dirichlet-blocks(0.3)",
        "pathological(1)",
        "digit-pairs",
        "label-groups(0,1)",
        "label-pairs(1)",
    ],
)
def test_sequences_have_no_class_to_go_by(partition: str) -> None:
    tokens = np.arange(200).reshape(40, 5) % 7
    source = from_arrays(tokens[:, :-1], tokens[:, 1:], task="next-token", n_classes=7)
    built = partitions.build(partition)
    for rule, shown in ((partition, repr(partition)), (built, type(built).__name__)):
        with pytest.raises(ConfigError) as told:
            split(source, rule, peers=2, seed=0)
        assert str(told.value).startswith(f"partition {shown} deals samples out by their classes, and seq")
    assert split(source, "iid", peers=2, seed=0).train.sizes.tolist() == [16, 16]


@pytest.mark.parametrize("partition", ["pathological(11)", "label-pairs(6)"])
def test_numbers_have_bins_not_classes(partition: str) -> None:
    source = from_arrays(np.arange(100.0)[:, None], np.arange(100.0), task="regression")
    with pytest.raises(DataError, match=r"bins of numbers; .*10"):
        split(source, partition, peers=2, seed=0)
