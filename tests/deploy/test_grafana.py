"""The dashboard asks for what nodes have: each metric and each label in its queries is in `/metrics`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from p2pfl.core import Fault
from p2pfl.features.status import OF_NEIGHBOR, OF_NODE, PHASES, exposition
from p2pfl.reporting import ALARMS

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "p2pfl.json").read_text(encoding="utf-8"))
NEIGHBOR = {metric.key: 1 for metric in OF_NEIGHBOR} | {"name": "pi-2", "faults": {Fault.PAYLOAD.value: 1}}
STATUS = {metric.key: 1 for metric in OF_NODE} | {
    "node": "pi-1",
    "federation": "ward",
    "phase": "training",
    "staleness": {"mean": 1.0, "max": 2},
    "alarms": {next(iter(ALARMS)): 1},
    "standing_alarms": [next(iter(ALARMS))],
    "neighbors": [NEIGHBOR],
}
QUERIES = [
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
    *(one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"),
]


def labels_by_metric():
    found = {}
    for name, labels in re.findall(r"^(p2pfl_\w+)(?:\{(.*)\})? \S+$", exposition(STATUS), flags=re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_each_metric_of_a_query_exists_and_has_its_labels(query):
    known = labels_by_metric()
    asked = re.findall(r"(p2pfl_\w+)(?:\{([^}]*)\})?", query)
    assert asked
    for name, labels in asked:
        assert name in known
        assert set(re.findall(r"(\w+)=", labels)) <= known[name]


@pytest.mark.parametrize("query", QUERIES)
def test_only_what_grows_is_asked_for_its_rate(query):
    assert all(name.endswith("_total") for name in re.findall(r"(?:rate|increase)\((p2pfl_\w+)", query))


def test_a_phase_that_is_asked_for_is_one():
    assert {phase for query in QUERIES for phase in re.findall(r'phase="([^"]*)"', query)} <= set(PHASES)


def test_what_stands_in_a_legend_is_a_label():
    known = labels_by_metric()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            own = known[re.search(r"p2pfl_\w+", target["expr"])[0]]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= own | {"node"}


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_the_dashboard_names_no_data_source_of_ours():
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
