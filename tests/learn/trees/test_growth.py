"""Nodes that add their parts grow the trees of one node with all rows, bit for bit."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tree_world import Rows, grow, schema_of, settings_of, share, site_of, sum_of

from p2pfl.errors import UserError
from p2pfl.features.sums import WholeNumbers
from p2pfl.learn.trees import LEAF, MOST_ENTRIES, Forest, TreeGrowth, WrongSum, as_cells, forest

CATEGORIES = (3, 5)


def rows_of(seed: int, count: int, classes: int, *, held: float = 0.2) -> Rows:
    """Two numbers, one of them with gaps, and two categories; the target depends on all of them."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-400, 400, size=(2, count)) / 64.0
    values = np.stack([rng.integers(size, size=count) for size in CATEGORIES]).astype(np.float64)
    score = numbers[0] + (numbers[1] > 0) * 3 - 4 * (values[1] == 2) + rng.integers(-99, 99, size=count) / 50.0
    numbers[1, rng.random(count) < 0.2] = np.nan
    values[1, rng.random(count) < 0.1] = np.nan
    cuts = np.quantile(score, np.arange(1, classes) / classes) if classes else []
    targets = np.digitize(score, cuts) if classes else 2000.0 + score
    return np.concatenate([numbers, values]), targets, rng.random(count) < held


def grown(classes: int, sites: list[Rows], after=None, **options) -> list[TreeGrowth]:
    schema = schema_of(2, classes=classes, categories=CATEGORIES)
    return grow(schema, settings_of(schema, **({"rounds": 3, "max_depth": 3} | options)), sites, after=after)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(10, 200),
    nodes=st.integers(1, 5),
    classes=st.sampled_from([0, 2, 3]),
)
def test_whichever_node_has_a_row_all_states_are_those_of_one_node_with_all_rows(seed, count, nodes, classes):
    rows = rows_of(seed, count, classes, held=0.0)
    owners = np.random.default_rng(seed).integers(nodes, size=count)
    states = [[], []]

    def look(which):
        def act(them):
            assert len({node.pack() for node in them}) == 1
            states[which].append(them[0].pack())

        return act

    grown(classes, [rows], look(0), rounds=2)
    grown(classes, [*share(rows, owners, nodes), share(rows, owners, 9)[8]], look(1), rounds=2)  # the last has no row
    assert states[0] == states[1]


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_node_that_begins_anywhere_from_another_ones_state_makes_the_same_parts(classes):
    sites = share(rows_of(1, 300, classes), np.random.default_rng(1).integers(3, size=300), 3)

    schema = schema_of(2, classes=classes, categories=CATEGORIES)
    options = settings_of(schema, rounds=3, max_depth=3)

    def replace_one(nodes):
        packed = nodes[0].pack()
        nodes[1] = TreeGrowth.unpack(packed, schema, options, site_of(sites[1]))
        assert nodes[1].pack() == packed

    alone, replaced = grown(classes, sites), grown(classes, sites, replace_one)
    assert alone[0].pack() == replaced[0].pack() == replaced[1].pack()
    assert any(tree.columns.count(LEAF) > 2 for trees in alone[0].forest().rounds for tree in trees)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), classes=st.sampled_from([0, 2, 3]))
@example(seed=4, classes=2)
def test_a_state_can_be_read_after_each_sum(seed, classes):
    """That of a leaf which stays one, beside the first child of its level, could not."""
    schema, rows = schema_of(2, classes=classes, categories=CATEGORIES), rows_of(seed, 300, classes)
    options = settings_of(schema, rounds=5, max_depth=4)
    grow(schema, options, [rows], after=lambda them: TreeGrowth.unpack(them[0].pack(), schema, options, site_of(rows)))


def test_a_part_stays_the_same_until_its_sum_is_taken():
    schema = schema_of(2, categories=CATEGORIES)
    node = TreeGrowth.begin(schema, settings_of(schema), site_of(rows_of(1, 50, 2)))
    assert node.next_part() is node.next_part()


