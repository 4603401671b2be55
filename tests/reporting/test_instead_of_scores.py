"""Where scores are withheld, something says how to learn them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec import structs

from p2pfl.cli import LiveView
from p2pfl.console.output import privacy_facts
from p2pfl.fleet import _withheld
from p2pfl.reporting import SCORE, NodeReport, PrivacyStatus, Report

SPENT = PrivacyStatus(unit="record", epsilon=1.0, budget=8.0, delta=1e-5, rounds_left=0, state="spent")


def federation(task, test_set="private"):
    return SimpleNamespace(
        name="h",
        topology="ring",
        privacy=SimpleNamespace(test_set=test_set),
        in_step_by="",
        task=SimpleNamespace(name=task),
        training=SimpleNamespace(rounds=3, trained_rounds=3),
    )


@pytest.mark.parametrize(
    ("task", "test_set", "said"),
    [("csv", "private", True), ("csv", "public", True), ("digits", "private", False)],
)
def test_report_and_final_output_point_to_score(task, test_set, said):
    nodes = [NodeReport(name="north", privacy=SPENT)]
    report = Report(nodes=nodes, privacy=_withheld(federation(task, test_set), nodes))
    assert (report.privacy.instead == SCORE) == said
    assert (SCORE in privacy_facts(report).values()) == said
    assert Report.from_json(report.to_json()).privacy.instead == report.privacy.instead


def test_so_does_the_live_view():
    fleet = SimpleNamespace(federation=federation("csv"), children=[], elapsed_s=1.0)
    assert SCORE in LiveView(fleet).overview()["notes"]
    fleet = SimpleNamespace(federation=federation("digits"), children=[], elapsed_s=1.0)
    assert SCORE not in LiveView(fleet).overview()["notes"]


@pytest.mark.parametrize(("state", "said"), [("spent", "at most 1"), ("unsure", "not known of all nodes")])
def test_what_incomplete_records_have_is_no_bound(state, said):
    nodes = [
        NodeReport(name="north", privacy=SPENT),
        NodeReport(name="south", privacy=structs.replace(SPENT, state=state)),
    ]
    report = Report(nodes=nodes, privacy=_withheld(federation("csv"), nodes))
    assert f"epsilon spent: {said};" in privacy_facts(report)["privacy of each record"]
