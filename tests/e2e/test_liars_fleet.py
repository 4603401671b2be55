"""A fleet with a liar: it is started by another command, never waited for, and no figure of it is a result."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2pfl.cli import LiveView
from p2pfl.cli.main import main
from p2pfl.config import load_config
from p2pfl.fleet import Fleet, History, Lies, final_report
from p2pfl.reporting import MeanAndMax, NeighborStatus, NodeResult, Statistic

sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import free_ports

BOUNDED = {
    'name = "task.py:task"': 'name = "quadratic"',
    "rounds = 40": "rounds = 2",
    "# start_wait_s = 60.0": "start_wait_s = 5.0",
    "# linger_s = 30.0": "linger_s = 0.1",
}


BOAST = NodeResult(
    node="node1",
    uptime_s=1.0,
    phase="finished",
    rounds=7,
    rounds_without_neighbor=0,
    version=7,
    accuracy=1.0,
    test_loss=1e9,
    tested_round=7,
    tested_version=7,
    test_is_stale=False,
    loss=1e9,
    staleness=MeanAndMax(mean=9, max=9),
    bytes_sent=10,
    bytes_received=0,
    messages_sent=1,
    messages_received=0,
    peers=0,
    quarantined=1,
    exchanges=0,
    closing_rounds=0,
    neighbor_distance=1e9,
    disk_refuses=None,
    federation="ward",
    rounds_to_do=2,
    durability="exchange",
    samples=1,
    alarms={},
    failed_rounds=0,
    through=True,
    ended_by=None,
    pace_set_by=None,
    rule="mean",
    liars=0,
    liars_borne=0,
    neighbors_needed=1,
    rounds_mixed=None,
    rounds_alone=None,
    too_few_neighbors=None,
    neighbors=[
        NeighborStatus(
            name="node0",
            compressor="q4",
            bytes_sent=0,
            messages_sent=0,
            standing=0.0,
            faults={"flood": 9},
            quarantines=9,
        )
    ],
    finished=True,
    resigned=False,
    removed=False,
    pid=1,
    local_accuracy=1.0,
    local_loss=1e9,
    steps=7,
    wall_time_s=1.0,
    cpu_time_s=1.0,
    cpu_time_running_s=1.0,
    cpu_time_training_s=1.0,
)
LIAR = """
import json, pathlib, sys
line = json.loads(sys.argv[1])
state = pathlib.Path(sys.argv[2])
state.mkdir(exist_ok=True)
(state / "result.json").write_text(json.dumps(line))
print(json.dumps(line), flush=True)
sys.stdin.read()
"""


class Silent:
    """Its liars boast of absurd figures, and then say nothing until their leash is let go."""

    def check(self, spec):
        pass

    def command(self, federation, name, spec, liars):
        return ["-c", LIAR, BOAST.to_bytes().decode(), str(federation.path.parent / name / "state")]

    def success(self, spec, federation, node, models):
        return dict.fromkeys(models, 0.25)


@pytest.fixture
def federation(tmp_path):
    folder = tmp_path / "ward"
    ports = ["--base-port", str(free_ports(3)[0])]
    with pytest.raises(SystemExit) as made:
        main(["new", str(folder), "--nodes", "3", *ports])
    assert made.value.code == 0
    file = folder / "federation.toml"
    text = file.read_text()
    for old, new in BOUNDED.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return load_config(file)


@pytest.mark.long
async def test_the_fleet_ends_with_the_honest_and_reports_them_alone(federation):
    fleet = Fleet(federation, Lies(attackers=Silent(), spec="silence", names=("node1",)))
    view = LiveView(fleet)
    with view.shown():
        await fleet.run(view.update)
        shown = {row["name"]: row["standing"] for row in view.overview()["members"]}
    report = final_report(fleet, view.history.points)
    honest, liar, other = report.nodes
    assert shown == {"node0": [], "node1": ["lies"], "node2": []}
    assert (report.died, report.stopped) == ([], False)
    assert (report.byzantine, report.attack) == (["node1"], "silence")
    assert (honest.finished, honest.byzantine, liar.finished, liar.byzantine) == (True, False, True, True)
    assert fleet.children[1].lines[0].rounds == 7
    assert report.loss.max == max(honest.test_loss, other.test_loss) < 1e9
    assert report.attack_success == Statistic(mean=0.25, min=0.25, max=0.25)
    assert (honest.attack_success, liar.attack_success) == (0.25, None)
    assert report.held_against == []
    assert History().look(fleet).loss.max < 1e9


async def test_without_liars_a_report_has_none(federation):
    fleet = Fleet(federation)
    assert fleet.honest == fleet.children
    fleet.stop()
    await fleet.run(lambda: None)
    report = final_report(fleet, [])
    assert (report.byzantine, report.attack, report.attack_success) == ([], None, None)
