"""A fleet with a liar: it is started by another command, never waited for, and no figure of it is a result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from p2pfl.cli.live import LiveView
from p2pfl.cli.main import main
from p2pfl.config.load import load_federation
from p2pfl.runtime.fleet import Fleet
from p2pfl.runtime.lies import Lies
from p2pfl.runtime.report import final_report, history_point

sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import free_ports

BOUNDED = {
    'name = "task.py:task"': 'name = "quadratic"',
    "rounds = 40": "rounds = 2",
    "# start_wait_s = 60.0": "start_wait_s = 5.0",
    "# linger_s = 30.0": "linger_s = 0.1",
}


BOAST = {
    "phase": "finished",
    "finished": True,
    "rounds": 7,
    "failed_rounds": 0,
    "accuracy": 1.0,
    "test_loss": 1e9,
    "loss": 1e9,
    "staleness": {"mean": 9, "max": 9},
    "bytes_sent": 10,
    "messages_sent": 1,
    "peers": 0,
    "neighbor_distance": 1e9,
    "exchanges": 0,
    "neighbors": [{"name": "node0", "bytes_sent": 0, "standing": 0.0, "faults": {"flood": 9}, "quarantines": 9}],
}
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
        return ["-c", LIAR, json.dumps(BOAST), str(federation.path.parent / name / "state")]

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
    return load_federation(file)


async def test_the_fleet_ends_with_the_honest_and_reports_them_alone(federation):
    fleet = Fleet(federation, Lies(attackers=Silent(), spec="silence", names=("node1",)))
    with LiveView(fleet, quiet=True) as view:
        await fleet.run(view.update)
        shown = list(view._table().columns[0].cells)
    report = final_report(fleet, view.history)
    honest, liar, other = report["nodes"]
    assert shown == ["node0", "node1 [red]lies[/]", "node2"]
    assert (report["died"], report["stopped"]) == ([], False)
    assert (report["byzantine"], report["attack"]) == (["node1"], "silence")
    assert (honest["finished"], honest["byzantine"], liar["finished"], liar["byzantine"]) == (True, False, True, True)
    assert fleet.children[1].lines[0]["rounds"] == 7
    assert report["loss"]["max"] == max(honest["test_loss"], other["test_loss"]) < 1e9
    assert report["attack_success"] == {"mean": 0.25, "min": 0.25, "max": 0.25}
    assert (honest["attack_success"], liar["attack_success"]) == (0.25, None)
    assert report["held_against"] == []
    assert history_point(fleet)["loss"]["max"] < 1e9


async def test_without_liars_a_report_has_none(federation):
    fleet = Fleet(federation)
    assert fleet.honest == fleet.children
    fleet.stopping = True
    await fleet.run(lambda: None)
    report = final_report(fleet, [])
    assert (report["byzantine"], report["attack"], report["attack_success"]) == ([], None, None)