@pytest.mark.parametrize("leaves", [1, 3])
def test_levels_that_do_not_fit_in_one_part_take_several_and_give_the_same_trees(leaves, monkeypatch):
    rows = rows_of(2, 400, 3)
    alone = grown(3, [rows])[0]
    steps, forest = alone.state.step, alone.forest()
    monkeypatch.setattr("p2pfl.learn.trees.growth.MOST_ENTRIES", 4 + 3 * 95 * leaves)
    schema = schema_of(2, classes=3, categories=CATEGORIES)
    options = settings_of(schema, rounds=3, max_depth=3)
    many = grown(3, [rows], lambda them: TreeGrowth.unpack(them[0].pack(), schema, options, site_of(rows)))
    assert many[0].forest() == forest
    assert many[0].state.step > steps


def test_a_wide_category_is_split_node_by_node_and_gives_the_same_trees(monkeypatch):
    """All columns are as wide as the widest: many nodes at once would take gigabytes."""
    rows = rows_of(2, 400, 3)
    packed = grown(3, [rows])[0].pack()
    most = []
    search = forest.Splitter._best
    monkeypatch.setattr(forest, "CELLS_AT_ONCE", 4 * 66 * 2)
    monkeypatch.setattr(forest.Splitter, "_best", lambda own, found: most.append(len(found)) or search(own, found))
    assert grown(3, [rows])[0].pack() == packed
    assert 1 <= max(most) < 12


def test_parts_of_one_node_are_one_and_the_same_data_because_they_add_up():
    """With other members in the sum of the next level, the difference would be one node's histogram."""
    parts = []
    rows = rows_of(11, 400, 2)
    grown(2, [rows], lambda nodes: nodes[0].done or parts.append(nodes[0].next_part()), rounds=1, least_rows=1)
    root, below = (part.arrays for part in parts if part.label in ("round 1, level 1", "round 1, level 2"))
    assert len(below["rows"]) == 1  # of two siblings one is asked for
    assert all((below[name] <= root[name]).all() for name in below)
    assert {part.data for part in parts} == {site_of(rows).data}
    assert site_of(rows_of(12, 400, 2)).data != site_of(rows).data


def test_secure_sums_give_the_sums_of_all_parts_exactly():
    sites = share(rows_of(13, 200, 2), np.arange(200) % 3, 3)

    def look(nodes):
        if nodes[0].done:
            return
        parts = [node.next_part() for node in nodes]
        numbers = WholeNumbers(members=3, most=nodes[0].most(3))
        words = [numbers.encode(part.arrays) for part in parts]
        assert len(words[0]) <= MOST_ENTRIES
        found, exact = numbers.decode(sum(words[1:], words[0]), len(parts)), sum_of(parts)
        assert found.keys() == exact.keys()
        assert all(np.array_equal(found[name], exact[name]) for name in exact)

    grown(2, sites, look)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_each_leaf_and_each_bin_has_the_least_rows_over_all_nodes(classes):
    cells, targets, _ = rows_of(4, 300, classes)
    rows = cells, targets, np.zeros(300, np.bool_)
    forest = grown(classes, share(rows, np.arange(300) % 7, 7), least_rows=17, max_depth=5)[0].forest()
    codes = forest.grid.codes(as_cells(cells))
    for trees in forest.rounds:
        for tree in trees:
            places = tree.walk(codes, np.zeros(300, np.int64), forest.grid)
            assert np.unique(places, return_counts=True)[1].min() >= 17
    for column in range(2):
        known = codes[column][~np.isnan(cells[column])]
        assert np.bincount(known).min() >= 17


def test_growth_stops_when_the_held_out_rows_of_all_nodes_lose_and_keeps_the_best_round():
    rng = np.random.default_rng(5)
    cells, targets = rng.normal(size=(4, 400)), rng.integers(2, size=400)
    cells[2:] = 0.0
    rows = cells, targets, rng.random(400) < 0.5
    node = grown(2, share(rows, np.arange(400) % 3, 3), rounds=50, patience=4)[0]
    held = [loss.held for loss in node.state.losses]
    assert len(held) == held.index(min(held)) + 5 < 50
    assert len(node.forest().rounds) == held.index(min(held))


