"""How long a request waits for its answer before it is sent again: RFC 6298, per edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.core.limits import LAST_RESEND_S, RESEND_MARGIN_S, ResendTimer

times = st.floats(min_value=0.0, max_value=20.0)


def test_the_estimate_is_that_of_rfc_6298():
    timer = ResendTimer()
    timer.note(0.4)
    assert timer.wait_s == pytest.approx(0.4 + 4 * 0.2)
    timer.note(0.8)
    deviation_s = 0.75 * 0.2 + 0.25 * 0.4
    assert timer.wait_s == pytest.approx(0.875 * 0.4 + 0.125 * 0.8 + 4 * deviation_s)


@given(st.lists(times, min_size=1, max_size=50), times)
def test_a_steady_edge_is_never_asked_twice_whatever_came_before(before, steady_s):
    timer = ResendTimer()
    for took_s in before:
        timer.note(took_s)
    for _ in range(200):
        timer.note(steady_s)
    assert steady_s + RESEND_MARGIN_S <= timer.wait_s + 1e-9
    assert timer.wait_s <= LAST_RESEND_S


def test_answers_that_become_slow_are_asked_for_twice_once_and_then_waited_for():
    timer = ResendTimer()
    for _ in range(50):
        timer.note(0.01)
    asked_twice = 0
    for _ in range(20):
        if timer.wait_s < 0.5:
            asked_twice += 1
            while timer.wait_s < 0.5:
                timer.back_off()  # and the answer measures nothing
        else:
            timer.note(0.5)
    assert asked_twice == 1
