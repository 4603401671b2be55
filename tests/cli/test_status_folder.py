"""`p2pfl status FOLDER`: every member in one table, and why some of them say nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pages import note_address, serving

SAID = {"federation": "ward", "node": "node0", "phase": "training", "rounds": 12}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr("p2pfl.features.status.running.TIMEOUT_S", 60.0)


@pytest.fixture
def dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def told(p2pfl, folder):
    outcome = p2pfl("status", folder, "--format", "json")
    return outcome.code, {row["node"]: row for row in json.loads(outcome.out)}


def test_members_that_run_elsewhere_are_no_failure(p2pfl, ward):
    with serving(SAID) as address:
        note_address(ward, "node0", address)
        code, rows = told(p2pfl, ward / "federation.toml")
    assert [row["phase"] for row in rows.values()] == ["training", *["not running here"] * 3]
    assert code == 0


def test_the_file_of_a_node_that_was_killed_is_recognized(p2pfl, ward, dead_process):
    with serving(SAID) as address:
        note_address(ward, "node0", address)
        note_address(ward, "node1", address, pid=dead_process)
        code, rows = told(p2pfl, ward)
    assert rows["node1"]["phase"].startswith("died: its process is gone")
    assert code == 1


def test_a_port_that_another_node_has_now_is_recognized(p2pfl, ward):
    with serving(SAID) as address:
        note_address(ward, "node0", address)
        note_address(ward, "node1", address)
        _, rows = told(p2pfl, ward)
    assert rows["node1"]["phase"] == "another node answers there"


def test_a_node_without_a_page_says_so(p2pfl, ward):
    note_address(ward, "node0", None)
    _, rows = told(p2pfl, ward)
    assert "status_listen" in rows["node0"]["phase"]


def test_nobody_here_is_an_answer_too(p2pfl, ward):
    code, rows = told(p2pfl, ward)
    assert code == 1
    assert {row["phase"] for row in rows.values()} == {"not running here"}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"node": 3}', b"\xff" * 9000])
def test_a_broken_address_file_is_as_good_as_none(p2pfl, ward, content):
    state = ward / "node0" / "state"
    state.mkdir()
    (state / "address.json").write_bytes(content)
    assert told(p2pfl, ward)[1]["node0"]["phase"] == "not running here"


def test_the_token_beside_the_state_opens_a_page_that_wants_one(p2pfl, ward, monkeypatch):
    monkeypatch.setattr("p2pfl.features.status.page.Guard._is_here", lambda *_: False)
    with serving(SAID, token="t" * 24) as address:
        note_address(ward, "node0", address)
        assert "needs the token" in told(p2pfl, ward)[1]["node0"]["phase"]
        assert p2pfl("status", f"http://{address}/#{'t' * 24}").code == 0
        (ward / "node0" / "state" / "page-token").write_text("t" * 24)
        assert told(p2pfl, ward)[1]["node0"]["phase"] == "training"


def test_a_mistake_in_the_folder_is_the_users(p2pfl, ward):
    (ward / "federation.toml").write_text("[federation]\n", encoding="utf-8")
    outcome = p2pfl("status", ward)
    assert outcome.code == 2
    assert "federation.toml" in outcome.err


def test_the_folder_of_a_member_that_was_replaced_says_nothing_of_the_one_that_has_its_name(p2pfl, ward, dead_process):
    """The old process died here, and the new one runs elsewhere."""
    key = ward / "node1" / "node.key"
    key.unlink()
    assert p2pfl("key", key).code == 0
    with serving(SAID) as address:
        note_address(ward, "node0", address)
        note_address(ward, "node1", address, pid=dead_process)
        code, rows = told(p2pfl, ward)
    assert rows["node1"]["phase"].startswith("not here: the key")
    assert code == 0
