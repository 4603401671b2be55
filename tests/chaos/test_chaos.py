"""What a seed makes happen: to drawn federations in virtual time, and for a minute to real processes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from many_worlds import line, replay
from msgspec.structs import replace
from trouble import KINDS, VERSION, schedule, seed_of

from p2pfl.engine import Engine
from p2pfl.errors import UserError

SMALL = (0, 1, 3, 7, 9, 13, 18, 19, 25, 29, 35, 36, 38, 39, 40, 263)  # of few nodes, which take little time


def test_a_seed_gives_the_same_schedule_everywhere_until_the_version_is_raised():
    events = schedule(7, 400.0, dict.fromkeys(KINDS, range(9)), every_s=1.6)
    told = [(f"{event.at_s:.3f}", event.kind, event.target) for event in events]
    assert {event.kind for event in events} == KINDS.keys()
    assert hashlib.sha256(repr((VERSION, told)).encode()).hexdigest()[:16] == "b8969e959362e456"


@pytest.mark.parametrize("text", ["7@2", "7@", "x"])
def test_a_seed_of_another_version_is_refused_in_one_sentence(text):
    assert seed_of(f"7@{VERSION}") == seed_of("7") == 7
    with pytest.raises(UserError, match="not a seed of schedules of version 1"):
        seed_of(text)


@pytest.mark.parametrize("seed", [*SMALL, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(50, 100))])
def test_no_invariant_is_broken_in_virtual_time_whatever_happens(seed):
    assert line(seed, chaos=True)["violation"] is None, replay(seed, chaos=True)


def test_a_reply_that_leaves_before_it_is_on_the_disk_is_found(monkeypatch):
    right = Engine._apply_request
    monkeypatch.setattr(Engine, "_apply_request", lambda *given: replace(right(*given), urgent=False))
    assert any(line(seed, chaos=True)["violation"] for seed in SMALL)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_minute_of_real_processes_ends_as_promised():
    command = [sys.executable, Path(__file__).with_name("chaos.py"), "--minutes", "1", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
