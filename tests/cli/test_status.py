"""`p2pfl status` asks the real status page, and says which nodes do not answer."""

from __future__ import annotations

import csv
import io
import json
import socket
import sys
import threading

import pytest
from pages import serving

from p2pfl.features.status import written_bytes

SAID = {
    "node": "node0",
    "phase": "training",
    "rounds": 7,
    "rounds_to_do": 40,
    "accuracy": 0.875,
    "loss": 0.5,
    "staleness": {"mean": 1.25, "max": 3},
    "peers": 2,
    "bytes_sent": 123_456,
    "neighbors": [{"name": "node1"}, {"name": "node2"}],
    "neighbor_distance": 0.01,
    "alarms": {"resync": 2, "storage": 1},
}


REFUSAL = "cannot write /data/log-00000007: No space left on device"
STALE = SAID | {"accuracy": 0.835, "tested_round": 5, "tested_version": 5, "test_is_stale": True}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A page in a thread of a process that is held up still answers in the end."""
    monkeypatch.setattr("p2pfl.features.status.running.TIMEOUT_S", 60.0)


@pytest.fixture
def page():
    with serving(SAID) as address:
        yield address


@pytest.fixture
def nobody():
    """An address that is taken, and where nobody listens: so it stays."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(("uptime_s", "shown"), [(86_400.0, True), (43_200.0, True), (60.0, False)])
def test_what_a_node_writes_in_a_day_is_shown_once_it_has_run_for_a_while(p2pfl, uptime_s, shown):
    written = round(2_500_000 * uptime_s / 86_400)
    with serving(SAID | {"uptime_s": uptime_s, "disk_bytes_written": written}) as address:
        assert ("written a day: 2.5 MB" in p2pfl("status", address).out) == shown
        (row,) = json.loads(p2pfl("status", address, "--format", "json").out)
    assert row["disk_bytes_a_day"] == (2_500_000 if shown else None)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts them")
def test_a_process_knows_what_it_has_written(tmp_path):
    before = written_bytes()
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
    counted = written_bytes() - before
    assert counted >= 100_000 or counted == 0, "a file system in memory is no disk"


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/status", "http://{}", "http://{}/", "http://{}/status"])
def test_an_address_may_be_written_short_or_long(p2pfl, page, form):
    outcome = p2pfl("status", form.format(page), "--format", "json")
    assert outcome.code == 0
    (row,) = json.loads(outcome.out)
    assert {key: value for key, value in row.items() if value not in (None, {})} == {
        "url": form.format(page),
        "node": "node0",
        "phase": "training",
        "round": 7,
        "of": 40,
        "accuracy": 0.875,
        "metric": "accuracy",
        "main": 0.875,
        "metrics": {"accuracy": 0.875},
        "loss": 0.5,
        "staleness": 1.25,
        "peers": 2,
        "bytes_sent": 123_456,
        "distance": 0.01,
        "alarms": {"resync": 2, "storage": 1},
    }


def test_the_table_has_a_row_for_each_node_and_all_its_alarms(p2pfl, page):
    out = p2pfl("status", page, page).out
    lines = [line.split() for line in out.splitlines() if line.startswith(" node0")]
    assert lines == [["node0", "training", "7", "0.875", "1.2", "1.0e-02", "123.5", "kB", "2"]] * 2
    assert f"node0: at {page}; training loss 0.5; alarms resync 2, storage 1\n" * 2 in out


def test_alarms_that_are_over_are_told_from_those_that_stand(p2pfl):
    with serving(SAID | {"standing_alarms": ["storage"]}) as address:
        out = p2pfl("status", address).out
        (row,) = json.loads(p2pfl("status", address, "--format", "json").out)
    assert "resync 2 (over), storage 1" in out
    assert row["standing_alarms"] == ["storage"]


def test_an_accuracy_of_an_older_model_has_a_star_and_a_footnote(p2pfl):
    with serving(STALE) as address:
        out = p2pfl("status", address).out
        (row,) = csv.DictReader(io.StringIO(p2pfl("status", address, "--format", "csv").out))
    assert " 0.835* " in out
    assert "* of an earlier model: tested after round 5, not since" in out
    assert (row["accuracy"], row["tested_round"], row["test_is_stale"]) == ("0.835", "5", "True")


def test_a_disk_that_refuses_is_told_with_its_reason(p2pfl):
    with serving(SAID | {"phase": "waiting for disk", "disk_refuses": REFUSAL}) as address:
        out = p2pfl("status", address).out
    assert "waiting for disk" in out
    assert f"; disk {REFUSAL}" in out


def test_a_node_that_does_not_answer_is_a_row_and_a_failure(p2pfl, page, nobody):
    outcome = p2pfl("status", nobody, page, "--format", "json")
    silent, there = json.loads(outcome.out)
    assert outcome.code == 1
    assert (silent["url"], silent["node"], silent["phase"]) == (nobody, None, "Connection refused")
    assert there["node"] == "node0"
    assert silent.keys() == there.keys()


