"""Rounds of hidden models: parts add up to the weighted mean, garbage is refused, and all compute the same bits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.config import TrainingConfig
from p2pfl.config.sections import HideConfig
from p2pfl.learn import MOST_TIMES, TILE, AveragedRounds, Packing, check_of
from p2pfl.methods import make_method

BITS, MEMBERS, SIZES, SEEDS = st.integers(4, 24), st.integers(2, 40), st.integers(1, 300), st.integers(0, 2**32)


def rounds_of(size, members, *, bits=8, node=0, rows=None, method=None, **changes):
    how = {"size": size, "members": members, "seed": 5, "node": node, "method": method}
    made = AveragedRounds(HideConfig(bits=bits, **changes), **how)
    made.rows = 100 * members if rows is None else rows
    return made


def part_of(made, start, ended, samples=100, round_index=3):
    made.give_change(start, ended, samples, round_index)
    return made.part.copy()


def case(seed, size, members, bits):
    """A common model, each node's change, too small to be clipped, and its rows; the parts of all."""
    chance = np.random.default_rng(seed)
    start = chance.standard_normal(size).astype(np.float32)
    changes = chance.standard_normal((members, size)).astype(np.float32)
    changes *= 0.3 * np.abs(start).max() / np.sqrt(size) / np.linalg.norm(changes, axis=1, keepdims=True)
    rows = chance.integers(1, 200, members)
    total = int(rows.sum())
    made = [rounds_of(size, members, bits=bits, node=node, rows=total, outer="mean") for node in range(members)]
    parts = [
        part_of(each, start, start + change, int(count))
        for each, change, count in zip(made, changes, rows, strict=True)
    ]
    return made[0], start, changes, rows, parts


@given(BITS, MEMBERS, SIZES, SEEDS, st.booleans())
def test_packed_numbers_add_up_whatever_their_bits_and_members(bits, members, size, seed, is_full):
    packing = Packing(size=size, bits=bits, members=members)
    numbers = np.random.default_rng(seed).integers(0, packing.levels, (members, size), np.uint64, endpoint=True)
    if is_full:
        numbers[:] = packing.levels
    words = sum(packing.pack(each) for each in numbers)
    assert packing.unpack(words, size).tolist() == numbers.sum(axis=0).tolist()
    assert not packing.exceeds(words, size, members)
    assert is_full is False or packing.exceeds(words, size, members - 1)


@given(SEEDS, st.integers(1, 400), st.integers(2, 12), BITS)
def test_a_sum_of_parts_decodes_to_the_weighted_mean_up_to_rounding(seed, size, members, bits):
    made, start, changes, rows, parts = case(seed, size, members, bits)
    total = sum(parts)
    assert made.is_possible(total, members)
    weights = np.minimum(rows, MOST_TIMES * made.mean_rows)
    assert int(total[0]) == weights.sum()
    mean = (weights[:, None] * changes.astype(np.float64)).sum(axis=0) / weights.sum()
    found = made.next_model(start, total, members, 3).astype(np.float64) - start
    # Each number is off by less than a level, and the rotation keeps lengths.
    level = 2.0 * made.range_of(start) / made.packing.levels
    bound = np.sqrt(size) * members * level * made.mean_rows / weights.sum()
    assert np.linalg.norm(found - mean) <= bound + 1e-5 * np.abs(start).max() * np.sqrt(size)


def test_rounding_is_right_on_average():
    """The error falls with the rounds that it is averaged over, so nothing is lost on one side."""
    start, change = np.ones(64, np.float32), np.full(64, 0.01, np.float32)
    made = rounds_of(64, 2, bits=4, outer="mean")
    steps = []
    for index in range(400):
        total = 2 * part_of(made, start, start + change, round_index=index)
        total[0], total[1], total[-1] = 200, 0, check_of(np.array([200, 0], np.uint64))
        made.common["share"][:] = 1.0
        steps.append(made.next_model(start, total, 2, index) - start)
    assert abs(float(np.mean(steps)) - 0.01) < 0.002


@given(SEEDS, st.integers(1, 200), st.integers(3, 9))
def test_garbage_is_refused(seed, size, members):
    made, *_, parts = case(seed, size, members, 8)
    chance, total = np.random.default_rng(seed), sum(parts)
    spoiled = total.copy()
    spoiled[chance.integers(total.size, size=1)] += chance.integers(1, 2**64, dtype=np.uint64)
    masked = total + chance.integers(0, 2**64, total.size, np.uint64)
    for wrong in (spoiled, masked, total - parts[0] + parts[0][::-1], total[:-1], np.zeros_like(total)):
        assert not made.is_possible(wrong, members)
    assert not made.is_possible(np.append(total, np.uint64(0)), members)


