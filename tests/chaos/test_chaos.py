"""What a seed makes happen: to drawn federations in virtual time, and for a minute to real processes."""

from __future__ import annotations

import hashlib
import sys

import pytest
from chaos import chaos
from many_worlds import innocent, replay
from trouble import KINDS, VERSION, disturbed, schedule, seed_of

from p2pfl.engine import NodeState
from p2pfl.errors import UserError

SEEDS = range(24)


def test_a_seed_gives_the_same_schedule_everywhere_until_its_version_is_raised():
    events = schedule(7, 400.0, dict.fromkeys(KINDS, range(9)), every_s=1.6)
    told = [(round(event.at_s, 6), event.kind, event.target) for event in events]
    assert {event.kind for event in events} == KINDS.keys()
    assert hashlib.sha256(repr((VERSION, told)).encode()).hexdigest()[:16] == "pinned"


@pytest.mark.parametrize(("text", "said"), [("7@2", "schedules of version 1 (found '7@2')"), ("x", "not a seed")])
def test_a_seed_of_another_version_is_refused_in_one_sentence(text, said):
    with pytest.raises(UserError) as caught:
        seed_of(text)
    assert said in str(caught.value)
    assert seed_of(f"7@{VERSION}") == seed_of("7") == 7


@pytest.mark.parametrize("seed", SEEDS)
def test_no_invariant_is_broken_in_virtual_time_whatever_happens(seed):
    try:
        report = innocent(disturbed(seed))
    except Exception as error:
        error.add_note(f"see it again: {replay(seed, chaos=True)}")
        raise
    assert all(node.finished for node in report.nodes)


def test_a_node_that_goes_on_after_damage_as_if_there_were_none_is_found(monkeypatch):
    monkeypatch.setattr(NodeState, "begin_lifetime", lambda state, name: None)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            disturbed(seed)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_minute_of_real_processes_leaves_nothing_wrong(tmp_path):
    told, wrong = chaos(1.0, 7, tmp_path)
    assert wrong == [], told
