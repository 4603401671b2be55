"""The systemd unit, judged by systemd itself without being started."""

from __future__ import annotations

import re

import pytest

from p2pfl.node import PAT_S

UNIT = "p2pfl@.service"
COMMAND = "/opt/p2pfl/venv/bin/p2pfl"
HIGHEST_EXPOSURE = 3.0


@pytest.fixture
def unit(deploy):
    return (deploy / UNIT).read_text(encoding="utf-8")


def test_the_relay_is_a_service_that_may_do_little(deploy, complaints, run, tool):
    text = (deploy / "p2pfl-relay.service").read_text(encoding="utf-8")
    assert not complaints(text)
    threshold = f"--threshold={round(10 * HIGHEST_EXPOSURE)}"
    analyze = tool("systemd-analyze")
    outcome = run(analyze, "security", "--offline=true", "--no-pager", threshold, deploy / "p2pfl-relay.service")
    assert outcome.code == 0, outcome.out[-200:]


@pytest.fixture
def complaints(run, tool, tmp_path):
    """What `systemd-analyze verify` says of a unit whose command is there. Its exit code overlooks misspelt keys."""
    analyze = tool("systemd-analyze")
    command = tmp_path / "p2pfl"
    command.write_text("#!/bin/sh\n", encoding="ascii")
    command.chmod(0o755)

    def complaints(text):
        (tmp_path / UNIT).write_text(text.replace(COMMAND, str(command)), encoding="utf-8")
        outcome = run(analyze, "verify", "--man=no", tmp_path / UNIT)
        return outcome.err or ("" if outcome.code == 0 else f"exit {outcome.code}")

    return complaints


def test_systemd_has_nothing_to_say(unit, complaints):
    assert not complaints(unit)


def test_systemd_would_say_what_is_misspelt(unit, complaints):
    assert "NoNewPrivilege" in complaints(unit.replace("NoNewPrivileges=", "NoNewPrivilege="))


@pytest.mark.parametrize("name", [UNIT, "p2pfl-relay.service"])
def test_no_core_with_keys_is_dumped(deploy, name):
    assert "LimitCORE=0" in (deploy / name).read_text(encoding="utf-8").splitlines()


def test_exposure_is_low_and_the_page_states_it(deploy, run, tool):
    threshold = f"--threshold={round(10 * HIGHEST_EXPOSURE)}"
    outcome = run(tool("systemd-analyze"), "security", "--offline=true", "--no-pager", threshold, deploy / UNIT)
    assert outcome.code == 0, outcome.out[-200:]
    found = float(re.search(r"exposure level for \S+: ([\d.]+)", outcome.out)[1])
    assert found < HIGHEST_EXPOSURE
    page = (deploy.parent / "docs/tutorials/raspberry-pi.md").read_text(encoding="utf-8")
    # systems weigh the settings a little differently from one release to the next
    assert float(re.search(r"exposure at ([\d.]+) of 10", page)[1]) == pytest.approx(found, abs=0.3)


def test_a_node_that_looks_for_others_may_ask_the_system_for_its_addresses(unit):
    (families,) = [line for line in unit.splitlines() if line.startswith("RestrictAddressFamilies=")]
    assert "AF_NETLINK" in families


def test_nothing_waits_for_the_time_to_be_set(unit):
    settings = [line for line in unit.splitlines() if not line.startswith("#")]
    assert not [line for line in settings if "time-sync" in line or "time-set" in line]


def test_a_users_mistake_is_not_tried_again_and_a_clean_stop_is_no_failure(unit):
    assert "RestartPreventExitStatus=2 3\n" in unit
    assert "SuccessExitStatus=130\n" in unit


def test_the_unit_is_watched_and_its_watchdog_outlasts_what_a_node_may_do(unit):
    """A pat needs an answer of the engine, which a flush to a slow card holds up for a minute or two."""
    assert {"Type=notify", "NotifyAccess=main", "WatchdogSec=10min", "Restart=on-failure"} <= {*unit.splitlines()}
    assert re.search(r"^RestrictAddressFamilies=.*AF_UNIX", unit, re.MULTILINE), "the datagrams to systemd"
    assert 10 * PAT_S < 600


def test_the_unit_leaves_sysfs_and_its_own_process_readable(unit):
    """For alarms about the board and the bytes written: read-only is enough."""
    hiding = "ProcSubset|InaccessiblePaths|TemporaryFileSystem|RootDirectory|RootImage"
    assert not re.search(f"^({hiding})", unit, re.MULTILINE)
