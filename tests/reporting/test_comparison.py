"""Whether one model is better than another is said only where the test rows tell."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.console.output import reference_facts
from p2pfl.learn.metrics import ACCURACY, BUILT_IN, Measure
from p2pfl.reporting.measures import Alone, References, Statistic
from p2pfl.reporting.references import Pair, by_intervals, paired
from p2pfl.reporting.report import NodeReport, Report

AUC = Measure("auc", "AUC", higher_is_better=True)
RMSE = Measure("rmse", "RMSE", higher_is_better=False)


def pair(rng, rows, *, better, place=0, signal=1.0):
    """Logits of two models of the same rows, of which the first knows `better` times as much more."""
    labels = rng.integers(2, size=rows)
    shared = rng.normal(size=rows)
    odds = [shared + (2 * labels - 1) * signal * factor for factor in (1 + better, 1.0)]
    together, other = (np.stack([-one, one], axis=1) for one in odds)
    return Pair(together=together, other=other, targets=labels, place=place)


@pytest.mark.long
def test_fourteen_rows_a_node_do_not_tell_who_is_better():
    """The AUC of .9983 beside .9949 on a few rows of each node's own."""
    rng = np.random.default_rng(0)
    found = paired([pair(rng, 14, better=-0.05, place=n, signal=2.0) for n in range(3)], AUC, BUILT_IN["auc"])
    assert found.verdict == "open"
    assert found.rows == 42
    low, high = found.interval
    assert low <= found.difference <= high


def test_few_rows_are_said_to_be_few():
    rng = np.random.default_rng(1)
    found = paired([pair(rng, 14, better=1.0)], AUC, BUILT_IN["auc"])
    assert (found.verdict, found.interval) == ("open", None)
    assert "14 test rows" in found.why
    one = pair(rng, 60, better=1.0)
    one.targets[:] = 0
    one.targets[:3] = 1
    found = paired([one], AUC, BUILT_IN["auc"])
    assert found.verdict == "open"
    assert "3 test rows of a class" in found.why


@pytest.mark.long
def test_rows_enough_tell_which_is_better_and_which_end_is_good():
    rng = np.random.default_rng(2)
    found = paired([pair(rng, 400, better=1.0)], AUC, BUILT_IN["auc"])
    assert (found.verdict, found.interval[0] > 0) == ("better", True)
    targets = rng.normal(size=(200, 1))
    worse = Pair(together=targets + rng.normal(size=targets.shape), other=targets + 0.1, targets=targets, place=0)
    found = paired([worse], RMSE, BUILT_IN["rmse"])
    assert found.difference > 0
    assert found.verdict == "worse"


def test_pairing_tells_more_than_two_intervals():
    rng = np.random.default_rng(3)
    one = pair(rng, 200, better=0.3)
    metric = BUILT_IN["auc"]
    ends = [metric.interval(outputs, one.targets) for outputs in (one.together, one.other)]
    values = [metric(outputs, one.targets) for outputs in (one.together, one.other)]
    apart = by_intervals((values[0], ends[0]), (values[1], ends[1]), AUC)
    assert apart.verdict == "open"
    assert "overlap" in apart.why
    assert paired([one], AUC, metric).verdict == "better"


@pytest.mark.long
def test_nodes_with_one_test_set_are_drawn_together_and_others_apart():
    """Two nodes with the same rows know no more than one; with rows of their own, more."""
    rng = np.random.default_rng(4)
    one = pair(rng, 100, better=0.2)

    def width(pairs):
        low, high = paired(pairs, AUC, BUILT_IN["auc"]).interval
        return high - low

    assert width([one, one]) == pytest.approx(width([one]), rel=0.1)
    other = Pair(together=one.together, other=one.other, targets=one.targets, place=1)
    assert width([one, other]) == pytest.approx(width([one]) / 2**0.5, rel=0.15)


def test_what_is_not_tested_is_not_compared():
    assert paired([], AUC, BUILT_IN["auc"]) is None
    assert by_intervals((0.9, (0.8, 1.0)), (0.8, None), AUC) is None
    assert by_intervals((0.9, (0.85, 0.95)), (0.8, (0.75, 0.84)), AUC).verdict == "better"
    assert by_intervals((9.0, (8.5, 9.5)), (8.0, (7.5, 8.4)), RMSE).verdict == "worse"


@pytest.mark.long
def test_the_final_output_says_that_a_comparison_means_nothing():
    rng = np.random.default_rng(5)
    pairs = [pair(rng, 14, better=-0.05, place=n, signal=2.0) for n in range(3)]
    reference = References(
        alone=Alone(metrics={"auc": Statistic(0.9983, 0.99, 1.0)}, intervals={"auc": (0.85, 1.0)}),
        against_alone=paired(pairs, AUC, BUILT_IN["auc"]),
    )
    report = Report(nodes=[NodeReport(name="a")], measures=[AUC, ACCURACY], reference=reference)
    facts = reference_facts(report)
    assert "0.85 to 1" in facts["each node alone, with its own data"]
    assert "does not show which is better" in facts["together beside alone"]
    assert "42 test rows" in facts["together beside alone"]
