"""`p2pfl demo` and `p2pfl launch`: real processes, one report, and the truth about those that died."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from real_field import Field, change, commands, wait_for

from p2pfl.cli.main import main
from p2pfl.node import replay
from p2pfl.storage import peek

DEADLINE_S = 100
LONG_DEADLINE_S = 250
ENDLESS = 100_000
"""rounds: whatever is held up meanwhile, no node ends by itself."""
NINE_DIGITS = 0.82
"""Who knows eight digits and nothing of the other two gets .81 of the test set right at most."""

# Nobody trains in round 10 and later ones before the file `go` is there.
GATED = """
import time
from pathlib import Path
from p2pfl.learn.task import QuadraticLearner, QuadraticTask

GO = Path(__file__).with_name("go")


class Gated(QuadraticLearner):
    def train(self, start, round_index):
        while round_index >= 10 and not GO.exists():
            time.sleep(0.01)
        return super().train(start, round_index)


class Task:
    def learner(self, context, training):
        return Gated(QuadraticTask(step_s=0.05), context, training)


task = Task()
"""


@pytest.fixture
def start():
    with commands() as start:
        yield start


def descendants(pid):
    """Process ids of all that this process or one of those has started, such as a server that forks nodes."""
    for of_thread in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in of_thread.read_text().split():
            yield child
            yield from descendants(child)


def children(process):
    """Process ids of the launcher's nodes, by node name."""
    found = {}
    for pid in descendants(process.pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if "--node" in command:
            found[command[command.index("--node") + 1]] = int(pid)
    return found


def set_rounds(ward, rounds):
    change(ward / "federation.toml", "(?m)^rounds = .*$", f"rounds = {rounds}")


def has_learned(ward, name):
    """Whether a round of it is on disk."""
    state = ward / name / "state"
    loaded = peek(state) if state.exists() else None
    return loaded is not None and replay(loaded).rounds > 0


@pytest.fixture
def ward(tmp_path):
    """Four nodes of the torch-free task, whose rounds take a while."""
    task = 'name = "quadratic"\nstep_s = 0.05'
    return Field(tmp_path / "ward", 4, task=task, rounds=60, linger_s=3.0, start_wait_s=3.0).folder


@pytest.mark.long
def test_processes_in_a_schedule_of_pairs_learn_too(start, tmp_path):
    options = ["--nodes", "4", "--topology", "one-peer-hypercube", "--partition", "iid", "--rounds", "12"]
    done = start("demo", "--dir", str(tmp_path / "demo"), "--format", "json", *options)
    out, err = done.communicate(timeout=DEADLINE_S)
    assert done.returncode == 0, err
    report = json.loads(out)
    assert report["config"]["schedule"] == [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]
    assert report["accuracy"]["min"] >= 0.8
    assert report["consensus_distance"] < 0.01
    exchanges = sum(row["exchanges"] for row in report["nodes"]) / 2
    rounds = max(report["rounds"].values())
    assert exchanges <= 4 + rounds * 2 * 2 + 10 * 2  # fills, two for each pair and round, one in each closing round


@pytest.mark.long
@pytest.mark.timeout(300)
def test_eight_processes_with_two_digits_each_end_with_one_model_of_all_ten(start, tmp_path):
    """The default configuration, no flag tuned. How much better than nine digits it is depends on how busy the machine
    is; what it learns on one that is not, tests/sim/test_demo_learns.py shows.
    """
    picture = tmp_path / "demo.png"
    done = start("demo", "--dir", str(tmp_path / "demo"), "--format", "json", "--plot", str(picture))
    out, err = done.communicate(timeout=LONG_DEADLINE_S)
    assert done.returncode == 0, err
    report = json.loads(out)
    assert report["accuracy"]["min"] >= NINE_DIGITS
    assert report["consensus_distance"] < 0.02
    assert min(report["rounds"].values()) >= 40
    assert report["died"] == []
    assert report["contraction"]["measured"] == pytest.approx(report["contraction"]["predicted"], abs=0.08)
    assert report["contraction"]["samples_known"] is True
    assert len(report["history"]) > 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "demo" / "report.json").read_text()) == report


@pytest.mark.long
def test_a_node_that_is_killed_is_named_at_once_and_the_others_finish_without_a_wait_for_it(start, ward):
    (ward / "gated.py").write_text(GATED)
    change(ward / "federation.toml", "(?m)^linger_s = .*$", "linger_s = 1000.0")
    change(ward / "federation.toml", 'name = "quadratic"\nstep_s = .*', 'name = "gated.py:task"')
    set_rounds(ward, 20)
    process = start("launch", str(ward), "--format", "json")
    wait_for(lambda: len(children(process)) == 4, "four processes")
    wait_for((ward / "node2" / "state").is_dir, "node2 at work")
    os.kill(children(process)["node2"], signal.SIGKILL)
    assert "node2 died (SIGKILL); its log: " in process.stderr.readline()
    (ward / "go").touch()
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "member-ended (node2)" in (ward / "node0" / "node.log").read_text()
    report = json.loads(out)
    assert report["died"] == ["node2"]
    assert report["contraction"]["samples_known"] is False
    by_name = {row["name"]: row for row in report["nodes"]}
    assert by_name["node2"]["state"] == "died (SIGKILL)"
    assert not by_name["node2"]["finished"]
    assert all(by_name[name]["finished"] and by_name[name]["rounds"] >= 20 for name in ("node0", "node1", "node3"))


def test_ctrl_c_stops_every_node_cleanly_and_a_second_launch_goes_on(start, ward, capsys):
    set_rounds(ward, ENDLESS)
    process = start("launch", str(ward))
    wait_for(lambda: all(has_learned(ward, f"node{index}") for index in range(4)), "all four at work")
    with pytest.raises(SystemExit) as asked:
        main(["status", str(ward), "--format", "json"])
    assert asked.value.code == 0
    assert [row["node"] for row in json.loads(capsys.readouterr().out)] == [f"node{index}" for index in range(4)]
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert not list(ward.glob("*/state/address.json"))
    report = json.loads((ward / "report.json").read_text())
    assert report["stopped"]
    assert report["died"] == []
    assert report["loss"]["max"] >= report["loss"]["mean"], "nodes that were stopped have a mean too"
    assert report["consensus_distance"] is not None
    more = max(report["rounds"].values()) + 5
    set_rounds(ward, more)
    again = start("launch", str(ward))
    _, err = again.communicate(timeout=DEADLINE_S)
    assert again.returncode == 0, err
    assert min(json.loads((ward / "report.json").read_text())["rounds"].values()) >= more
    for name, rounds in report["rounds"].items():
        assert f"resuming after round {rounds}\n" in (ward / name / "node.log").read_text()


def test_a_folder_that_is_no_demo_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--dir", str(tmp_path)])
    assert ended.value.code == 2
    assert "is not a demo" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
