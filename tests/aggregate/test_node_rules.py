"""One suite for every rule that a federation can name."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pfl.aggregate import (
    NNM,
    RULES,
    ClippedSum,
    GeometricMedian,
    Median,
    MoNNA,
    Neighborhood,
    TrimmedMean,
    UserRule,
    central,
    liars_of,
    make_rule,
)
from p2pfl.errors import UserError

SPECS = (
    *(f"{name}:b={b}" for name in RULES if name != "mean" for b in (1, 2)),
    *(f"nnm+{name}:b=1" for name in central()),
    "scc:b=1,tau=0.5",
)


@pytest.fixture(params=SPECS)
def rule(request):
    return make_rule(request.param)


def around(own, others, weights=None):
    count = len(others)
    weights = np.full(count, 1 / (count + 1)) if weights is None else weights
    return Neighborhood(own=own, others=others, weights=weights, peers=tuple(range(count)))


def models(count, size=700, seed=0, common=3.0):
    """Around a common one, as models are that mix."""
    chance = np.random.default_rng(seed)
    center = common * chance.standard_normal(size)
    return list((center + 0.1 * chance.standard_normal((count, size))).astype(np.float32))


@pytest.mark.parametrize("spec", SPECS)
def test_a_rule_says_by_which_spec_it_is_made(spec):
    rule = make_rule(spec)
    assert rule.spec == spec
    assert rule.liars == liars_of(spec)
    assert rule.least >= 2 * rule.liars + 1


def test_the_mean_is_no_rule_and_a_mistake_names_the_key():
    assert make_rule("mean") is None
    with pytest.raises(UserError) as raised:
        make_rule("hampl")
    assert (raised.value.key, raised.value.value) == ("gossip.rule", "hampl")


def test_a_model_comes_back_in_new_memory_and_nothing_is_written_to(rule):
    own, *others = models(rule.least + 3)
    before = [row.copy() for row in (own, *others)]
    for row in (own, *others):
        row.setflags(write=False)
    mixture = rule.mix(around(own, others))
    assert (mixture.model.shape, mixture.model.dtype) == (own.shape, np.float32)
    assert mixture.model.flags.writeable
    assert not any(np.shares_memory(mixture.model, row) for row in (own, *others))
    assert [row.tobytes() for row in (own, *others)] == [row.tobytes() for row in before]
    if mixture.kept is not None:
        assert mixture.kept.shape == (len(others),)
        assert ((mixture.kept >= 0) & (mixture.kept <= 1)).all()


def test_equal_models_stay_as_they_are(rule):
    own = models(1)[0]
    mixture = rule.mix(around(own, [own.copy() for _ in range(rule.least + 1)]))
    np.testing.assert_allclose(mixture.model, own, rtol=3e-7)


def test_it_mixes(rule):
    """Towards what the neighbors have, without a lie: it is not the own model under another name."""
    own, *others = models(rule.least + 4, common=0.6)
    moved = rule.mix(around(own, others)).model - own
    toward = np.mean(others, axis=0) - own
    assert moved @ toward > 0.01 * toward @ toward - 1e-9


LIES = {
    "far": lambda own, _: np.full_like(own, 1e30),
    "largest": lambda own, number: np.full_like(own, np.finfo(np.float32).max) * (-1) ** number,
    "flipped": lambda own, _: -10 * own,
    "each another": lambda own, number: own + np.float32(1e3 * (number + 1)),
    "zero": lambda own, _: np.zeros_like(own),
}


def test_as_many_lies_as_it_is_set_to_leave_the_model_near_the_honest_ones(rule):
    for name, lie in LIES.items():
        for first in (True, False):
            own, *honest = models(rule.least + 1 - rule.liars + 3)
            lies = [lie(own, number) for number in range(rule.liars)]
            others = lies + honest if first else honest + lies
            found = rule.mix(around(own, others)).model
            farthest = max(np.linalg.norm(row - own) for row in honest)
            allowed = 5 * farthest + (0.5 if "tau" in rule.spec else 0.0)
            assert np.linalg.norm(found - np.mean([own, *honest], axis=0)) <= allowed, name
            mean = np.mean([own, *others], axis=0, dtype=np.float64)
            assert np.linalg.norm(found - mean) > 1e-3 * np.linalg.norm(mean - own), name


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "nnm+trimmed" not in spec])
def test_it_says_how_little_of_a_lie_came_through(spec):
    rule = make_rule(spec)
    own, *honest = models(rule.least + 4)
    mixture = rule.mix(around(own, [*honest, *[np.full_like(own, 1e6)] * rule.liars]))
    if mixture.kept is not None:
        assert mixture.kept[len(honest) :].max() < 1e-2
        assert mixture.kept[: len(honest)].max() > (0.05 if "median:" in spec or "tau" in spec else 0.3)


def test_with_too_few_neighbors_it_stays_where_it_is(rule):
    own, *others = models(rule.least)
    mixture = rule.mix(around(own, others))
    assert mixture.model.tobytes() == own.tobytes()
    assert mixture.model is not own
    assert not mixture.kept.any()
    assert rule.mix(around(own, [])).model.tobytes() == own.tobytes()


def test_models_of_any_size(rule):
    for size in [0, 1, 16_385]:
        own, *others = models(rule.least + 1, size)
        assert rule.mix(around(own, others)).model.shape == (size,)


@pytest.mark.parametrize("spec", SPECS)
@given(
    data=st.data(),
    size=st.integers(1, 9),
    extra=st.integers(0, 4),
)
def test_finite_models_give_a_finite_model(spec, data, size, extra):
    rule = make_rule(spec)
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
    rows = data.draw(hnp.arrays(np.float32, (rule.least + 1 + extra, size), elements=floats))
    found = rule.mix(around(rows[0], rows[1:]))
    assert np.isfinite(found.model).all()


@pytest.mark.parametrize("spec", ["cs+:b=1", "scc:b=1,tau=1.0"])
def test_weights_scale_the_pulls_of_rules_around_the_own_model(spec):
    own, *others = models(6)
    whole = rule_moves(spec, own, others, np.full(5, 0.1))
    np.testing.assert_allclose(rule_moves(spec, own, others, np.full(5, 0.05)), whole / 2, atol=1e-6)
    assert not rule_moves(spec, own, others, np.full(5, 1e-300)).any()


@pytest.mark.parametrize("spec", ["trimmed-mean:b=1", "median:b=1", "geometric-median:b=1", "monna:b=1"])
def test_no_weight_makes_a_neighbor_count_for_more_than_one(spec):
    own, *others = models(6)
    even = rule_moves(spec, own, others, np.full(5, 0.1))
    assert (rule_moves(spec, own, others, np.array([0.9, 0.01, 0.01, 0.01, 0.01])) == even).all()


def rule_moves(spec, own, others, weights):
    return make_rule(spec).mix(around(own, others, weights)).model - own


@pytest.mark.long
def test_large_models_need_blocks_alone_beside_the_result(rule):
    rows = models(9, 600_000)
    if len(rows) <= rule.least:
        rows += models(rule.least - 7, 600_000, seed=1)
    tracemalloc.start()
    rule.mix(around(rows[0], rows[1:]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows[0].nbytes + 6_000_000


def test_bits_do_not_depend_on_how_models_lie_in_memory(rule):
    own, *others = models(rule.least + 2, 20_000)
    wanted = rule.mix(around(own, others)).model.tobytes()
    wide = np.zeros((len(others) + 1, 20_003), np.float32)[:, 1:-2]
    wide[:] = [own, *others]
    assert rule.mix(around(wide[0], list(wide[1:]))).model.tobytes() == wanted


# --- rules of others -----------------------------------------------------------------------------------------------

MINE = """
import numpy as np

