"""Nodes on a LAN find each other without an address in any file; where they cannot, the doctor says why."""

from __future__ import annotations

import pytest
from boards import Boards


def seen(diagnosis, name):
    """What the doctor found out about a member."""
    (row,) = [row for row in diagnosis["members"] if row["member"] == name]
    return row


def texts(diagnosis):
    return "\n".join(problem["text"] for problem in diagnosis["problems"])


@pytest.mark.slow
@pytest.mark.long
def test_five_hosts_find_each_other_without_an_address_and_the_doctor_says_that_all_is_well(lan, tmp_path):
    five = Boards(lan, tmp_path / "ward", 5)
    five.hosts["pi1"].add_bridge("docker0", "172.17.0.1")
    five.start_all()
    five.until_all_live()
    code, diagnosis = five.doctor("pi1")
    assert (code, diagnosis["problems"]) == (0, [])
    (eth0,) = diagnosis["interfaces"]
    assert eth0["heard_others"]
    assert set(eth0["members"]) == {"pi2", "pi5"}
    assert {"interface": "docker0", "why": "a bridge"} in diagnosis["skipped"]
    assert seen(diagnosis, "pi2")["answers_at"].startswith(f"{five.hosts['pi2'].ipv4}:")


@pytest.mark.long
def test_without_multicast_configured_addresses_work_and_the_doctor_names_what_is_blocked(lan, tmp_path):
    three = Boards(lan, tmp_path / "ward", 3, addresses=True)
    lan.multicast(on=False)
    three.start_all()
    three.until_all_live()
    three.processes["pi3"].kill()
    code, diagnosis = three.doctor("pi1")
    assert code == 1
    assert "eth0: multicast is blocked on the way" in texts(diagnosis)
    assert "pi2 can be reached by address" in texts(diagnosis)
    assert "pi3 is not reached" in texts(diagnosis)
    assert seen(diagnosis, "pi2")["answers_at"] == f"{three.hosts['pi2'].ipv4}:8470"
    (eth0,) = diagnosis["interfaces"]
    assert eth0["sent"]
    assert eth0["heard_itself"]
    assert eth0["heard_others"] == 0


@pytest.mark.long
def test_a_pulled_cable_is_one_alarm_raised_while_the_session_still_seems_open(lan, tmp_path):
    three = Boards(lan, tmp_path / "ward", 3)
    three.start_all()
    three.until_all_live()

    def alarms():
        return three.status("pi1").get("alarms", {})

    three.hosts["pi2"].pull()
    three.wait_for(alarms, "the alarm about pi2")
    assert "pi2" in three.live("pi1")
    three.wait_for(lambda: "pi2" not in three.live("pi1"), "the end of the session with pi2")
    three.wait_for(lambda: "session with pi2 ended" in three.log("pi1"), "the line about it")
    assert alarms() == {"neighbor-lost": 1}
    three.hosts["pi2"].plug()
    three.wait_for(lambda: not three.status("pi1").get("standing_alarms", [1]), "the end of the alarm")
    assert alarms() == {"neighbor-lost": 1}
