"""A neighbor that is lost or comes back is one line, and an alarm when it stays away."""

from __future__ import annotations

import logging

import pytest
from core_kit import make_node

from p2pfl.core import ALWAYS, EdgeRecord
from p2pfl.limits import FIRST_NEIGHBOR_LINES
from p2pfl.node import ALARM_S, FIRST_ALARM_S, LOST_S, SILENT_S, Presence


class Told:
    """A presence at time 0 with one neighbor, what it alarms, and the lines it has written."""

    def __init__(self, caplog):
        self.core = make_node(0, 1)
        self.alarms = []
        self.presence = Presence(self.core, name_of="board{}".format, on_alarm=self.alarms.append, now=0.0)
        self.caplog = caplog

    @property
    def lines(self):
        return [record.getMessage() for record in self.caplog.records if record.name == "p2pfl.notice"]


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO, "p2pfl.notice")
    return Told(caplog)


def test_one_line_when_it_is_lost_and_one_when_it_is_back(told):
    told.presence.opened(1, 1.0)
    told.presence.ended(1, "connection lost: reset", 10.0)
    for now in (11.0, 10.0 + LOST_S, 20.0, 24.0):
        told.presence.look(now)
    told.presence.opened(1, 31.0)
    assert told.lines == [
        "neighbor-away (board1): connection lost: reset",
        "neighbor-back (board1): back after 21 s",
    ]
    assert told.alarms == []


def test_who_was_silent_before_its_session_ended_was_away_since_then(told):
    """A cable was pulled: the session ends 40 s later."""
    told.presence.opened(1, 1.0)
    told.presence.silent_s = lambda _: 40.0
    told.presence.ended(1, "no sealed chunk has come for 40 s", 50.0)
    told.presence.look(50.0)
    told.presence.opened(1, 64.0)
    assert told.lines == [
        "neighbor-away (board1): no sealed chunk has come for 40 s",
        "neighbor-back (board1): back after 54 s",
    ]


def test_a_session_that_is_renewed_is_no_line(told):
    told.presence.opened(1, 1.0)
    told.presence.ended(1, "renewed after 3600 s", 10.0)
    told.presence.look(10.0 + LOST_S / 2)
    told.presence.opened(1, 12.0)
    told.presence.look(100.0)
    assert told.lines == []


def test_one_alarm_for_each_time_it_stays_away(told):
    for began in (0.0, 1000.0):
        told.presence.opened(1, began)
        told.presence.ended(1, "closed by the peer", began + 10.0)
        told.presence.look(began + 9.9 + ALARM_S)
        assert len(told.alarms) == bool(began)
        for later in (10.0, 20.0, 300.0):
            told.presence.look(began + ALARM_S + later)
    assert [(alarm.kind, alarm.peer) for alarm in told.alarms] == [("neighbor-lost", 1)] * 2
    assert told.alarms[0].text == "no session for 15 s, since closed by the peer"


def test_a_pulled_cable_is_one_alarm_while_its_session_is_still_open_and_none_when_that_ends(told):
    told.presence.opened(1, 1.0)
    for now in range(10, 200):
        told.presence.silent_s = lambda _, now=now: now - 10.0
        if now == 10 + 40:
            told.presence.ended(1, "no sealed chunk has come for 40 s", now)
        told.presence.look(float(now))
        assert len(told.alarms) == (now >= 10 + SILENT_S)
    assert told.alarms[0].text == "nothing has come from it for 12 s, though its session is open"
    told.presence.opened(1, 200.0)
    assert told.lines == [
        "neighbor-away (board1): no sealed chunk has come for 40 s",
        "neighbor-back (board1): back after 190 s",
    ]


def test_a_cable_that_is_plugged_in_again_before_the_session_ends_settles_the_alarm(told):
    told.presence.opened(1, 1.0)
    told.presence.silent_s = lambda _: 20.0
    told.presence.look(30.0)
    told.presence.silent_s = lambda _: 0.0
    told.presence.look(31.0)
    told.presence.look(32.0)
    assert [alarm.kind for alarm in told.alarms] == ["neighbor-lost"]
    assert told.lines == ["neighbor-back (board1): back after 21 s"]


def test_who_is_silent_by_leave_is_not_lost(told):
    told.presence.opened(1, 1.0)
    told.presence.silent_s, told.presence.is_excused = lambda _: 20.0, lambda _: True
    told.presence.look(30.0)
    assert (told.alarms, told.lines) == ([], [])


def test_bytes_without_anything_sealed_are_an_alarm_of_their_own_and_no_second_one(told):
    told.presence.opened(1, 1.0)
    told.presence.feed.stand("silent-session", 1, "no sealed chunk has come for 40 s")
    told.presence.ended(1, "no sealed chunk has come for 40 s", 50.0)
    told.presence.look(50.0 + ALARM_S)
    assert told.alarms == []


def test_one_that_is_listed_and_never_comes_is_an_alarm_and_a_line_when_it_does(told):
    told.presence.look(FIRST_ALARM_S - 1.0)
    assert (told.alarms, told.lines) == ([], [])
    told.presence.look(FIRST_ALARM_S)
    assert [alarm.kind for alarm in told.alarms] == ["neighbor-lost"]
    told.presence.opened(1, 90.0)
    assert told.lines == ["neighbor-back (board1): there after 90 s"]


def test_one_that_has_finished_or_whom_the_own_disk_keeps_away_is_not_lost(told):
    told.presence.opened(1, 0.0)
    told.presence.ended(1, "closed by the peer", 1.0)
    told.core.edges[1].progress.done = True
    told.presence.look(500.0)
    told.core.edges[1].progress.done, told.core.facts.halted = False, True
    told.presence.look(500.0)
    assert (told.alarms, told.lines) == ([], [])


def test_one_that_comes_and_goes_for_ever_does_not_fill_the_disk(told):
    for now in range(0, 10_000, 10):
        told.presence.opened(1, now)
        told.presence.ended(1, "connection lost", now + 1.0)
        told.presence.look(now + 5.0)
    assert FIRST_NEIGHBOR_LINES <= len(told.lines) <= 40


def test_a_line_about_a_sessions_end_is_short(told, caplog):
    caplog.set_level(logging.INFO, "p2pfl")
    told.presence.ended(1, "protocol fault: " + "x" * 1000, 1.0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("session with board1 ended: protocol fault: x")
    assert len(line) < 300


def test_who_is_no_neighbor_any_more_is_not_missed_and_a_new_one_may_be(told):
    told.presence.opened(1, 1.0)
    told.core.neighbors.add(2, EdgeRecord(), ALWAYS)
    told.core.neighbors.remove(1)
    told.presence.follow(10.0)
    told.presence.ended(1, "no longer a neighbor", 10.0)
    told.presence.look(10.0 + FIRST_ALARM_S)
    assert [(alarm.kind, alarm.peer) for alarm in told.alarms] == [("neighbor-lost", 2)]
    assert told.lines == []
    told.presence.follow(20.0)
    remembered = (told.presence.seen, told.presence.away, told.presence._lines)
    assert [sorted(known) for known in remembered] == [[], [2], []]
