"""The feed: notable events as the log has them, and each alarm for as long as it stands."""

from __future__ import annotations

import logging
import time

import pytest

from p2pfl.node import MOST_EVENTS, Feed


@pytest.fixture
def feed(caplog):
    caplog.set_level(logging.INFO, "p2pfl")
    return Feed("pi{}".format)


def test_an_event_is_one_line_of_the_log_and_one_of_the_page(feed, caplog):
    feed.tell("neighbor-away", 1, "connection lost")
    feed.tell("storage", None, "disk full", wrong=True, times=3)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "neighbor-away (pi1): connection lost"),
        ("WARNING", "storage: disk full (time 3)"),
    ]
    assert [(event.number, event.kind, event.about, event.text, event.wrong) for event in feed.events] == [
        (1, "neighbor-away", "pi1", "connection lost", False),
        (2, "storage", None, "disk full (time 3)", True),
    ]


def test_it_is_bounded(feed):
    for number in range(3 * MOST_EVENTS):
        feed.keep("x", None, str(number))
        feed.stand("resync", number % 5, "again")
    assert len(feed.events) == MOST_EVENTS
    assert feed.events[-1].number == 3 * MOST_EVENTS
    assert len(feed.standing()) == 5


def test_an_alarm_stands_until_what_ends_it_has_happened_to_the_same_member(feed):
    feed.stand("neighbor-lost", 1, "for a minute")
    feed.stand("neighbor-lost", 1, "again")
    feed.stand("neighbor-lost", 2, "for a minute")
    (first, _) = feed.standing()
    assert (first.about, first.count, first.text) == ("pi1", 2, "again")
    assert first.does
    assert first.advice
    assert feed.settle("neighbor-back", 1) == ["neighbor-lost"]
    assert feed.settle("probation", 2) == []
    assert [alarm.about for alarm in feed.standing()] == ["pi2"]


def test_what_nothing_ends_expires_and_the_rest_does_not(feed, monkeypatch):
    feed.stand("round-failed", None, "raised")
    feed.stand("neighbor-lost", 1, "gone")
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 590.0)
    feed.expire()
    assert feed.kinds == ["round-failed", "neighbor-lost"]
    monkeypatch.setattr(time, "monotonic", lambda: began + 610.0)
    feed.expire()
    assert feed.kinds == ["neighbor-lost"]


def test_a_kind_that_this_version_does_not_know_stops_nobody(feed):
    feed.stand("from-the-future", 1, "x")
    feed.settle("neighbor-back", 1)
    feed.expire()
    assert feed.standing()[0].kind == "from-the-future"


def test_a_member_that_has_left_has_no_alarms(feed):
    feed.stand("neighbor-lost", 1, "gone")
    feed.forget(1)
    assert feed.standing() == []
