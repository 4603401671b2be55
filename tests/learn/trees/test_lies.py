"""Sums with lies in them, and states that no sums lead to: no honest node ends by them, or has other trees."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from test_growth import CATEGORIES, rows_of
from tree_world import grow, schema_of, settings_of, site_of

from p2pfl.learn.trees import BITS, EXPONENTS, MOST_ENTRIES, MOST_ROWS, SiteRows, TreeGrowth, WrongSum, as_cells

MEMBERS = 16


def begun(classes, steps=0, **options):
    schema = schema_of(2, classes=classes, categories=CATEGORIES)
    made = settings_of(schema, **({"rounds": 2, "max_depth": 3} | options))
    node = TreeGrowth.begin(schema, made, site_of(rows_of(1, 60, classes)))
    for _ in range(steps):
        node.take(node.next_part().arrays, 1)
    return node, schema, made


def sums_of(node):
    return {name: array.copy() for name, array in node.next_part().arrays.items()}


def can_go_on(node, schema, made):
    """Check that another node can go on from this state, and that its next part is right."""
    other = TreeGrowth.unpack(node.pack(), schema, made, site_of(rows_of(1, 60, made.classes)))
    most = other.most(1)
    assert all((array <= most[name]).all() for name, array in other.next_part().arrays.items())
    assert sum(array.size for array in other.next_part().arrays.values()) <= MOST_ENTRIES


def test_rows_of_a_target_that_no_number_has_do_not_make_states_that_cannot_be_read():
    """The first and the last buckets are those of infinities."""
    node, schema, made = begun(0)
    for _ in range(3):
        total = sums_of(node)
        size = len(node.state.cuts[-1])
        total["buckets"][-size] += 500
        total["buckets"][-1] += 500
        total["targets"][1] += 1000
        node.take(total, MEMBERS)
        can_go_on(node, schema, made)
    assert np.isfinite(node.forest().margins(as_cells(rows_of(1, 60, 0)[0]))).all()


COUNTS = {
    "a sum that overflows, of endless bins": ({}, "buckets", slice(EXPONENTS), 1 << 55),
    "below 0, before they are too few rows": ({}, "targets", 0, -1000),
    "fewer rows than its own": ({}, "targets", slice(None), 0),
    "fewer rows than it has seen": ({"steps": 1}, "targets", slice(None), 0),
    "no row held out, where it holds some out": ({"steps": 3, "patience": 2}, "losses", slice(2, None), 0),
    "a loss below 0": ({"steps": 3}, "losses", 0, -1),
    "a loss above that of all rows": ({"steps": 3}, "losses", 0, 60 * 2 << BITS),
    "a second loss below 0": ({"steps": 3}, "losses", 1, -1),
    "rows held out below 0": ({"steps": 3}, "losses", 3, -5),
}


@pytest.mark.parametrize("kind", COUNTS)
def test_what_no_rows_can_have_is_a_wrong_sum(kind):
    """A liar that knows the sum of the others can bring it to 0, and none of them may end by it."""
    how, name, places, value = COUNTS[kind]
    node, *_ = begun(2, **how)
    total = sums_of(node)
    total[name][places] = value
    with pytest.raises(WrongSum):
        node.take(total, MEMBERS)


def test_a_node_with_more_rows_than_all_had_in_a_sum_with_a_lie_can_give_its_next_part():
    node, schema, made = begun(2)
    total = sums_of(node)
    total["targets"][:] = 10
    total["buckets"] = np.minimum(total["buckets"], 1)
    node.take(total, MEMBERS)
    can_go_on(node, schema, made)


FAR = 2 * 60 << BITS
LEVELS = {
    "more rows than members can have": ("rows", MEMBERS * MOST_ROWS),
    "gradients beyond their rows": ("gradients", FAR),
    "hessians beyond their rows": ("hessians", FAR),
    "hessians below 0": ("hessians", -FAR),
}


@pytest.mark.parametrize("kind", LEVELS)
def test_a_level_that_no_rows_can_have_is_a_wrong_sum(kind):
    """All columns have the same lie, so that they agree."""
    node, *_ = begun(2, steps=3)
    before, total, (name, more) = node.pack(), sums_of(node), LEVELS[kind]
    total[name][0, np.cumsum([0, *node.state.grid.widths[:-1]])] += more
    with pytest.raises(WrongSum):
        node.take(total, MEMBERS)
    assert node.pack() == before


def _states():
    """Packed states in the bins, in the middle of a tree, and at the end, as they are decoded."""
    found = []
    schema = schema_of(2, categories=CATEGORIES)
    made = settings_of(schema, rounds=2, max_depth=3, least_rows=3)
    grow(schema, made, [rows_of(1, 60, 2)], after=lambda nodes: found.append(nodes[0].pack()))
    return schema, made, found


SCHEMA, MADE, STATES = _states()
BINS, TREE, END = 1, 4, len(STATES) - 1
CONTRADICTIONS = [
    (BINS, ("cuts", 0), []),
    (BINS, ("cuts", 0), [5, 9]),
    (BINS, ("cuts", 0), [0, 9, 9]),
    (BINS, ("cuts", 0), [0, 1 << 40]),
    (BINS, ("cuts", 0), list(range(5000))),
    (BINS, ("divisions",), 9),
    (BINS, ("step",), -1),
    (BINS, ("done",), True),
    (TREE, ("grid", "edges", 0), [float("nan")]),
    (TREE, ("grid", "edges", 0), [2.0, 1.0]),
    (TREE, ("grid", "edges", 0), [1e300]),
    (TREE, ("grid", "edges", 0), [float(each) for each in range(70_000)]),
    (TREE, ("bits",), 1 << 40),
    (TREE, ("weights", 0), -1.0),
    (TREE, ("growing", "level"), 9),
    (TREE, ("growing", "decided"), 2),
    (TREE, ("growing", "frontier"), []),
    (TREE, ("growing", "frontier"), [[0, 1], [0, 1]]),
    (TREE, ("growing", "frontier"), [[0, 0]]),
    (TREE, ("growing", "trees", 0, 4, 1), float("nan")),
    (TREE, ("growing", "trees", 0, 4, 1), 1e300),
    (TREE, ("growing", "above", "bins", 0), 1),
    (TREE, ("growing", "above", "nodes", 0), [0, 1]),
    (TREE, ("growing", "above", "sums"), bytes(32 * 10_000)),
    (TREE, ("root_rows",), b"12345678"),
    (TREE, ("row_count",), -1),
    (END, ("rounds", 0, 0, 5, 0), float("inf")),
    (END, ("rounds", 0, 0, 3, 0), 0),  # the root is its own left child
    (END, ("losses", 0, 0), float("nan")),
    (END, ("losses",), [[0.1, 0.1]] * 9),
]


@pytest.mark.parametrize(("which", "path", "value"), CONTRADICTIONS)
def test_a_state_that_no_sums_lead_to_is_refused(which, path, value):
    """A node would end by it, or take gigabytes, long after it was read."""
    state = msgspec.msgpack.decode(STATES[which])
    assert msgspec.msgpack.encode(state) == STATES[which]
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    assert inner[path[-1]] != value
    inner[path[-1]] = value
    with pytest.raises(ValueError, match="contradicts itself"):
        TreeGrowth.unpack(msgspec.msgpack.encode(state), SCHEMA, MADE, site_of(rows_of(1, 60, 2)))


def test_rows_are_others_once_one_of_them_is_held_out():
    """What is held out stands last, so that the order alone does not tell."""
    cells, targets, _ = rows_of(1, 60, 2)
    sites = [SiteRows(as_cells(cells), targets, np.arange(60) >= first) for first in (59, 60)]
    assert sites[0].data != sites[1].data
