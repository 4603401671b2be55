"""What callers may give, what they get back, and what never reaches a rule."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from p2pfl.aggregate import (
    NNM,
    ClippedSum,
    GeometricMedian,
    Median,
    MoNNA,
    TrimmedMean,
    UserRule,
)

RULES = (TrimmedMean(1), Median(), GeometricMedian(), MoNNA(1), ClippedSum(1))
ROWS = [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [0.0, 1.0, 5.0], [1.0, 1.0, 1.0], [50.0, -50.0, 0.5]]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_tensors_give_a_tensor_of_their_type(rule, dtype):
    batch = torch.tensor(ROWS, dtype=dtype, requires_grad=True)
    wanted = torch.tensor(rule(ROWS), dtype=torch.float64)
    for vectors in (batch, list(batch)):
        found = rule(vectors)
        assert (found.dtype, found.shape, found.requires_grad) == (dtype, (3,), False)
        tolerance = 0.05 if dtype in (torch.bfloat16, torch.float16) else 1e-6
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rule", RULES, ids=repr)
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


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_result_is_memory_of_its_own(rule):
    array = np.array(ROWS, np.float32)
    before = array.copy()
    rule(array)[:] = 99
    assert (array == before).all()
    tensor = torch.tensor(ROWS)
    rule(tensor)[:] = 99
    assert torch.equal(tensor, torch.tensor(ROWS))


@pytest.mark.parametrize("rule", [*RULES, NNM(Median(), 1)], ids=repr)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(rule, bad):
    for dtype in (np.float32, np.float64):
        array = np.array(ROWS, dtype)
        array[3, 1] = bad
        for vectors in (array, list(array), torch.from_numpy(array)):
            with pytest.raises(ValueError, match="vector 3 holds NaN or infinity"):
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
        ([[1e200], [0.0], [0.0]], "beyond 1e150"),
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


@pytest.mark.parametrize("rule", [*RULES, NNM(TrimmedMean(1), 1)], ids=repr)
@pytest.mark.parametrize("size", [0, 1])
def test_vectors_may_be_short(rule, size):
    assert rule(np.ones((5, size), np.float32)).tolist() == pytest.approx([1.0] * size)


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
