"""What no single part of a node sees: rounds without anybody, a filling disk, members that come, go and differ."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from vitals_kit import ROW

from p2pfl.core import Algorithm, Phase
from p2pfl.features.status import (
    ALONE_S,
    DISK_EVERY_S,
    ROUNDS_ALONE,
    STARTING_S,
    MemberNews,
    StatusFeature,
    VitalsRow,
    Watchdog,
)
from p2pfl.learn import WINDOW
from p2pfl.limits import WATCHDOG_LINES
from p2pfl.node import Feed, alarm_texts
from p2pfl.reporting import LASTS_S


class Training(Algorithm):
    phase = Phase.TRAINING

    def __init__(self, facts, edge):
        self.facts, self.edges = facts, {1: edge}


class World:
    def __init__(self):
        self.facts = SimpleNamespace(rounds=0, alone=0)
        self.edge = SimpleNamespace(is_open=False)
        self.room, self.now, self.missing = 10_000.0, 0.0, 0
        self.feed = Feed("pi{}".format, texts=alarm_texts([StatusFeature()]))
        self.raised = []
        self.core = Training(self.facts, self.edge)
        self.watch = Watchdog(
            core=self.core,
            feed=self.feed,
            raise_alarm=self.alarm,
            room_bytes=lambda: self.room,
            snapshot_bytes=1000,
            missing=lambda _: self.missing,
        )
        self.losses = self.watch.losses
        self.news = MemberNews(core=self.core, feed=self.feed, raise_alarm=self.alarm, software="0.1.0", began_at=0.0)

    def alarm(self, kind, peer, text):
        self.raised.append((kind, peer))
        self.feed.stand(kind, peer, text)

    def train(self, rounds, *, alone, in_s=0.0):
        for _ in range(rounds):
            self.now += in_s / rounds
            self.facts.rounds += 1
            self.facts.alone += alone
            self.watch.look(self.now)

    def hear(self, member, now=0.0, *, phase="training", life=1, software="0.1.0", before=None):
        vitals = msgspec.structs.replace(
            ROW, member=member, life=life, phase=phase, rounds=7, accuracy=0.9, software=software
        )
        row = VitalsRow(vitals=vitals, raw=b"", said_at=now, source=1)
        self.news.hear(row, before, now)
        return row

    @property
    def kinds(self):
        return [event.kind for event in self.feed.events]


@pytest.fixture
def world():
    return World()


def test_many_rounds_without_a_neighbor_are_an_alarm_once_and_until_one_is_there(world):
    world.train(ROUNDS_ALONE - 1, alone=True, in_s=5 * ALONE_S)
    assert world.raised == []
    world.train(ROUNDS_ALONE, alone=True, in_s=5 * ALONE_S)
    assert world.raised == [("training-alone", None)]
    world.train(1, alone=False)
    assert world.feed.kinds == []


def test_many_quick_rounds_alone_are_no_alarm(world):
    """A neighbor that is restarted is away for seconds."""
    world.train(10 * ROUNDS_ALONE, alone=True, in_s=ALONE_S - 1)
    assert world.raised == []


def test_rounds_alone_that_are_not_in_a_row_are_none(world):
    for _ in range(ROUNDS_ALONE):
        world.train(2, alone=True, in_s=2 * ALONE_S)
        world.train(1, alone=False)
    assert world.raised == []


def test_an_alarm_of_the_board_is_raised_once_and_stands_as_long_as_it_holds(world, monkeypatch):
    world.watch.board = lambda: {"board-hot": f"at {world.now:.0f} s"}
    monkeypatch.setattr("time.monotonic", lambda: world.now)
    for world.now in range(0, 3 * int(LASTS_S), int(DISK_EVERY_S)):
        world.watch.look(world.now)
    assert world.raised == [("board-hot", None)]
    assert [alarm.text for alarm in world.feed.standing()] == [f"at {world.now:.0f} s"]
    world.watch.board = dict
    world.now += LASTS_S + 1
    world.watch.look(world.now)
    assert world.feed.kinds == []


def test_waiting_alone_ends_when_it_trains_with_somebody(world):
    world.feed.stand("waiting-alone", None, "nobody")
    world.core.phase = Phase.WAITING
    world.watch.look(0.0)
    assert world.feed.kinds == ["waiting-alone"]
    world.core.phase, world.edge.is_open = Phase.TRAINING, True
    world.watch.look(0.0)
    assert world.feed.kinds == []


def test_a_disk_below_one_snapshot_is_an_alarm_until_there_is_room(world):
    world.watch.look(0.0)
    world.room = 999.0
    world.watch.look(DISK_EVERY_S - 1)
    assert world.raised == [], "it is looked at seldom"
    for times in (1, 2, 3):
        world.watch.look(DISK_EVERY_S * times)
    assert world.raised == [("disk-low", None)]
    world.room = 2000.0
    world.watch.look(DISK_EVERY_S * 4)
    assert world.feed.kinds == []
    assert world.kinds == ["disk-roomy"]


def test_other_software_is_an_alarm_until_it_is_the_same(world):
    world.hear(5, software="0.2.0")
    world.hear(5, software="0.2.0")
    assert world.raised == [("software-differs", 5)]
    world.hear(5)
    assert world.feed.kinds == []


def test_who_finishes_leaves_or_begins_anew_is_one_event(world):
    first = world.hear(5, 1.0)
    last = world.hear(5, 2.0, phase="finished", before=first)
    world.hear(5, 3.0, phase="finished", before=last)
    world.hear(6, 4.0, phase="stopped", before=world.hear(6, 3.0))
    world.hear(7, 5.0, life=2, before=world.hear(7, 4.0))
    assert world.kinds == ["finished", "left", "new-life"]


def test_who_is_heard_of_late_has_joined(world):
    world.hear(5, STARTING_S - 1)
    world.hear(6, STARTING_S + 1)
    world.hear(1, STARTING_S + 1)
    assert world.kinds == ["joined"], "a neighbor has lines of its own"
    assert world.feed.events[0].about == "pi6"


def test_who_is_quiet_and_comes_back_is_told_once_each(world):
    row = world.hear(5)
    for now in (100.0, 101.0):
        world.news.miss(5, 90.0, now)
    world.hear(5, 200.0, before=row)
    assert world.kinds == ["not-heard", "back"]


def test_hundreds_that_finish_together_are_a_few_lines_and_a_count(world):
    for member in range(2, 200):
        world.hear(member, 10.0, phase="finished", before=world.hear(member, 9.0))
    assert len(world.feed.events) == WATCHDOG_LINES
    world.hear(300, 10_000.0, phase="finished", before=world.hear(300, 9999.0))
    assert "and 186 earlier events of other members" in "".join(event.text for event in world.feed.events)


def test_own_rows_are_no_news(world):
    row = world.hear(5)
    world.news.hear(VitalsRow(vitals=row.vitals, raw=b"", said_at=0.0, source=None), None, 1000.0)
    assert world.kinds == []


def learn(world, own, tested):
    """A window of rounds with these losses."""
    for _ in range(WINDOW):
        world.losses.trained(own)
        world.losses.tested(tested)
    world.watch.look(0.0)


def test_a_loss_that_grows_with_that_of_the_own_rounds_is_an_alarm_until_it_is_back(world):
    world.edge.is_open = True
    learn(world, 1.0, 1.0)
    learn(world, 0.4, 0.4)
    assert world.raised == []
    learn(world, 0.6, 0.6)
    learn(world, 0.5, 0.7)
    assert world.raised == [("loss-grows", None)]
    assert "is 0.7, after 0.4" in world.feed.standing()[0].text, "it says what is so now"
    learn(world, 0.4, 0.4)
    assert world.feed.kinds == []


def test_a_loss_that_grows_while_the_own_rows_are_fitted_better_is_one_event(world):
    world.edge.is_open = True
    learn(world, 1.0, 1.0)
    learn(world, 0.2, 0.2)
    learn(world, 0.1, 0.4)
    learn(world, 0.1, 0.5)
    assert world.raised == []
    assert world.kinds == ["overfits"]


def test_where_neighbors_are_away_the_model_forgets_their_data(world):
    learn(world, 1.0, 1.0)
    learn(world, 0.2, 0.2)
    learn(world, 0.1, 0.4)
    world.edge.is_open = True
    learn(world, 0.4, 0.5)
    assert world.raised == [], "what it has forgotten meanwhile it cannot know yet"
    assert world.kinds == ["forgets"]
    assert world.feed.events[0].text.endswith(": a member is away, and their data are missing")


def test_a_loss_above_that_of_an_untrained_model_is_an_alarm_whoever_is_away(world):
    learn(world, 1.0, 1.0)
    learn(world, 0.2, 0.2)
    learn(world, 0.1, 1.4)
    assert world.raised == [("loss-grows", None)]


def test_members_that_nobody_hears_explain_it_too(world):
    world.edge.is_open = True
    world.missing = 2
    learn(world, 1.0, 1.0)
    learn(world, 0.2, 0.2)
    learn(world, 0.4, 0.4)
    assert world.raised == []
    assert world.feed.events[0].text.endswith(": 2 members are away, and their data are missing")


def test_noise_for_privacy_is_an_alarm_of_its_own(world):
    world.losses.private = True
    for tested in (1.0, 0.2, 0.4):
        for _ in range(WINDOW):
            world.losses.tested(tested)
        world.watch.look(0.0)
    assert world.raised == [("noise-prevails", None)]