class Middle:
    def __init__(self, f):
        self.f = f
    def __call__(self, vectors):
        return np.sort(vectors, axis=0)[self.f : len(vectors) - self.f].mean(axis=0)

def wrong(vectors):
    return {wrong}

number = 3
"""


def test_a_rule_of_ones_own_is_found_beside_the_federation(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    own, *others = models(6)
    rule = make_rule("mine.py:Middle,b=2", tmp_path)
    assert (rule.spec, rule.liars, rule.least) == ("mine.py:Middle,b=2", 2, 5)
    wanted = make_rule("trimmed-mean:b=2").mix(around(own, others)).model
    np.testing.assert_allclose(rule.mix(around(own, others)).model, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("mine.py:absent", "has no 'absent'"),
        ("mine.py:number", "cannot be called"),
        ("other.py:rule", "there is no file"),
        ("no_such_module:rule", "there is no module"),
        ("os.path:sep", "cannot be called"),
        ("leaves.py:rule", "SystemExit: 4"),
    ],
)
def test_a_rule_that_is_not_there_is_the_users_mistake(tmp_path, spec, reason):
    (tmp_path / "mine.py").write_text(MINE.replace("{wrong}", "1 / 0"))
    (tmp_path / "leaves.py").write_text("raise SystemExit(4)")
    with pytest.raises(UserError, match=reason) as raised:
        make_rule(spec, tmp_path)
    assert raised.value.key == "gossip.rule"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("exit(3)", "SystemExit: 3"),
        ("vectors", "not"),
        ("vectors[0] * np.nan", "NaN or infinity"),
        ("vectors[0].astype(int)", "returned int64"),
        ("None", "returned object"),
    ],
)
def test_a_rule_of_ones_own_that_fails_says_so(tmp_path, answer, reason):
    (tmp_path / "mine.py").write_text(MINE.replace("{wrong}", answer))
    own, *others = models(6)
    with pytest.raises(UserError, match=reason):
        make_rule("mine.py:wrong", tmp_path).mix(around(own, others))


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_liars_who_show_a_node_its_own_model_stop_cs_plus_among_3b_neighbors_and_not_among_one_more(liars):
    rule, own = make_rule(f"cs+:b={liars}"), np.zeros(4)
    for others, moves in ((3 * liars, False), (3 * liars + 1, True)):
        honest = [np.full(4, 1.0 + index) for index in range(others - liars)]
        around = Neighborhood(
            own=own,
            others=[*honest, *[own.copy()] * liars],
            weights=np.full(others, 1 / (others + 1)),
            peers=tuple(range(others)),
        )
        assert rule.mix(around).model.any() == moves


# -- What callers may give, what they get back, and what never reaches a rule.

BATCH_RULES = (TrimmedMean(1), Median(), GeometricMedian(), MoNNA(1), ClippedSum(1))
ROWS = [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [0.0, 1.0, 5.0], [1.0, 1.0, 1.0], [50.0, -50.0, 0.5]]


@pytest.mark.parametrize("rule", BATCH_RULES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_tensors_give_a_tensor_of_their_type(rule, dtype):
    batch = torch.tensor(ROWS, dtype=dtype, requires_grad=True)
    wanted = torch.tensor(rule(ROWS), dtype=torch.float64)
    for vectors in (batch, list(batch)):
        found = rule(vectors)
        assert (found.dtype, found.shape, found.requires_grad) == (dtype, (3,), False)
        tolerance = 0.05 if dtype in (torch.bfloat16, torch.float16) else 1e-6
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rule", BATCH_RULES, ids=repr)
def test_arrays_and_lists_come_back_as_they_went_in(rule):
    for dtype in (np.float16, np.float32, np.float64):
        array = np.array(ROWS, dtype)
        for vectors in (array, list(array), array[:, ::-1][:, ::-1], np.asfortranarray(array)):
            found = rule(vectors)
            assert (type(found), found.dtype, found.shape) == (np.ndarray, dtype, (3,))
    assert rule(np.array(ROWS[:1] * 5, np.int64)).dtype == np.float64
    found = rule(ROWS)
    assert isinstance(found, list)
    assert all(isinstance(value, float) for value in found)


@pytest.mark.parametrize("rule", BATCH_RULES, ids=repr)
def test_a_result_is_memory_of_its_own(rule):
    array = np.array(ROWS, np.float32)
    before = array.copy()
    rule(array)[:] = 99
    assert (array == before).all()
    tensor = torch.tensor(ROWS)
    rule(tensor)[:] = 99
    assert torch.equal(tensor, torch.tensor(ROWS))


@pytest.mark.parametrize("rule", [*BATCH_RULES, NNM(Median(), 1), TrimmedMean(0)], ids=repr)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place_also_where_it_cancels_out(rule, bad):
    for dtype, row, last in itertools.product((np.float32, np.float64), range(5), (-50.0, -bad)):
        array = np.array(ROWS, dtype)
        array[4, 1], array[row, 1] = last, bad
        for vectors in (array, list(array), torch.from_numpy(array)):
            with pytest.raises(ValueError, match=f"vector {row} holds NaN or infinity"):
                rule(vectors)


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        ([], "no vectors"),
        (np.zeros((0, 3)), "no vectors"),
        ([[1.0], [1.0, 2.0], [1.0]], "vectors of one length"),
        ([[[1.0]], [[1.0]]], "vectors of one length"),
        (np.zeros(3), "a vector in each row"),
        (torch.zeros(2, 2, 2), "a vector in each row"),
        (np.array([["a"]]), "float32 or float64"),
        (np.array([[1j]]), "float32 or float64"),
        ("abc", "2-D tensor or array"),
        (3, "2-D tensor or array"),
        ([torch.zeros(2), [1.0, 2.0]], "tensors alone"),
        ([[1e200], [0.0]], "beyond 1e150"),
    ],
)
def test_what_is_no_batch_is_refused(vectors, reason):
    with pytest.raises(ValueError, match=reason):
        Median()(vectors)


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (TrimmedMean(2), 5),
        (MoNNA(1), 3),
        (ClippedSum(1), 4),
        (GeometricMedian(f=2), 5),
        (NNM(Median(), 1), 3),
    ],
    ids=repr,
)
def test_too_few_vectors_are_refused(rule, least):
    vectors = np.random.default_rng(0).standard_normal((least, 4))
    assert rule(vectors).shape == (4,)
    with pytest.raises(ValueError, match=f"from {least} vectors on, not of {least - 1}"):
        rule(vectors[:-1])


@pytest.mark.parametrize("f", [-1, 1.0, "1", True, None])
@pytest.mark.parametrize("make", [TrimmedMean, MoNNA, lambda f: NNM(Median(), f)])
def test_f_counts(make, f):
    with pytest.raises(ValueError, match="f is a whole number"):
        make(f)


@pytest.mark.parametrize("rule", [GeometricMedian(), ClippedSum(1), NNM(TrimmedMean(1), 1)])
def test_a_common_offset_drowns_no_distance(rule):
    """Parts of a thousandth around a thousand, in float32: the answer is that of float64, to float32's own steps."""
    chance = np.random.default_rng(4)
    vectors = (1000 + 1e-3 * chance.standard_normal((9, 20_000))).astype(np.float32)
    vectors[-1] += np.float32(2e-3)
    np.testing.assert_allclose(rule(vectors), rule(vectors.astype(np.float64)), atol=1.5e-4)


def test_torch_is_not_imported_for_arrays():
    code = "import sys, numpy, p2pfl.aggregate as a; a.Median()(numpy.ones((3, 2))); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_any_callable_of_that_convention_is_a_rule():
    rule = UserRule(lambda vectors: np.sort(vectors, axis=0)[1:-1].mean(axis=0), f=1)
    assert rule(ROWS) == pytest.approx(TrimmedMean(1)(ROWS))