def test_garbage_that_is_in_range_is_refused_by_its_check():
    """Two members' numbers of 15 bits fill all 64 bits of a word, so that nearly all words are in range."""
    made = rounds_of(40, 2, bits=15)
    chance, in_range = np.random.default_rng(1), 0
    for _ in range(50):
        total = chance.integers(0, 2**64, made.entries, np.uint64)
        total[:2] = 200, 0
        total[-1] = check_of(total[:2])
        in_range += not made.packing.exceeds(total[2:-2], 40, 2)
        assert not made.is_possible(total, 2)
    assert in_range > 45


def test_a_sum_of_more_clipping_nodes_or_rows_than_there_are_is_refused():
    made, start = rounds_of(10, 3), np.ones(10, np.float32)
    total = 3 * part_of(made, start, start)
    assert made.is_possible(total, 3)
    for place, number in ((0, 0), (0, 3 * MOST_TIMES * 100 + 1), (1, 3 * 3 + 1)):
        wrong = total.copy()
        wrong[place] = number
        wrong[-1] = check_of(wrong[:2])
        assert not made.is_possible(wrong, 3)


@given(SEEDS, st.integers(-30, 30))
def test_the_range_does_not_depend_on_the_order_of_a_sum(seed, exponent):
    chance = np.random.default_rng(seed)
    model = (chance.standard_normal(TILE + 1000) * 2.0**exponent).astype(np.float32)
    made = rounds_of(model.size, 3)
    made.common["share"][:] = 3.0
    most = made.range_of(model)
    assert most == made.range_of(chance.permutation(model)) == made.range_of(np.repeat(model, 2)[::2])
    expected = 3.0 * max(float(np.sqrt(np.mean(model.astype(np.float64) ** 2))), 2.0**-10)
    assert most == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3.4e38, -3.4e38])
def test_a_change_that_is_not_finite_counts_as_zero_and_is_said(wrong):
    """Or one whose rotation is not. The node says that all of it was clipped."""
    start = np.linspace(-1, 1, 5000).astype(np.float32)
    ended = start.copy()
    ended[7] = wrong
    zero = part_of(rounds_of(5000, 3), start, start)
    if abs(wrong) < np.inf:
        ended[:] = wrong
    made = rounds_of(5000, 3)
    assert part_of(made, start, ended).tolist() == zero.tolist()
    assert made.clipped == 1.0


def test_a_node_with_many_rows_counts_for_twice_the_mean():
    start = np.ones(50, np.float32)
    made = rounds_of(50, 4, rows=400)
    assert int(part_of(made, start, start, samples=10**6)[0]) == 200
    assert int(part_of(made, start, start, samples=150)[0]) == 150


@given(SEEDS, st.sampled_from(["adam", "mean", "momentum"]), st.integers(0, 3))
def test_what_is_kept_and_packed_comes_back(seed, outer, rounds):
    made, other = rounds_of(30, 3, outer=outer), rounds_of(30, 3, outer=outer, rows=7)
    model = np.random.default_rng(seed).standard_normal(30).astype(np.float32)
    for index in range(rounds):
        model = made.next_model(model, 3 * part_of(made, model, model + np.float32(0.01), round_index=index), 3, index)
    state = b"".join(made.packed(model, rounds))
    assert len(state) <= made.packed_bytes + 4 * 30
    found, fetched, adopt = other.unpack(state, 30)
    adopt()
    assert (found, fetched.tolist(), other.rows) == (rounds, model.tolist(), 300)
    assert b"".join(other.packed(fetched, found)) == state
    restarted = rounds_of(30, 3, outer=outer, rows=7)
    assert restarted.load_kept({"x": np.ones(1), **made.kept()}).keys() == {"x"}
    assert b"".join(restarted.packed(model, rounds)) == state


def test_the_state_of_another_model_is_refused():
    made, model = rounds_of(30, 3), np.ones(30, np.float32)
    made.next_model(model, 3 * part_of(made, model, model), 3, 3)
    state = b"".join(made.packed(model, 1))
    negative = np.array([-1], "<i8").tobytes() + state[8:]
    for wrong, size in ((state, 29), (state, 31), (state[:-1], 30), (state + b"0", 30), (b"", 30), (negative, 30)):
        with pytest.raises(ValueError, match=r"no state|buffer"):
            made.unpack(wrong, size)
    with pytest.raises(ValueError, match="no state"):
        rounds_of(30, 3, outer="mean").unpack(state, 30)