def test_patience_without_held_out_rows_is_refused_and_nothing_is_taken():
    schema = schema_of(2, categories=CATEGORIES)
    node = TreeGrowth.begin(schema, settings_of(schema, patience=3), site_of(rows_of(1, 50, 2, held=0.0)))
    for _ in range(3):
        node.take(node.next_part().arrays, 1)
    before = node.pack()
    with pytest.raises(UserError, match="held out"):
        node.take(node.next_part().arrays, 1)
    assert node.pack() == before


def test_a_target_that_is_the_same_everywhere_ends_at_once():
    cells, targets, held = rows_of(6, 60, 0)
    node = grown(0, [(cells, np.full_like(targets, 7.5), held)])[0]
    assert node.forest().rounds == ()
    assert node.forest().outputs(as_cells(cells)) == pytest.approx(7.5)
    node = grown(2, [(cells, np.ones(60, np.int64), held)])[0]
    assert node.forest().rounds == ()


def test_a_site_with_one_target_and_a_column_of_gaps_takes_part():
    cells, targets, held = rows_of(7, 200, 2)
    sites = share((cells, targets, held), targets, 2)
    sites[1][0][0] = np.nan
    assert grown(2, sites)[0].forest().rounds


def test_too_few_rows_are_refused():
    with pytest.raises(UserError, match="too few rows"):
        grown(2, [rows_of(1, 9, 2, held=0.0)])


def test_a_wrong_sum_is_noticed_and_changes_nothing():
    schema = schema_of(2, categories=CATEGORIES)
    node = TreeGrowth.begin(schema, settings_of(schema), site_of(rows_of(1, 200, 2)))
    for _ in range(4):
        total = {name: array.copy() for name, array in node.next_part().arrays.items()}
        before = node.pack()
        name = max(total)
        wrong = [{}, total | {name: total[name][..., :-1]}, total | {name: np.full_like(total[name], 1 << 62)}]
        if name == "rows":
            wrong.append(total | {"rows": total["rows"] - np.eye(1, total["rows"].size, dtype=np.int64)})
        for each in wrong:
            with pytest.raises(WrongSum):
                node.take(each, 1)
        assert node.pack() == before
        node.take(total, 1)


SCHEMA = schema_of(2, categories=CATEGORIES)
SETTINGS = settings_of(SCHEMA, rounds=1, max_depth=3)
ROWS = rows_of(8, 60, 2)
SITE = site_of(ROWS)
PACKED: list[bytes] = []
grown(2, [ROWS], lambda nodes: PACKED.append(nodes[0].pack()), rounds=1)


@pytest.mark.parametrize("bad", [{"max_depth": 2**40}, {"max_depth": -3}, {"bins": 2**62}, {"rounds": -1}])
@pytest.mark.parametrize("place", [0, -1])
def test_a_state_with_settings_that_nobody_may_have_is_refused_before_anything_is_computed(place, bad):
    state = msgspec.msgpack.decode(PACKED[place])
    with pytest.raises(ValueError, match="contradicts"):
        TreeGrowth.unpack(msgspec.msgpack.encode(state | {"settings": state["settings"] | bad}), SCHEMA, SETTINGS, SITE)


def test_a_state_that_is_nested_without_end_is_refused():
    nested = PACKED[0].replace(b"\xa4bits", b"\xa4bits" + b"\x91" * 100_000, 1)
    for packed in (nested, b"\x91" * 100_000, b"\x81\xa4cuts" + b"\x91" * 100_000):
        with pytest.raises(ValueError, match="no state"):
            TreeGrowth.unpack(packed, SCHEMA, SETTINGS, SITE)
        with pytest.raises(ValueError, match="no model"):
            Forest.unpack(packed)


