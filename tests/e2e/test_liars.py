"""Real processes, one of which lies: the honest end where they would without it, or are told beforehand why not.

Eight nodes with four neighbors each; every report's figures are over honest nodes alone.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DEADLINE_S = 200
ROUNDS = 20
RULE = "hampel:b=1"
EIGHT = ["--topology", "random-regular:degree=4", "--partition", "dirichlet:1", "--rounds", str(ROUNDS)]

MARGIN = 0.03

FIVE = ["--nodes", "5", "--topology", "complete", "--partition", "iid", "--rounds", "6"]
"""small enough for `make test`; what eight nodes learn beside each attack is for `make test-all`."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * DEADLINE_S)]


def demo(folder, *arguments, size=EIGHT):
    """The report of `p2pfl demo`, and what it said on stderr."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "p2pfl.cli.main", "demo", "--format", "json"),
            *("--dir", str(folder / "demo"), *size, *arguments),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory):
    """The same federation without a liar."""
    report, _ = demo(tmp_path_factory.mktemp("unharmed"), "--rule", RULE)
    return report


def honest_rows(report):
    return [row for row in report["nodes"] if not row["byzantine"]]


def lying_row(report):
    (row,) = [row for row in report["nodes"] if row["byzantine"]]
    return row


def refused(report):
    """How often honest nodes have refused what a neighbor showed."""
    kinds = ("request-refused", "reply-refused")
    return sum(row["alarms"].get(kind, 0) for row in honest_rows(report) for kind in kinds)


def falls_short(report, unharmed):
    return report["accuracy"]["min"] < unharmed["accuracy"]["min"] - MARGIN


@pytest.mark.long
@pytest.mark.parametrize("attack", ["sign-flip", "nan", "wrong-shape", "flood"])
def test_beside_one_liar_the_honest_end_where_they_would_without_it(tmp_path, unharmed, attack):
    """No two runs of real processes are alike: what falls short is run again, with and without the liar, on a machine
    that may have been busy with something else during one of the two.
    """
    report = beside_one_liar(tmp_path, attack)
    if falls_short(report, unharmed):
        report = beside_one_liar(tmp_path / "again", attack)
        unharmed, _ = demo(tmp_path / "without", "--rule", RULE)
    assert unharmed["accuracy"]["min"] > 0.85
    assert not falls_short(report, unharmed), (report["accuracy"], unharmed["accuracy"])


def beside_one_liar(folder, attack, *, size=EIGHT, rounds=ROUNDS):
    """The report: whatever the machine does meanwhile, nobody has stopped, and what is no model has been refused."""
    report, told = demo(folder, "--rule", RULE, "--byzantine", "1", "--attack", attack, size=size)
    liar = lying_row(report)
    assert (report["byzantine"], report["attack"]) == ([liar["name"]], attack)
    assert f"{liar['name']} lies to every neighbor: {attack}" in told
    assert report["died"] == []
    assert len(honest_rows(report)) == len(report["nodes"]) - 1
    for row in honest_rows(report):
        assert (row["finished"], row["failed_rounds"]) == (True, 0)
        assert row["rounds"] >= rounds
    assert report["accuracy"]["min"] == min(row["accuracy"] for row in honest_rows(report))
    match attack:
        case "nan" | "wrong-shape":
            assert refused(report) > 0
        case "flood":
            assert liar["messages_sent"] is None or liar["messages_sent"] > 3 * max(
                row["messages_sent"] for row in honest_rows(report)
            )
        case _:
            assert refused(report) == 0
    return report


OWN = """
import numpy as np

def downhill_as_uphill(sight):
    loss, gradient = sight.slope(sight.victim)
    assert np.isfinite(loss)
    assert sight.rule == "hampel:b=1"
    return sight.victim + 0.01 * gradient
"""


@pytest.mark.long
@pytest.mark.parametrize("attack", ["ascent", "lies.py:downhill_as_uphill"])
def test_a_real_liar_climbs_the_loss_of_its_own_data(tmp_path, monkeypatch, attack):
    """Also in an attack of the user's own, which the liar's process finds in the folder where the demo was started."""
    (tmp_path / "lies.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    report = beside_one_liar(tmp_path, attack, size=FIVE, rounds=6)
    assert report["accuracy"]["min"] > 0.7
    assert lying_row(report)["finished"]


@pytest.mark.long
def test_under_the_mean_one_liar_ruins_what_the_honest_learn_and_the_demo_has_said_so(tmp_path, unharmed):
    """How much all of them lose depends on when the liar gets a processor."""
    report, told = demo(tmp_path, "--rule", "mean", "--byzantine", "1", "--attack", "sign-flip")
    assert 'warning: rule = "mean" trusts every neighbor: expect malicious nodes to ruin' in told
    assert report["died"] == []
    assert report["accuracy"]["min"] < unharmed["accuracy"]["min"] - 0.3


@pytest.mark.long
def test_a_backdoor_is_measured_beside_the_accuracy_on_clean_data(tmp_path):
    """Under the mean, two of eight teach the trigger; accuracy alone would not show it."""
    report, _ = demo(tmp_path, "--byzantine", "2", "--attack", "backdoor")
    assert report["accuracy"]["min"] > 0.85
    rows = {row["name"]: row["attack_success"] for row in report["nodes"]}
    assert [name for name, success in rows.items() if success is None] == report["byzantine"]
    known = [success for success in rows.values() if success is not None]
    assert report["attack_success"] == {"mean": pytest.approx(sum(known) / 6), "min": min(known), "max": max(known)}
    assert report["attack_success"]["mean"] > 0.3
