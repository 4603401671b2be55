from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import UserError
from p2pfl.learn import load_digits, parse_partition

SPECS = st.sampled_from(["iid", "dirichlet:0.1", "dirichlet:5", "shards:1", "shards:2", "classes:2", "classes:3"])

NONSENSE = [
    *("", "IID", "iid:1", "natural", "shards:1.5", "shards:0", "classes:2,3"),
    *("dirichlet", "dirichlet:0", "dirichlet:-1", "dirichlet:x", "dirichlet:nan"),
    *("sizes", "sizes:1,-1", "sizes:inf,1", "draw", "draw:0", "draw:1.5"),
]


@given(spec=SPECS, nodes=st.integers(2, 12), seed=st.integers(0, 2**32), samples=st.integers(150, 400))
def test_every_row_is_held_exactly_once_and_no_node_is_empty(spec, nodes, seed, samples):
    labels = np.random.default_rng(seed).integers(0, 4, samples)
    parts = parse_partition(spec).split(labels, nodes, seed=seed)
    assert len(parts) == nodes
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(samples))


@given(spec=SPECS, seed=st.integers(0, 2**32))
def test_a_split_is_a_function_of_the_seed(spec, seed):
    labels = np.arange(200) % 4
    first, again = (parse_partition(spec).split(labels, 5, seed=seed) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_seed_gives_another_split():
    labels = np.arange(200) % 4
    one, other = (parse_partition("iid").split(labels, 4, seed=seed) for seed in (0, 1))
    assert not np.array_equal(one[0], other[0])


def test_a_remembered_part_is_the_part_of_a_fresh_split():
    labels, partition = np.arange(300) % 7, parse_partition("dirichlet:0.3")
    fresh = partition.split(labels, 6, seed=4)
    for node in range(6):
        np.testing.assert_array_equal(partition.part(labels, node, 6, seed=4), fresh[node])


def test_iid_shares_differ_by_at_most_one():
    sizes = [len(part) for part in parse_partition("iid").split(np.zeros(103, int), 8, seed=0)]
    assert max(sizes) - min(sizes) <= 1


def test_with_two_shards_of_digits_a_node_holds_few_classes():
    labels = load_digits()[0][1].numpy()
    parts = parse_partition("shards:2").split(labels, 8, seed=0)
    held = [len(np.unique(labels[part])) for part in parts]
    assert max(held) <= 4
    assert np.mean(held) <= 3.5


@pytest.mark.parametrize("k", [1, 2, 5])
def test_classes_k_gives_exactly_k_classes_to_each_node(k):
    labels = np.arange(1000) % 10
    parts = parse_partition(f"classes:{k}").split(labels, 10, seed=3)
    assert [len(np.unique(labels[part])) for part in parts] == [k] * 10


def test_a_small_dirichlet_alpha_is_more_uneven_than_a_large_one():
    labels = np.arange(4000) % 10

    def spread(spec):
        parts = parse_partition(spec).split(labels, 8, seed=0)
        return np.std([np.bincount(labels[part], minlength=10) / len(part) for part in parts])

    assert spread("dirichlet:0.1") > 3 * spread("dirichlet:10")


def test_dirichlet_leaves_no_node_empty_even_with_nearly_as_many_nodes_as_samples():
    parts = parse_partition("dirichlet:0.1").split(np.arange(100) % 10, 90, seed=0)
    assert min(len(part) for part in parts) == 1
    assert sum(len(part) for part in parts) == 100


def test_sizes_are_proportions():
    parts = parse_partition("sizes:3,1,1").split(np.zeros(50, int), 3, seed=0)
    assert [len(part) for part in parts] == [30, 10, 10]


def test_more_nodes_than_rows_may_each_draw_rows_of_their_own():
    labels, partition = np.arange(20) % 4, parse_partition("draw:14")
    parts = partition.split(labels, 50, seed=6)
    assert {len(np.unique(part)) for part in parts} == {14}
    assert all(part.min() >= 0 and part.max() < 20 and np.all(np.diff(part) > 0) for part in parts)
    assert len({tuple(part) for part in parts}) > 40
    assert set(np.concatenate(parts)) == set(range(20))


def test_what_a_node_draws_depends_on_seed_and_node_alone():
    labels, partition = np.arange(100) % 4, parse_partition("draw:5")
    parts = partition.split(labels, 6, seed=6)
    for node in range(6):
        np.testing.assert_array_equal(partition.part(labels, node, 600, seed=6), parts[node])
    assert not np.array_equal(partition.part(labels, 0, 6, seed=7), parts[0])


@pytest.mark.parametrize("spec", NONSENSE)
def test_a_spec_that_means_nothing_is_refused_and_the_allowed_ones_are_named(spec):
    with pytest.raises(UserError, match=r"dirichlet:ALPHA|natural is gone: ") as caught:
        parse_partition(spec)
    assert spec in {caught.value.value, "natural"}


@pytest.mark.parametrize(
    ("spec", "labels", "nodes"),
    [
        ("iid", np.zeros(3, int), 4),
        ("shards:3", np.zeros(8, int), 4),
        ("classes:1", np.arange(50) % 10, 5),
        ("classes:11", np.arange(50) % 10, 5),
        ("classes:1", np.array([0] * 50 + [1]), 4),
        ("sizes:1,1", np.zeros(9, int), 3),
        ("sizes:1,1000", np.zeros(9, int), 2),
        ("dirichlet:1", np.zeros(9), 3),
        ("draw:10", np.zeros(9, int), 3),
    ],
)
def test_a_split_that_cannot_be_is_the_users_mistake(spec, labels, nodes):
    with pytest.raises(UserError):
        parse_partition(spec).split(labels, nodes, seed=0)


@given(alpha=st.sampled_from([0.01, 0.1, 1]), least=st.integers(1, 15), seed=st.integers(0, 100))
def test_a_dirichlet_partition_may_have_a_least_number_of_rows(alpha, least, seed):
    labels = np.random.default_rng(seed).integers(0, 4, 200)
    parts = parse_partition(f"dirichlet:{alpha},{least}").split(labels, 10, seed=seed)
    assert min(map(len, parts)) >= least
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))


def test_more_rows_than_there_are_cannot_be_the_least():
    with pytest.raises(UserError, match="cannot have 30 of 200"):
        parse_partition("dirichlet:1,30").split(np.zeros(200, int), 10, seed=0)
