"""A node that dies is started again where that may help, and not for ever."""

from __future__ import annotations

import pytest

from p2pfl.fleet.restarts import LONGEST_PAUSE_S, MOST, SETTLED_S, Restarts

KILLED, CRASHED, MISTAKE, STOPPED = -9, 1, 2, 130


@pytest.mark.parametrize("exit_code", [0, MISTAKE, STOPPED])
def test_who_is_done_or_stopped_or_has_a_mistake_in_its_files_is_left_alone(exit_code):
    assert Restarts().next_pause_s(exit_code, 1.0) is None


@pytest.mark.parametrize("exit_code", [KILLED, CRASHED])
def test_pauses_get_longer_and_then_it_is_given_up(exit_code):
    restarts = Restarts()
    pauses = [restarts.next_pause_s(exit_code, 1.0) for _ in range(MOST + 1)]
    assert pauses[0] == 1.0
    assert pauses[-1] is None
    assert sorted(pauses[:-1]) == pauses[:-1]
    assert max(pauses[:-1]) <= LONGEST_PAUSE_S


def test_who_has_lived_long_begins_to_count_anew():
    restarts = Restarts()
    for _ in range(MOST):
        restarts.next_pause_s(KILLED, 1.0)
    assert restarts.next_pause_s(KILLED, SETTLED_S) == 1.0
