"""Which neighbors are heard, by looks and bytes: slow lines and renewed sessions leave no false mark."""

from __future__ import annotations

from p2pfl.features.status import GONE_LOOKS, UNHEARD_LOOKS, Hearing


class Line:
    """One neighbor, number 1, of whom `bytes` have come over session `number`."""

    def __init__(self):
        self.number, self.bytes = 1, 0
        self.hearing = Hearing(lambda _: None if self.number is None else (self.number, self.bytes))

    def look(self, times, *, each=0):
        for _ in range(times):
            self.bytes += each
            self.hearing.look([1])
        return bool(self.hearing.live), bool(self.hearing.unheard)


def test_before_its_first_session_a_neighbor_is_not_live():
    line = Line()
    line.number = None
    assert line.look(1) == (False, False)


def test_without_a_byte_a_session_is_unheard_after_twelve_looks_and_heard_again_with_the_first():
    line = Line()
    assert line.look(UNHEARD_LOOKS) == (True, False)
    assert line.look(1) == (True, True)
    assert line.hearing.silent_s(1) == UNHEARD_LOOKS
    assert line.look(1, each=1) == (True, False)


def test_a_new_session_is_not_silent_because_the_one_before_was():
    line = Line()
    line.look(UNHEARD_LOOKS + 1)
    line.number = None
    assert line.hearing.silent_s(1) == UNHEARD_LOOKS
    line.number = 2
    assert line.hearing.silent_s(1) == 0.0


def test_a_slow_line_on_which_a_chunk_takes_a_minute_is_heard_all_the_time():
    """50 kbit/s: some bytes in each look, no sealed chunk among them."""
    line = Line()
    assert line.look(60, each=6250) == (True, False)


def test_a_session_that_is_renewed_stays_live_and_one_that_has_ended_does_not():
    line = Line()
    line.look(3, each=1)
    line.number = None
    assert line.look(GONE_LOOKS - 1) == (True, False)
    line.number = 2
    assert line.look(1) == (True, False)
    line.number = None
    assert line.look(GONE_LOOKS) == (False, False)


def test_who_is_no_neighbor_any_more_is_forgotten():
    line = Line()
    line.look(3)
    line.hearing.look([])
    assert not line.hearing.live
