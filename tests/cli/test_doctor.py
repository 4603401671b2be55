"""What the doctor says of members whose list of members is behind; the rest of it is in tests/node and tests/lan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from p2pfl.config.load import load_config, load_node, node_file
from p2pfl.features.lan import doctor
from p2pfl.features.status.running import NodeAddresses

sys.path.insert(0, str(Path(__file__).parent))
from pages import KNOWN, note_address, serving


@pytest.fixture
def told(p2pfl, tmp_path, monkeypatch):
    """What is said of members by a node that runs here and has heard of these versions."""

    def told(versions):
        assert p2pfl("new", "ward", "--nodes", "pi1,pi2,pi3", "--admin").code == 0
        federation = load_config(tmp_path / "ward")
        node = load_node(node_file(federation, "pi1"), federation, "pi1")
        there = NodeAddresses(federation="ward", node="pi1", pid=1, listen="", status="127.0.0.1:1")
        monkeypatch.setattr(doctor, "find_running", lambda _: there)
        rows = [{"name": name, "charter": version} for name, version in versions.items()]
        monkeypatch.setattr(doctor, "ask_federation", lambda _: {"members": rows})
        return [problem.text for problem in doctor.behind(federation, node)]

    return told


def test_who_has_an_older_list_of_members_than_others_is_named(told):
    assert told({"pi1": 3, "pi2": 2, "pi3": None}) == [
        "pi2 follows version 2 of the members, but the newest is version 3"
    ]


def test_sessions_refusals_and_relays_are_those_that_the_node_here_reports(p2pfl, tmp_path):
    assert p2pfl("new", "ward", "--nodes", "4").code == 0
    differs = KNOWN["alarms"][0] | {
        "kind": "federation-differs",
        "about": "node3",
        "text": "its federation file differs from ours in: edges",
    }
    neighbors = [{"name": "node1", "live": True}, {"name": "node3", "live": False}]
    relays = [
        {"relay": "ws://one/p2pfl", "registered": True, "why": ""},
        {"relay": "ws://other/p2pfl", "registered": False, "why": "Connection refused"},
    ]
    said = {"federation": "ward", "node": "node0", "phase": "waiting", "rounds": 0, "neighbors": neighbors}
    said |= {"features": {"relay": {"relays": relays}}}
    with serving(said, KNOWN | {"alarms": [differs]}) as address:
        note_address(tmp_path / "ward", "node0", address, listen="127.0.0.1:9")
        outcome = p2pfl("doctor", "ward", "--node", "node0", "--format", "json")
    found = json.loads(outcome.out)
    assert {row["member"]: row["session"] for row in found["members"]} == {
        "node0": False,
        "node1": True,
        "node3": False,
    }
    texts = [problem["text"] for problem in found["problems"]]
    assert any(text.startswith("node1 has a session with node0") for text in texts)
    assert "node0 refuses node3: its federation file differs from ours in: edges" in texts
    assert [text for text in texts if "relay" in text] == [
        "node0 is not registered at the relay ws://other/p2pfl: Connection refused"
    ]


def test_where_all_have_the_newest_nothing_is_said(told):
    assert told({"pi1": 1, "pi2": 1}) == []
