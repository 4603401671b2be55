"""`p2pfl evaluate FOLDER --federation`: sums over all nodes' own test rows, and no node's own figures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from p2pfl.cli.main import main
from tests.cli.conftest import run_rounds

SITES = ("north", "south", "west")


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory):
    """Three sites that have trained for a round each; for reading only."""
    folder = tmp_path_factory.mktemp("sites")
    rng = np.random.default_rng(0)
    for place, site in enumerate(SITES):
        x = rng.normal(size=(60 * (place + 1), 2))
        ill = (rng.random(len(x)) < 1 / (1 + np.exp(-3 * x[:, 0]))).astype(int)
        lines = [f"{a:.4f},{b:.4f},{y}" for (a, b), y in zip(x, ill, strict=True)]
        (folder / f"{site}.csv").write_text("\n".join(["a,b,y", *lines, ""]), encoding="utf-8")
    place = folder / "h"
    tables = [str(folder / f"{site}.csv") for site in SITES]
    with pytest.raises(SystemExit):
        main(["new", str(place), "--task", "csv", *tables, "--target", "y", "--positive", "1"])
    for site in SITES:
        run_rounds(place, site, 1)
    return place


@pytest.fixture
def copy(hospitals, tmp_path):
    return shutil.copytree(hospitals, tmp_path / "h")


def report_of(p2pfl, *arguments):
    outcome = p2pfl("evaluate", *arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_the_figures_are_those_of_all_rows_and_of_no_node(p2pfl, hospitals):
    own = [report_of(p2pfl, hospitals / site) for site in SITES]
    found = report_of(p2pfl, hospitals, "--federation")
    rows = [one["test_samples"] for one in own]
    assert found["nodes"] == list(SITES)
    assert found["rows"] == sum(rows) == np.sum(found["confusion"])
    assert found["measure"] == "auc"
    mean = np.average([one["test_metrics"]["auc"] for one in own], weights=rows)
    assert found["mean"] == pytest.approx(mean)
    assert found["loss"] == pytest.approx(np.average([one["test_loss"] for one in own], weights=rows))
    assert found["classes"] == ["negative", "positive"]
    assert 0 <= found["auc"]["error"] < 0.02
    assert sum(part["rows"] for part in found["calibration"]) == found["rows"]
    shown = p2pfl("evaluate", hospitals, "--federation").out
    assert "off by at most" in shown
    for one in own:
        assert not re.search(rf"\b{one['test_loss']:.4g}\b", shown)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_machines_of_their_own_each_waits_for_the_others_and_all_print_the_same(p2pfl, copy):
    command = [sys.executable, "-m", "p2pfl", "evaluate", str(copy), "--federation", "--format", "json", "--node"]
    started = [
        subprocess.Popen([*command, site], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for site in SITES
    ]
    try:
        outcomes = [process.communicate(timeout=250) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), outcomes
    assert {out for out, _ in outcomes} == {p2pfl("evaluate", copy, "--federation", "--format", "json").out}
    assert all(said.startswith("waiting for the other nodes") for _, said in outcomes)


def change(file, right, wrong):
    text = file.read_text(encoding="utf-8")
    assert right in text
    file.write_text(text.replace(right, wrong), encoding="utf-8")


def refused(p2pfl, *arguments):
    outcome = p2pfl("evaluate", *arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome
    return outcome.err


def test_what_cannot_be_evaluated_is_one_clear_error(p2pfl, copy, learned):
    assert "SNAPSHOT: not the folder of a federation" in refused(p2pfl, copy / "north", "--federation")
    assert "node1: no state here" in refused(p2pfl, learned, "--federation")
    shutil.rmtree(copy / "south" / "state")
    assert "no state here" in refused(p2pfl, copy, "--federation")
    shutil.rmtree(copy / "south")
    error = refused(p2pfl, copy, "--federation")
    assert "--federation: not on this machine: south; allowed: the folders of all nodes, or --node NAME" in error


def test_a_node_without_test_rows_would_add_nothing(p2pfl, copy):
    change(copy / "federation.toml", "\nholdout = 0.2", "\nholdout = 0.0")
    assert "--federation: north has no test rows" in refused(p2pfl, copy, "--federation")


def test_two_nodes_are_too_few(p2pfl, learned, tmp_path):
    ward = shutil.copytree(learned, tmp_path / "ward")
    run_rounds(ward, "node1", 1)
    assert "--federation: too few nodes for a secure sum" in refused(p2pfl, ward, "--federation")


def test_what_privacy_withholds_is_not_summed_either(p2pfl, copy):
    with (copy / "federation.toml").open("a") as file:
        file.write("\n[privacy]\nepsilon = 8\ndelta = 1e-3\n")
    for arguments in (("--federation",), ("--node", "north", "--federation")):
        assert "withheld under [privacy]" in refused(p2pfl, copy, *arguments)