@pytest.mark.parametrize("packed", [PACKED[0], PACKED[-1]])
def test_a_state_of_other_settings_or_columns_is_refused(packed):
    """A neighbor's state must not lower what its receiver insists on."""
    with pytest.raises(ValueError, match="other settings"):
        TreeGrowth.unpack(packed, SCHEMA, settings_of(SCHEMA, rounds=1, max_depth=3, least_rows=11), SITE)
    for schema in (schema_of(3, categories=CATEGORIES), schema_of(2, categories=(3, 4)), schema_of(2)):
        with pytest.raises(ValueError, match="other columns"):
            TreeGrowth.unpack(packed, schema, SETTINGS, SITE)


@pytest.mark.parametrize("weights", ["balanced", [1.0, 1e6, 0.001]])
def test_no_entry_leaves_its_bound_whatever_the_weights_are(weights):
    cells, targets, held = rows_of(9, 40, 3, held=0.0)
    targets = np.where(np.arange(40) == 0, 2, targets % 2)
    grown(3, share((cells, targets, held), np.arange(40) % 3, 3), class_weights=weights, least_rows=2)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_packed_histograms_are_a_third_of_their_numbers(classes):
    sites = share(rows_of(14, 600, classes), np.arange(600) % 3, 3)
    words, numbers = [], []

    def look(nodes):
        if not nodes[0].done:
            growth, state = nodes[0], nodes[0].state
            words.append(WholeNumbers(members=3, most=growth.most(3)).size)
            if state.grid is not None:
                leaves = len(state.growing.frontier[state.growing.decided :]) or state.settings.outputs
                numbers.append(3 * leaves * sum(state.grid.widths))

    grown(classes, sites, look, rounds=10, max_depth=5)
    assert sum(words) < sum(numbers) / 3


def test_after_a_wrong_sum_a_level_is_asked_for_in_full_and_gives_the_same_trees():
    sites = share(rows_of(15, 300, 3), np.arange(300) % 3, 3)
    asked = []

    def spoil(nodes):
        if nodes[0].state.step % 3 == 0:
            for node in nodes:
                node.ask_in_full()
        elif not nodes[0].done:
            asked.append(nodes[0].next_part())

    assert grown(3, sites, spoil)[0].forest() == grown(3, sites)[0].forest()
    assert len(asked) > 3


def test_a_node_whose_rows_exceed_the_level_above_gives_a_part_all_the_same():
    """Another one has lied there; the sum fails, and the next one asks for all."""
    node = TreeGrowth.begin(SCHEMA, SETTINGS, SITE)
    for _ in range(4):
        node.take(node.next_part().arrays, 1)
    above = node.state.growing.above
    sums = np.frombuffer(above.sums, "<i8").copy()
    sums[2 * above.bins[0] : 3 * above.bins[0]] //= 2
    above.sums = sums.tobytes()
    part = node.next_part().arrays
    assert all((part[name] <= most).all() for name, most in node.most(1).items())
    with pytest.raises(WrongSum):
        node.take(part, 1)
    node.ask_in_full()
    node.take(node.next_part().arrays, 1)


def test_a_state_of_the_version_before_goes_on_to_the_same_trees():
    """It has no sums of the level above: these are asked for in full."""
    for place in range(3, len(PACKED)):
        state = msgspec.msgpack.decode(PACKED[place])
        del state["row_count"], state["root_rows"], state["growing"]["above"], state["growing"]["here"]
        node = TreeGrowth.unpack(msgspec.msgpack.encode(state | {"format": 1}), SCHEMA, SETTINGS, SITE)
        while not node.done:
            node.take(node.next_part().arrays, 1)
        assert node.forest() == TreeGrowth.unpack(PACKED[-1], SCHEMA, SETTINGS, SITE).forest()


@pytest.mark.parametrize(
    ("classes", "digest"), [(0, "d9bb4350a2f2b9e4"), (2, "e22da2fae6e2c9bf"), (3, "ca69f02ec5d99e05")]
)
def test_trees_have_the_same_bits_on_every_processor(classes, digest):
    """A change here changes the trees of federations that are growing them."""
    node = grown(classes, share(rows_of(10, 500, classes), np.arange(500) % 2, 2))[0]
    assert hashlib.blake2b(msgspec.msgpack.encode(node.forest()), digest_size=8).hexdigest() == digest
