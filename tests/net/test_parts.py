"""The parts of the network edge that need no network."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import PeerFault
from p2pfl.net import (
    Backoff,
    ByteBudget,
    Limits,
    MessagePace,
    Notice,
    Word,
    unpack_notice,
)


@given(st.sampled_from(Word), st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))
def test_a_notice_survives_the_wire(word, boot, number):
    assert unpack_notice(Notice(word, boot, number).pack()) == Notice(word, boot, number)


def test_a_budget_is_shared_and_given_back():
    budget = ByteBudget(100)
    first = budget.change(0, 60)
    with pytest.raises(PeerFault, match="50 bytes of unfinished messages"):
        budget.change(0, 50)
    assert budget.change(0, 40) == 40
    assert budget.change(first, 0) == 0
    assert budget.used == 40


def test_a_message_that_keeps_the_rate_is_never_late():
    pace = MessagePace(min_rate=10, window_s=2)
    for now in range(0, 100, 2):
        pace.note(now, 20, under_way=True)
        assert pace.deadline == now + 2
    pace.note(100, 20, under_way=False)
    assert pace.deadline is None


def test_crumbs_do_not_move_the_deadline():
    pace = MessagePace(min_rate=10, window_s=2)
    pace.note(0, 1000, under_way=True)
    for tenth in range(1, 19):
        pace.note(tenth / 10, 1, under_way=True)
    assert pace.deadline == 2


def test_retries_double_up_to_the_ceiling_and_never_all_at_once():
    limits = Limits(retry_first_s=0.2, retry_ceiling_s=15.0)
    backoff = Backoff(limits, Random(1))
    delays = [backoff.next_s() for _ in range(12)]
    for attempt, delay in enumerate(delays):
        full = min(0.2 * 2**attempt, 15.0)
        assert full / 2 <= delay <= full
    backoff.reset()
    assert backoff.next_s() <= 0.2
    backoff.exhaust()
    assert backoff.next_s() >= 7.5
