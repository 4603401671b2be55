"""A fleet with a liar: it is started by another command, never waited for, and no figure of it is a result."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import fields
from real_field import Field

from p2pfl.cli import LiveView
from p2pfl.config import load_config
from p2pfl.fleet import Fleet, History, Lies, final_report
from p2pfl.reporting import NodeResult, Statistic

NEIGHBOR = {"name": "node0", "compressor": "q4", "bytes_sent": 0, "messages_sent": 0, "standing": 0.0}
NOTHING = {one.name: 0 if one.type in (int, float) else None for one in fields(NodeResult) if one.required}
LIKE_ANY = {"node": "node1", "federation": "ward", "rule": "mean", "durability": "exchange", "alarms": {}}
BOAST = msgspec.convert(
    NOTHING
    | LIKE_ANY
    | {"phase": "finished", "finished": True, "through": True}
    | dict.fromkeys(("test_is_stale", "resigned", "removed"), False)
    | {"rounds": 7, "staleness": {"mean": 9, "max": 9}, "accuracy": 1.0, "local_accuracy": 1.0}
    | dict.fromkeys(("test_loss", "loss", "local_loss", "neighbor_distance"), 1e9)
    | {"neighbors": [NEIGHBOR | {"faults": {"flood": 9}, "quarantines": 9}], "quarantined": 1, "samples": 1},
    NodeResult,
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
    task = 'name = "quadratic"'
    return load_config(Field(tmp_path / "ward", 3, task=task, rounds=2, start_wait_s=5.0, linger_s=0.1).folder)


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
