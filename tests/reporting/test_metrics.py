"""What Prometheus gets: base units, totals, HELP and TYPE for everything, and labels that nobody else can add to."""

from __future__ import annotations

import re

from p2pfl.features.status import OF_NEIGHBOR, OF_NODE, exposition
from p2pfl.reporting import ALARMS

NEIGHBOR = {"name": "pi-2", "faults": {"payload": 3, "made-up": 1}, "live": True}
STATUS = {
    "node": "pi-1",
    "federation": "ward-7",
    "phase": "training",
    "staleness": {"mean": 0.5, "max": 3},
    "disk_refuses": None,
    "alarms": {"resync": 1, "made-up": 2, "also": 3},
    "standing_alarms": ["neighbor-lost"],
    "privacy": {"unit": "record", "epsilon": 2.31, "budget": 8.0, "delta": 1e-5, "rounds_left": 7, "state": "open"},
}


def full():
    """A status in which everything has a value."""
    node = {metric.key: 1 for metric in OF_NODE if "." not in metric.key}
    return STATUS | node | {"neighbors": [NEIGHBOR | {metric.key: 2.5 for metric in OF_NEIGHBOR}]}


def test_every_metric_has_help_and_type_and_stands_in_one_block():
    text = exposition(full())
    blocks = re.findall(r"# HELP (\S+) \S.*\n# TYPE (\S+) (counter|gauge)\n((?:p2pfl_.*\n)+)", text)
    assert sum(2 + samples.count("\n") for *_, samples in blocks) == text.count("\n"), "nothing else is there"
    for name, again, kind, samples in blocks:
        assert name == again
        assert all(re.fullmatch(rf"{name}(\{{.*\}})? \S+", line) for line in samples.splitlines())
        assert name.endswith("_total") == (kind == "counter")


def test_all_figures_are_there_once():
    names = re.findall(r"# TYPE (\S+)", exposition(full()))
    assert len(names) == len(set(names)) == len(OF_NODE) + len(OF_NEIGHBOR) + 6


def test_units_are_base_units():
    assert not [name for name in re.findall(r"# TYPE (\S+)", exposition(full())) if re.search(r"_(ms|kb|mb|s)\b", name)]


def test_kinds_that_nobody_knows_share_one_label():
    text = exposition(STATUS | {"neighbors": [NEIGHBOR]})
    assert 'p2pfl_alarms_total{kind="resync"} 1\n' in text
    assert 'p2pfl_alarms_total{kind="other"} 5\n' in text
    assert 'p2pfl_neighbor_faults_total{neighbor="pi-2",kind="other"} 1\n' in text
    assert set(re.findall(r'alarms_total\{kind="([^"]*)"', text)) <= {*ALARMS, "other"}


def test_what_is_not_known_has_no_sample():
    text = exposition(STATUS | {"accuracy": None, "neighbors": [NEIGHBOR | {"exchange_s": None}]})
    assert "accuracy" not in text
    assert "exchange_seconds" not in text


def test_a_status_without_anything_is_no_crash():
    assert exposition({}) == ""


def test_the_phase_is_a_set_of_states_of_which_one_holds():
    samples = re.findall(r'p2pfl_phase\{phase="([^"]*)"\} (\S+)', exposition(STATUS))
    assert [phase for phase, value in samples if float(value)] == ["training"]


def test_a_label_is_escaped():
    text = exposition({"neighbors": [{"name": 'a"b\\c\n', "live": True}]})
    assert text.splitlines()[-1] == r'p2pfl_neighbor_open{neighbor="a\"b\\c\n"} 1'


def test_the_tasks_own_metrics_are_one_family_by_name():
    text = exposition(STATUS | {"metrics": {"rmse": 2.5, "auc": None}})
    assert 'p2pfl_test_metric{metric="rmse"} 2.5\n' in text
    assert "auc" not in text