def peak_bytes(use):
    """What a call takes beyond what is there before it, at its peak."""
    tracemalloc.start()
    try:
        use()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_part_takes_the_memory_of_its_words_and_a_step_that_of_the_model():
    """Beside some tiles: of a model of 25 million numbers nothing else may be copied."""
    start = np.linspace(-1, 1, 80 * TILE).astype(np.float32)
    made, ended, few = rounds_of(start.size, 3), start + np.float32(0.01), 16 * TILE * 8
    assert peak_bytes(lambda: made.give_change(start, ended, 100, 0)) < made.entries * 8 + few
    total = 3 * made.part
    made.next_model(start, total, 3, 0)  # from now on the optimizer has its vectors
    assert peak_bytes(lambda: made.is_possible(total, 3)) < few
    assert peak_bytes(lambda: made.next_model(start, total, 3, 0)) < start.nbytes + few
    assert peak_bytes(lambda: made.next_model(start, total, 3, 0, in_place=True)) < few


@pytest.mark.parametrize("outer", ["adam", "momentum", "mean"])
def test_in_its_own_memory_a_model_has_the_bits_of_adding_the_difference(outer):
    """As models did that were made beside the one before: so nodes of both versions stay alike."""
    start = np.random.default_rng(4).standard_normal(2 * TILE + 50).astype(np.float32)
    beside, within = (rounds_of(start.size, 3, outer=outer) for _ in range(2))
    for index in range(3):
        total = 3 * part_of(beside, start, start + np.float32(0.01), round_index=index)
        expected = start + (beside.next_model(start, total, 3, index) - start)
        model = start.copy()
        assert within.next_model(model, total, 3, index, in_place=True) is model
        start = model
        assert model.tobytes() == expected.tobytes()
        assert b"".join(within.packed(model, 1)) == b"".join(beside.packed(model, 1))


@given(st.sampled_from(["adam", "momentum"]))
def test_a_step_to_a_model_that_is_too_large_leaves_all_as_it_was(outer):
    start = np.ones(TILE + 50, np.float32)
    made = rounds_of(start.size, 3, outer=outer)
    model = made.next_model(start, 3 * part_of(made, start, 2 * start), 3, 3)
    before = b"".join(made.packed(model, 1))
    made.rate = 1e30
    total = 3 * part_of(made, model, 2 * model)
    assert all(np.isinf(made.next_model(model, total, 3, 4, in_place=where)).all() for where in (False, True))
    assert b"".join(made.packed(model, 1)) == before


# -- methods -----------------------------------------------------------------------------------------------------------


class Pulled:
    """Nodes whose losses are quadratic functions, of curvatures and optima of their own, and their common model."""

    STEPS, RATE = 10, 0.05

    def __init__(self, method, *, nodes=4, size=6, momentum=0.0, outer="mean"):
        chance = np.random.default_rng(7)
        self.curvature, self.optima = chance.uniform(0.2, 4, (nodes, size)), chance.standard_normal((nodes, size))
        self.rows, self.momentum, self.model = chance.integers(50, 150, nodes), momentum, np.ones(size, np.float32)
        made = make_method(method, TrainingConfig(momentum=momentum))
        how = {"bits": 24, "rows": int(self.rows.sum()), "method": made, "outer": outer}
        self.nodes = [rounds_of(size, nodes, node=node, **how) for node in range(nodes)]

    @property
    def optimum(self):
        weights = self.rows[:, None] * self.curvature
        return (weights * self.optima).sum(axis=0) / weights.sum(axis=0)

    def part_of(self, node, number):
        ended, speed = self.model.astype(float), 0.0
        for _ in range(self.STEPS):
            slope = self.curvature[node] * (ended - self.optima[node])
            speed = self.momentum * speed + slope + self.nodes[node].given.get("correction", 0.0)
            ended = ended - self.RATE * speed
        about = (self.model, ended.astype(np.float32), int(self.rows[node]), number)
        self.nodes[node].give_change(*about, steps=self.STEPS, rate=self.RATE)
        return self.nodes[node].part

    def round(self, number, away=()):
        """Let all nodes train, of which those that are away are in no sum; all must compute the same bits."""
        parts = [self.part_of(node, number) for node in range(len(self.nodes))]
        there = [node for node in range(len(parts)) if node not in away]
        total = sum(parts[node] for node in there)
        for node in away:
            self.nodes[node].part = None
        assert self.nodes[0].is_possible(total, len(there))
        (model, *others) = [each.next_model(self.model, total, len(there), number) for each in self.nodes]
        states = {b"".join(each.packed(model, number)) for each in self.nodes}
        assert all(model.tobytes() == other.tobytes() for other in others)
        assert len(states) == 1
        self.model = model

    @property
    def left(self):
        """What the variates of all nodes, times their rows, add up to, on average for a row."""
        return sum(int(rows) * each.variate for rows, each in zip(self.rows, self.nodes, strict=True)) / self.rows.sum()


@pytest.fixture
def unclipped(monkeypatch):
    """Let numbers have a range that stays, so that nothing but their rounding is between a model and the optimum."""
    monkeypatch.setattr("p2pfl.learn.averaging.NARROWER", 1.0)
    monkeypatch.setattr("p2pfl.learn.averaging.LEAST_RMS", 64.0)


