"""Whether the nodes together are better than a reference is said only where the test rows tell."""

from __future__ import annotations

import pytest

from p2pfl.console.output import reference_facts
from p2pfl.learn import Measure
from p2pfl.reporting import Alone, References, Report, Statistic, beside

AUC = Measure("auc", "AUC", higher_is_better=True)
RMSE = Measure("rmse", "RMSE", higher_is_better=False)


def told(measure, value, ends, other, others):
    """Return what is said of nodes with this mean and interval, beside nodes alone with the others."""
    reference = Alone(
        metrics={measure.name: Statistic(other, other, other)}, intervals=others and {measure.name: others}
    )
    metrics, intervals = {measure.name: Statistic(value, value, value)}, ends and {measure.name: ends}
    report = Report(nodes=[], measures=[measure], metrics=metrics, intervals=intervals)
    report.reference = References(alone=reference)
    assert reference_facts(report)["together beside alone"] == beside(report, reference)
    return beside(report, reference)


@pytest.mark.parametrize(
    ("measure", "values", "text"),
    [
        (AUC, (0.9, (0.85, 0.95), 0.8, (0.75, 0.84)), "AUC +0.1: together is better"),
        (RMSE, (9.0, (8.5, 9.5), 8.0, (7.5, 8.4)), "RMSE +1: together is worse"),
        (AUC, (0.9949, (0.8, 1.0), 0.9983, (0.85, 1.0)), "this does not show which is better"),
    ],
)
def test_intervals_that_overlap_do_not_tell_which_is_better(measure, values, text):
    assert text in told(measure, *values)


def test_what_has_no_interval_is_not_compared():
    assert told(AUC, 0.9, (0.8, 1.0), 0.8, {}) is None
    assert told(AUC, 0.9, {}, 0.8, (0.8, 1.0)) is None