def test_one_that_accepts_and_says_nothing_is_given_up(p2pfl, monkeypatch):
    monkeypatch.setattr("p2pfl.features.status.running.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        outcome = p2pfl("status", f"127.0.0.1:{mute.getsockname()[1]}", "--format", "json")
    assert outcome.code == 1
    assert json.loads(outcome.out)[0]["phase"] == "no answer in 0.2 s"


@pytest.mark.parametrize("said", [{}, {"node": "x"}])
def test_another_page_is_not_taken_for_a_node(p2pfl, said):
    with serving(said) as address:
        outcome = p2pfl("status", address, "--format", "json")
    assert outcome.code == 1
    assert json.loads(outcome.out)[0]["phase"] == "not the status of a node"


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-x\r\n", b""])
def test_what_does_not_speak_like_a_node_is_a_row_too(p2pfl, answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=speak)
        thread.start()
        outcome = p2pfl("status", f"127.0.0.1:{server.getsockname()[1]}", "--format", "json")
        thread.join()
    assert outcome.code == 1
    assert json.loads(outcome.out)[0]["node"] is None


def test_a_node_that_knows_little_yet_is_shown(p2pfl):
    """What came from elsewhere may be of another version: a figure that is missing is a dash."""
    with serving({"node": "a", "phase": "waiting", "rounds": 0}) as address:
        outcome = p2pfl("status", address)
    assert outcome.code == 0
    assert "waiting" in outcome.out


@pytest.mark.parametrize(
    "url", ["node0", "http://", "127.0.0.1", "https://127.0.0.1:1", "127.0.0.1:x", "127.0.0.1:70000", "h:1/metrics", ""]
)
def test_what_is_no_address_is_the_users_mistake(p2pfl, url):
    outcome = p2pfl("status", url)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"URL: not the address of a node's status page (found {url!r})" in outcome.err


def test_without_an_address_there_is_nothing_to_do(p2pfl):
    assert p2pfl("status").code == 2


ROBUST = {
    "rule": "trimmed-mean:b=1",
    "liars_borne": 1,
    "rounds_alone": 4,
    "neighbors": [
        {"name": "node1", "compressor": "q4", "kept": 0.62, "faults": {}, "standing": 1.0},
        {
            "name": "node2",
            "compressor": "q4",
            "kept": 0.031,
            "faults": {"payload": 5, "flood": 1},
            "standing": 0.0,
            "quarantined_s": 42.2,
            "probation": False,
        },
    ],
}


def test_a_robust_rule_is_told_with_rounds_alone_faults_quarantine_and_who_is_kept_least(p2pfl):
    with serving(SAID | ROBUST) as address:
        (row,) = csv.DictReader(io.StringIO(p2pfl("status", address, "--format", "csv").out))
        (full,) = json.loads(p2pfl("status", address, "--format", "json").out)
    told = {key: row[key] for key in ("rule", "liars_borne", "rounds_alone", "held_against", "kept")}
    assert told == {
        "rule": "trimmed-mean:b=1",
        "liars_borne": "1",
        "rounds_alone": "4",
        "held_against": "node2 (payload 5 flood 1, quarantined for 42 s)",
        "kept": "node2 0.031",
    }
    assert full["kept"] == {"node1": 0.62, "node2": 0.031}
    assert full["held_against"] == {
        "node2": {
            "standing": 0.0,
            "faults": {"payload": 5, "flood": 1},
            "quarantined_s": 42.2,
            "probation": False,
        }
    }


def test_a_table_has_no_columns_of_robust_rules_where_all_nodes_take_the_mean(p2pfl):
    plain = {"rule": "mean", "liars_borne": 0, "rounds_alone": None}
    with serving(SAID | plain) as mean, serving(SAID | ROBUST) as robust:
        assert "liars_borne" not in p2pfl("status", mean).out
        assert "trimmed-mean:b=1" in p2pfl("status", mean, robust).out


def test_a_private_node_says_what_is_spent_and_has_no_column_of_what_it_withholds(p2pfl, page):
    """Nor is there a word of it where nothing is promised."""
    told = {"unit": "record", "epsilon": 2.3102, "budget": 8.0, "delta": 1e-5, "rounds_left": 9, "state": "open"}
    silent = {"accuracy": None, "test_loss": None, "loss": None, "metrics": {}}
    with serving(SAID | silent | {"privacy": told}) as private, serving(SAID | silent | {"privacy": LOST}) as lost:
        out = p2pfl("status", private, lost).out
    assert "epsilon 2.31 of 8" in out
    assert "budget missing" in out
    assert "withheld" in out
    assert "loss" not in out.split("withheld")[0]
    assert "accuracy" not in out
    assert "withheld" not in p2pfl("status", page).out


LOST = {"unit": "record", "epsilon": None, "budget": 8.0, "delta": 1e-5, "rounds_left": 0, "state": "missing"}


def test_who_sets_the_pace_is_a_column_where_somebody_does(p2pfl, page):
    with serving(SAID | {"pace_set_by": "node2"}) as held_up:
        assert "pace_set_by" not in p2pfl("status", page).out
        (line,) = [line for line in p2pfl("status", held_up).out.splitlines() if held_up in line]
    assert "node2" in line