@pytest.mark.parametrize(("outer", "beta"), [("mean", 1.0), ("mean", 0.1), ("adam", 0.3), ("momentum", 0.3)])
def test_the_variates_of_all_add_up_to_nothing(outer, beta):
    """So the common variate, minus the mean change over the drift, is the mean of those of all nodes."""
    pulled = Pulled(f"variate:beta={beta}", outer=outer)
    for number in range(12):
        pulled.round(number)
        assert max(np.abs(each.variate).max() for each in pulled.nodes) > 0.01
        assert np.abs(pulled.left).max() < 1e-5


@pytest.mark.usefixtures("unclipped")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_variates_nodes_reach_the_optimum_of_all_beside_which_plain_stays(momentum):
    gaps = {}
    for method in ("plain", "variate:beta=1"):
        pulled = Pulled(method, momentum=momentum)
        for number in range(150):
            pulled.round(number)
        gaps[method] = np.abs(pulled.model - pulled.optimum).max()
    assert gaps["variate:beta=1"] < 1e-3
    assert gaps["plain"] > 0.05


@pytest.mark.usefixtures("unclipped")
def test_a_lost_variate_and_rounds_without_a_node_bend_nothing_for_good():
    pulled = Pulled("variate:beta=0.5")
    for number in range(150):
        kept = pulled.nodes[3].variate.copy()
        pulled.round(number, away=(3,) if 10 <= number < 20 else ())
        assert not 10 <= number < 20 or (pulled.nodes[3].variate == kept).all()
        if number == 30:
            pulled.nodes[1].variate = np.zeros_like(pulled.model)
            assert np.abs(pulled.left).max() > 0.05
    assert np.abs(pulled.left).max() < 1e-5
    assert np.abs(pulled.model - pulled.optimum).max() < 1e-3


def test_a_variate_survives_a_restart_is_in_no_state_for_others_and_makes_the_same_part():
    pulled, other = Pulled("variate"), Pulled("variate")
    for number in range(3):
        pulled.round(number)
    other.model, (first, *_), (again, *_) = pulled.model, pulled.nodes, other.nodes
    assert again.load_kept({"x": np.ones(1), **first.kept()}).keys() == {"x"}
    assert again.variate.tobytes() == first.variate.tobytes()
    assert again.packed(pulled.model, 3) == first.packed(pulled.model, 3)
    assert len(b"".join(first.packed(pulled.model, 3))) <= Pulled("plain").nodes[0].packed_bytes + pulled.model.nbytes
    part = pulled.part_of(0, 3).tobytes()
    assert other.part_of(0, 3).tobytes() == part
    assert pulled.part_of(0, 3).tobytes() == part  # trained again after a refused sum: nothing has moved
    *_, adopt = again.unpack(b"".join(pulled.nodes[1].packed(pulled.model, 3)), pulled.model.size)
    adopt()
    assert again.variate.tobytes() == first.variate.tobytes()


def test_normalized_is_plain_where_all_take_its_steps_and_else_scales_a_change():
    start = np.linspace(-1, 1, 50).astype(np.float32)
    made = make_method("normalized:steps=20", TrainingConfig())
    parts = {}
    for steps, times in ((20, 1.0), (40, 2.0), (5, 0.25)):
        node = rounds_of(50, 3, method=made)
        node.give_change(start, start + np.float32(times) * (start / 4), 100, 3, steps=steps)
        parts[steps] = node.part.tolist()
    plain = part_of(rounds_of(50, 3), start, start + start / 4)
    assert parts[20] == plain.tolist()
    assert parts[40] == parts[5] == parts[20]


def bits_after_rounds():
    """A digest of the models of a few rounds with each optimizer."""
    digest = hashlib.sha256()
    for outer in ("adam", "mean", "momentum"):
        model = np.random.default_rng(3).standard_normal(TILE + 700).astype(np.float32)
        made = rounds_of(model.size, 3, outer=outer)
        for index in range(3):
            total = sum(
                part_of(rounds_of(model.size, 3, node=node), np.round(model), np.round(model), round_index=index)
                for node in range(3)
            )
            model = made.next_model(model, total, 3, index)
            digest.update(b"".join(made.packed(model, index)))
    return digest.hexdigest()


def test_without_wide_instructions_the_bits_are_the_same():
    """As far as one machine can show: numpy without all that it chooses at run time."""
    features = np._core._multiarray_umath.__cpu_dispatch__
    here = os.pathsep.join(path for path in sys.path if path)
    changed = {"NPY_DISABLE_CPU_FEATURES": " ".join(features), "PYTHONPATH": here, "PYTHONWARNINGS": "ignore"}
    code = "import sys; sys.path.insert(0, 'tests'); import faces, runpy; "
    code += f"print(runpy.run_path({__file__!r})['bits_after_rounds']())"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | changed, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split()[-1] == bits_after_rounds()
