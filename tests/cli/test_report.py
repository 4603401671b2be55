"""A report is there as a whole or not at all."""

from __future__ import annotations

import json
import os

import pytest

from p2pfl.console.output import write_report
from p2pfl.errors import StorageError, UserError
from p2pfl.reporting import Report, check_target


def report(**more):
    return Report(nodes=[], history=[], **{"topology": "ring", "config": {}} | more)


def test_a_report_replaces_an_older_one(tmp_path):
    path = tmp_path / "r.json"
    for topology in ("ring", "star"):
        write_report(report(topology=topology), path)
    assert Report.from_json(path.read_bytes()) == report(topology="star")
    assert list(tmp_path.iterdir()) == [path]


def test_what_json_cannot_hold_leaves_the_older_one(tmp_path):
    path = tmp_path / "r.json"
    write_report(report(), path)
    with pytest.raises((ValueError, TypeError)):
        write_report(report(topology="star", config={"seed": object()}), path)
    assert Report.from_json(path.read_bytes()) == report()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_hold_is_null_in_the_file(tmp_path, value):
    path = tmp_path / "r.json"
    write_report(report(consensus_distance=value, config={"deep": [value]}), path)
    written = json.loads(path.read_text())
    assert (written["consensus_distance"], written["config"]) == (None, {"deep": [None]})


def test_a_disk_that_refuses_is_an_error_with_the_file(tmp_path):
    with pytest.raises(StorageError, match=r"gone/r\.json could not be written: No such file"):
        write_report(report(), tmp_path / "gone" / "r.json")


def test_a_target_that_cannot_be_is_refused_before_the_run(tmp_path, monkeypatch):
    check_target(tmp_path / "r.json", key="--report")
    check_target(tmp_path / "new" / "r.json", key="--report", coming=tmp_path / "new")
    for path in (tmp_path, tmp_path / "gone" / "r.json"):
        with pytest.raises(UserError, match="--report"):
            check_target(path, key="--report")
    monkeypatch.setattr(os, "access", lambda folder, _mode: folder != tmp_path)  # root may write anywhere
    with pytest.raises(UserError, match="cannot be written to"):
        check_target(tmp_path / "r.json", key="--report")
