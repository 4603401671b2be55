"""What the doctor asks the node that runs here; the rest of it is in tests/node and tests/lan."""

from __future__ import annotations

import json

from pages import note_address, serving


def test_sessions_and_relays_are_those_that_the_node_here_reports(p2pfl, tmp_path):
    assert p2pfl("new", "ward", "--nodes", "4").code == 0
    neighbors = [{"name": "node1", "live": True}, {"name": "node3", "live": False}]
    relays = [
        {"relay": "ws://one/p2pfl", "registered": True, "why": ""},
        {"relay": "ws://other/p2pfl", "registered": False, "why": "Connection refused"},
    ]
    said = {"federation": "ward", "node": "node0", "phase": "waiting", "rounds": 0, "neighbors": neighbors}
    said |= {"features": {"relay": {"relays": relays}}}
    with serving(said) as address:
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
    assert [text for text in texts if "relay" in text] == [
        "node0 is not registered at the relay ws://other/p2pfl: Connection refused"
    ]
