"""What the driver passes on between core and network edge when a neighbor breaks the rules, and what ends it."""

from __future__ import annotations

import asyncio
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from p2pfl.core import Algorithm, ChangeEdges, CloseSession, Phase, RoundTrained, SessionClosed
from p2pfl.errors import LearningError
from p2pfl.learn import RoundStart
from p2pfl.net import MALFORMED
from p2pfl.node import Driver, EvaluationPace, LocalRounds, Moment


class Recording(Algorithm):
    """Core and links at once: what each is told, and what the core answers next."""

    phase = Phase.TRAINING

    def __init__(self):
        self.heard, self.closed, self.effects, self.edges = [], [], [], {}

    def handle(self, event, _now):
        self.heard.append(event)
        return self.effects

    def deadline(self):
        return None

    def close(self, *told):
        self.closed.append(told)


def driver_of(recording):
    driver = Driver(
        recording, SimpleNamespace(), LocalRounds(SimpleNamespace(), SimpleNamespace(), on_measure=int), name_of=str
    )
    driver.links = recording
    return driver


@pytest.mark.parametrize(
    ("reason", "malformed"),
    [
        (f"{MALFORMED}a frame of unknown type 77", "a frame of unknown type 77"),
        ("protocol fault: a message arrives too slowly", ""),
        ("connection lost: reset", ""),
        ("closed by the peer", ""),
    ],
)
async def test_only_what_the_neighbor_has_sealed_is_held_against_it(reason, malformed):
    recording = Recording()
    driver_of(recording).session_closed(3, 8, reason)
    assert recording.heard == [SessionClosed(peer=3, session=8, malformed=malformed)]


async def test_the_network_edge_learns_how_long_a_neighbor_rests():
    recording = Recording()
    recording.effects = [CloseSession(peer=3, session=8, reason="in quarantine", rest_s=60.0)]
    driver_of(recording).session_opened(3, 8)
    assert recording.closed == [(3, 8, "in quarantine", 60.0)]


async def test_an_alarm_provoked_for_ever_is_counted_and_hardly_logged_or_remembered(caplog):
    """A hundred thousand of each of two neighbors; the first of a third one is still told."""
    driver, times = driver_of(Recording()), 100_000
    for _ in range(times):
        driver.alarm("request-refused", 1, "not finite")
        driver.alarm("request-refused", 2, "not finite")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) < 50
    assert lines[-1].startswith("request-refused (2): not finite (time ")
    driver.alarm("request-refused", 3, "not finite")
    assert caplog.records[-1].getMessage() == "request-refused (3): not finite"
    assert driver.alarms == {"request-refused": 2 * times + 1}
    assert len(driver._alarm_counts) == 3
    driver.core.effects, driver.core.edges = [ChangeEdges(added=(), dropped=(1, 2))], {}
    driver.engine_thread = SimpleNamespace(jobs=SimpleQueue())
    driver.take(SessionClosed(peer=1, session=8))
    assert driver._alarm_counts == {}, "no former neighbor is remembered"


async def test_an_alarm_that_goes_on_is_told_again_after_many_times(caplog):
    driver = driver_of(Recording())
    for _ in range(1000):
        driver.alarm("round-failed", None, "no room")
    assert [record.getMessage() for record in caplog.records] == [
        f"round-failed: no room{told}"
        for told in ("", *(f" (time {times})" for times in (2, 3, 4, 5, 100, 200, 400, 800)))
    ]


async def test_a_silent_session_is_no_second_alarm_about_a_neighbor_that_is_lost():
    driver = driver_of(Recording())
    driver.alarm("neighbor-lost", 1, "nothing has come from it for 12 s, though its session is open")
    for peer in (1, 2):
        driver.alarm("silent-session", peer, "no sealed chunk has come for 40 s")
    assert [(alarm.kind, alarm.about) for alarm in driver.feed.standing()] == [
        ("neighbor-lost", "1"),
        ("silent-session", "2"),
    ]


async def test_a_learner_that_would_end_the_process_ends_the_node_as_a_failure():
    """Raised again as it is, exit(0) would look as if the node had finished."""
    driver = driver_of(Recording())
    driver.fail(SystemExit(0))
    await driver.finished.wait()
    assert isinstance(driver.failure, LearningError)
    assert "SystemExit: 0" in str(driver.failure)


async def test_a_round_that_fails_is_named_as_people_count_and_came_to_nothing(caplog):
    """The core hears of no step, no sample and no wait."""

    def fail(*_):
        raise LearningError("no more memory")

    outcomes, heard = SimpleQueue(), []
    thread = SimpleNamespace(engine=SimpleNamespace(outcomes=outcomes))
    runner = SimpleNamespace(pace=EvaluationPace(0), train=fail, strict=False)
    local = LocalRounds(thread, runner, on_measure=int)
    local.gate = lambda _: None
    local.node = SimpleNamespace(take=heard.append)
    local._train(RoundStart(np.zeros(3, np.float32)), 6, Moment(6, 6), 0.0)
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == ["round 7 raised: no more memory"]
    assert outcomes.get_nowait() is None
    assert heard == [RoundTrained(steps=0, samples=0, waited_s=0.0)]
    local.close()
