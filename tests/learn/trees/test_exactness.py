"""The sums are fine enough: trees equal those of a plain booster that adds floats, apart from ties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_world import grow, schema_of, settings_of, share

from p2pfl.learn.trees import LEAF, DecisionTree, Forest, TreeSettings, as_cells, exp, gradients, shares

TIE = 1e-4
"""Gains that differ by less may be a tie."""


class Plain:
    """A booster in float64, split by split, as the papers say, on the bins of a forest."""

    def __init__(self, forest: Forest, given: TreeSettings, codes: np.ndarray) -> None:
        self.grid, self.given, self.codes = forest.grid, given, codes

    def score(self, rows: np.ndarray) -> float:
        return self.g[rows].sum() ** 2 / (self.h[rows].sum() + self.given.reg_lambda)

    def gains(self, rows: np.ndarray) -> dict[tuple[int, int, bool], float]:
        found = {}
        for column, (splits, width) in enumerate(zip(self.grid.splits, self.grid.widths, strict=True)):
            codes = self.codes[column, rows]
            for place in range(splits):
                right = codes > place if column < len(self.grid.edges) else codes == place
                for missing_left in (False, True):
                    side = np.where(codes == width - 1, not missing_left, right)
                    parts = rows[~side], rows[side]
                    if all(
                        len(part) >= self.given.least_rows and self.h[part].sum() >= self.given.min_child_weight
                        for part in parts
                    ):
                        found[column, place, missing_left] = sum(map(self.score, parts)) - self.score(rows)
        return found

    def compare(self, tree: DecisionTree, node: int, rows: np.ndarray, depth: int) -> int:
        """Hold a tree against the best splits; return the number of splits that are equal."""
        value = -self.given.eta * self.g[rows].sum() / (self.h[rows].sum() + self.given.reg_lambda)
        assert tree.values[node] == pytest.approx(value, abs=1e-6, rel=1e-5)
        gains = self.gains(rows) if depth < self.given.max_depth else {}
        best = max(gains.values(), default=0.0)
        if tree.columns[node] == LEAF:
            assert best <= TIE
            return 0
        column, place, missing_left = tree.columns[node], tree.bins[node], tree.missing_left[node]
        own = gains[column, place, missing_left]
        assert tree.gains[node] == pytest.approx(own, abs=TIE, rel=1e-5)
        ties = [split for split, gain in gains.items() if gain > best - TIE]
        assert own >= best - TIE
        is_first = (column, place) == min(split[:2] for split in ties)
        assert is_first or len(ties) > 1
        codes = self.codes[column, rows]
        right = codes > place if column < len(self.grid.edges) else codes == place
        side = np.where(codes == self.grid.widths[column] - 1, not missing_left, right)
        left = tree.lefts[node]
        return (
            is_first
            + self.compare(tree, left, rows[~side], depth + 1)
            + self.compare(tree, left + 1, rows[side], depth + 1)
        )


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), classes=st.sampled_from([0, 2, 3]), reg_lambda=st.sampled_from([0.0, 1.0]))
def test_trees_equal_those_of_unrounded_sums_apart_from_ties(seed, classes, reg_lambda):
    rng = np.random.default_rng(seed)
    cells = np.concatenate([rng.normal(size=(2, 120)), rng.integers(4, size=(1, 120))])
    cells[:, ::11] = np.nan
    score = cells[0] - np.where(cells[2] == 1, 2, 0) + rng.normal(size=120)
    score[np.isnan(score)] = 0.0
    targets = np.digitize(score, [-0.5, 0.5][: classes - 1]) if classes else 40 + 3 * score
    schema = schema_of(2, classes=classes, categories=(4,))
    given = settings_of(schema, rounds=3, max_depth=3, bins=6, least_rows=5, reg_lambda=reg_lambda)
    nodes = grow(schema, given, share((cells, targets, np.zeros(120, np.bool_)), np.arange(120) % 3, 3))
    forest, state = nodes[0].forest(), nodes[0].state
    plain = Plain(forest, given, forest.grid.codes(as_cells(cells)))
    margins = np.repeat(np.array(state.base)[:, None], 120, axis=1)
    scaled = (targets - state.target.center) / state.target.scale if not classes else targets.astype(np.float64)
    for trees in forest.rounds:
        first, second = gradients(given.objective, margins, scaled)
        for output, tree in enumerate(trees):
            plain.g, plain.h = first[output], second[output]
            plain.compare(tree, 0, np.arange(120), 0)
            places = tree.walk(plain.codes, np.zeros(120, np.int64), forest.grid)
            margins[output] += np.array(tree.values)[places]
    assert forest.margins(as_cells(cells)) == pytest.approx(margins * state.target.scale + state.target.center)


def test_a_class_of_double_weight_has_the_trees_of_one_with_each_row_twice():
    rng = np.random.default_rng(1)
    cells = rng.integers([[3], [7], [5]], size=(3, 400)).astype(np.float64)
    targets = (cells[1] + rng.integers(6, size=400) > 5).astype(np.int64)
    schema = schema_of(0, categories=(3, 7, 5))
    options = {"rounds": 3, "max_depth": 3, "least_rows": 1}
    weighted = settings_of(schema, **options, class_weights=[1.0, 2.0])
    twice = np.concatenate([np.arange(400), np.flatnonzero(targets)])
    none = np.zeros(len(twice), np.bool_)
    first = grow(schema, weighted, [(cells, targets, none[:400])])[0].forest()
    second = grow(schema, settings_of(schema, **options), [(cells[:, twice], targets[twice], none)])[0].forest()
    assert first.margins(as_cells(cells)) == pytest.approx(second.margins(as_cells(cells)), abs=1e-6)


def test_a_target_far_from_zero_or_tiny_or_with_an_outlier_is_learned_as_well():
    rng = np.random.default_rng(2)
    cells, noise = rng.normal(size=(2, 600)), rng.normal(size=600) / 10
    targets = np.where(cells[0] > 0, 1.0, -1.0) + noise
    schema, none = schema_of(2, classes=0), np.zeros(600, np.bool_)
    given = settings_of(schema, rounds=15, max_depth=2)

    def error(scaled: np.ndarray) -> float:
        found = grow(schema, given, [(cells, scaled, none)])[0].forest().outputs(as_cells(cells))[:, 0]
        return float(np.median(np.abs(found - scaled)))

    plain = error(targets)
    assert plain < 0.1
    assert error(targets * 1e-9) == pytest.approx(plain * 1e-9, rel=0.3)
    assert error(targets * 1e9) == pytest.approx(plain * 1e9, rel=0.3)
    assert error(targets + 2000) == pytest.approx(plain, rel=0.3)
    # a residual counts as at most 64 times the usual range
    assert error(np.where(np.arange(600) == 0, 1e12, targets)) < 0.5


@given(st.floats(-600, 600))
def test_exp_is_that_of_the_library_to_the_last_places(value):
    assert exp(np.array([value]))[0] == pytest.approx(math.exp(value), rel=1e-15)


def test_shares_of_extreme_margins_are_finite():
    margins = np.array([[-1e9, 0.0, 1e9]])
    assert shares(margins)[0] == pytest.approx([0, 0.5, 1])
    assert shares(np.concatenate([margins, -margins])).sum(axis=0) == pytest.approx(1)
