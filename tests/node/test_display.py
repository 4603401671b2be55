"""A node shows its whole federation and its past, for as many members as there are."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from page_site import Made, identity_of

from p2pfl.config import Member
from p2pfl.config.sections import HideConfig
from p2pfl.features.status import CALM_S, MOST_LINES, MOST_POINTS, Curves, VitalsTold
from p2pfl.learn import LOSS, Measure
from p2pfl.reporting import FederationStatus, Vitals, realm_of, sign


@pytest.fixture
def clock(monkeypatch):
    """A monotonic clock that a test moves."""

    class Clock:
        now = 1000.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def made(clock):
    return Made(5)


def run(made, clock, seconds):
    for _ in range(seconds):
        clock.now += 1.0
        made.pass_time(1.0)


def whole(made):
    return msgspec.json.decode(made.display.overview.whole(), type=FederationStatus)


def test_every_member_has_a_row_with_its_age_and_who_told_it(made, clock):
    assert [row.phase for row in whole(made).members] == [None] * 5
    run(made, clock, 5)
    found = whole(made)
    assert [row.phase for row in found.members] == ["training"] * 5
    assert [row.source for row in found.members] == [None, None, "pi2", "pi2", "pi2"]
    assert all(0 <= found.now - row.at <= 3 for row in found.members)
    assert found.members[2].live == [1, 3]
    assert (found.node, found.federation, found.rounds_to_do) == ("pi1", "ward-7", 400)
    roster = made.display.roster
    roster.forget(3)
    assert not any(3 in known for known in (roster.rows, roster.bytes_per_s, roster._reached_at))


def test_a_score_of_an_earlier_model_names_its_round(made, clock, monkeypatch):
    run(made, clock, 5)
    assert whole(made).members[1].tested_round is None
    line, own = made.line, made.federation.member("pi1").index
    aged = lambda index: SimpleNamespace(**{**vars(line(index)), "tested_round": 3, "test_is_stale": True})  # noqa: E731
    monkeypatch.setattr(made, "line", aged)
    run(made, clock, 5)
    assert whole(made).members[own].tested_round == 3


def test_the_own_row_is_made_anew_at_most_every_two_seconds_and_at_the_end(made, clock):
    run(made, clock, 5)
    said_at = made.display.roster.rows[made.display.roster.own].said_at
    for clock.now in (said_at + 0.5, said_at + 1.5):
        made.display.tick()
        assert made.display.roster.rows[made.display.roster.own].said_at == said_at
    made.display.see_end()
    assert made.display.roster.rows[made.display.roster.own].said_at == said_at + 1.5
    clock.now = said_at + 3.5
    made.display.tick()
    assert made.display.roster.rows[made.display.roster.own].said_at == said_at + 3.5


def test_who_is_not_heard_of_becomes_quiet_by_itself(made, clock):
    run(made, clock, 5)
    made.silent.add(3)
    run(made, clock, 40)
    assert [row.quiet for row in whole(made).members] == [False, False, False, True, False]
    assert [event.kind for event in made.feed.events] == ["not-heard"]
    made.silent.clear()
    run(made, clock, 5)
    assert not any(row.quiet for row in whole(made).members)
    assert made.feed.events[-1].kind == "back"


def test_who_claims_a_huge_period_is_quiet_in_three_minutes_though_its_neighbors_say_they_hear_it(made, clock):
    run(made, clock, 5)
    roster, made.due[3] = made.display.roster, 1e9
    claim = msgspec.structs.replace(roster.rows[3].vitals, period_s=2**53 - 1)
    roster.note(replace(roster.rows[3], vitals=claim, said_at=clock.now))
    run(made, clock, 3 * CALM_S + 15)
    assert not any(row.quiet for row in whole(made).members)
    run(made, clock, 2)
    assert [row.quiet for row in whole(made).members] == [False, False, False, True, False]


def test_a_member_whom_no_neighbor_hears_is_lost_as_soon_as_they_say_so(made, clock):
    run(made, clock, 5)
    made.silent.add(3)
    run(made, clock, 3)
    assert [row.lost for row in whole(made).members] == [False, False, False, True, False]
    assert not whole(made).members[3].quiet
    made.silent.clear()
    run(made, clock, 3)
    assert not any(row.lost for row in whole(made).members)


def test_a_neighbor_without_a_session_is_lost_after_two_looks_and_one_without_a_byte_after_twelve(made, clock):
    run(made, clock, 5)
    made.pulled.add(1)
    run(made, clock, 11)
    assert not any(row.lost or row.unheard for row in whole(made).members if row.index != 2)
    run(made, clock, 2)
    found = whole(made).members
    assert (found[0].live, found[0].unheard, found[1].lost) == ([1, 4], [1], True)
    made.lose(4)
    made.silent.add(4)
    run(made, clock, 3)
    assert [row.index for row in whole(made).members if row.lost] == [1, 4]


def test_who_hears_nobody_counts_as_no_witness_and_the_own_node_is_never_lost(made, clock):
    run(made, clock, 5)
    made.pulled |= {1, 2, 3, 4}
    run(made, clock, 60)
    found = whole(made).members
    assert not found[0].lost
    assert [row.quiet for row in found] == [False, True, True, True, True]


def test_members_that_come_and_go_are_shown(made, clock):
    run(made, clock, 5)
    newcomer = Member(index=5, name="pi6", key=identity_of(5).public, address=None)
    made.federation = replace(made.federation, members=(*made.federation.members, newcomer), edges=((0, 5),))
    (
        made.speed.append(1.0),
        made.counters.append(0),
        made.due.append(0.0),
        made.rounds.append(0.0),
        made.sent.append(0.0),
    )
    run(made, clock, 5)
    assert whole(made).members[5].phase == "training"
    made.federation = replace(made.federation, members=made.federation.members[:4])
    made.display.tick()
    assert set(made.display.spread.rows) == {0, 1, 2, 3}
    assert len(whole(made).members) == 4


def test_without_vitals_nothing_is_told_nor_heard_and_the_own_row_stays(clock):
    made = Made(5)
    made.federation = replace(made.federation, gossip=replace(made.federation.gossip, vitals=False))
    told = []
    made.display.spread._send = lambda *message: told.append(message) or True
    made.display.closed(1), made.display.closed(4)
    made.display.opened(1)
    run(made, clock, 10)
    asyncio.run(made.display.farewell())
    assert told == []
    assert [row.phase for row in whole(made).members] == ["training", None, None, None, None]
    assert whole(made).vitals is False


def test_the_last_word_is_said_before_the_doors_close(made, clock):
    told = []
    run(made, clock, 3)
    made.display.spread._send = lambda peer, message: told.append((peer, message)) or True
    made.rounds[0] = 10_000.0
    for listener in made.display.spread._listeners.values():
        listener.tokens = 0.0
    asyncio.run(made.display.farewell())
    assert {peer for peer, _ in told} == {1, 4}
    assert all(made.display.spread.rows[0].raw in [raw for _, raw in message.rows] for _, message in told)
    assert made.display.spread.rows[0].vitals.phase == "finished"


def test_something_notable_is_said_soon_and_nothing_twice_a_second(clock):
    made = Made(200)
    run(made, clock, 10)
    before = made.display.spread.counter
    run(made, clock, 10)
    assert made.display.spread.counter == before, "80 s are a period"
    made.alarm("storage", None, "full")
    run(made, clock, 3)
    assert made.display.spread.counter == before + 1
    assert made.display.spread.rows[0].vitals.standing == ("storage",)


def test_the_own_row_is_fresh_however_seldom_it_is_said_to_the_others(clock):
    made = Made(200)
    run(made, clock, 30)
    found = whole(made)
    assert made.display.spread.rows[0].said_at < found.now - 20, "80 s are a period"
    own = found.members[0]
    assert found.now - own.at <= 2
    assert own.rounds >= int(made.rounds[0]) - 3 > made.display.spread.rows[0].vitals.rounds
    assert own.bytes_per_s is not None


@pytest.mark.long
def test_where_rows_are_rare_who_was_there_all_along_has_not_joined(clock):
    """With 200 members each says something every 80 s, so that many are heard of after the first minute."""
    made = Made(200)
    run(made, clock, 170)
    assert not [event for event in made.feed.events if event.kind == "joined"]


@pytest.mark.parametrize(("life", "rounds_before", "is_told"), [(0, 339, True), (0, 25, False), (1, 339, False)])
def test_a_node_whose_log_ends_long_before_what_it_has_signed_says_so_once(made, clock, life, rounds_before, is_told):
    """A kill may lose a few rounds, and one that has begun a new life knows that it has lost them all."""
    run(made, clock, 2)
    made.rounds[0] = float(rounds_before)
    own = msgspec.structs.replace(made.display.vitals(), counter=900)
    later = sign(msgspec.structs.replace(own, life=own.life + life), identity_of(0), realm_of(made.federation))
    made.rounds[0] = 17.0
    for peer in (1, 4):
        made.display.hear(peer, VitalsTold(rows=((0, later),)))
    said = [event.text for event in made.feed.events if event.kind == "state-behind"]
    assert said == ["it has signed a report of round 339, but its state on disk ended at round 17"] * is_told


def test_nonsense_from_a_neighbor_stops_nothing(made, clock):
    made.display.hear(1, VitalsTold(rows=((0, b"x"), (2**53 - 1, made.row(2)), (0, b"x" * 384))))
    made.display.hear(99, VitalsTold(rows=((0, b"x"),)))
    made.display.tick()
    assert whole(made).members[2].quiet, "it is said to be ages old"


def test_history_is_the_same_for_a_page_that_has_been_open_and_one_that_comes_now(made, clock):
    points = []
    for _ in range(30):
        run(made, clock, 1)
        point = whole(made).point
        if point is not None and point not in points:
            points.append(point)
    history = json.loads(made.display.overview.history())
    assert history["times"][-len(points) :] == [point["time"][0] for point in points]
    assert history["figures"]["accuracy"][-len(points) :] == [point["accuracy"] for point in points]


# --- the curves -------------------------------------------------------------------------------------------------------


def test_curves_stay_within_their_memory_and_span_all_the_time():
    curves, now = Curves(), 0.0
    for _ in range(20_000):
        now += 1.0
        if curves.is_due(now):
            curves.add(now, [{"accuracy": now}] * 3)
    assert len(curves.times) <= MOST_POINTS
    assert curves.times[0] < 10
    assert curves.times[-1] > 19_000
    assert curves.values.nbytes <= MOST_POINTS * 4 * 3 * 4


def test_many_members_are_three_lines():
    curves = Curves()
    point = curves.add(0.0, [{"accuracy": value / 100} for value in range(101)] + [{}])
    assert point["accuracy"] == [0.0, 0.5, 1.0]
    assert point["distance"] == [None, None, None]
    assert not curves.as_dict()["members"]


def test_a_member_that_comes_later_has_no_past():
    curves = Curves()
    curves.add(0.0, [{"accuracy": 0.5}])
    curves.add(2.0, [{"accuracy": 0.6}, {"accuracy": 0.1}])
    curves.add(4.0, [{"accuracy": 0.7}])
    assert curves.as_dict()["figures"]["accuracy"] == [[0.5, None], [0.6, 0.1], [0.7, None]]
    assert MOST_LINES >= 8


def test_members_are_shown_by_what_their_task_is_measured_by(clock):
    rmse = Measure("rmse", "RMSE", higher_is_better=False)
    made = Made(5, measures=(rmse, LOSS))
    run(made, clock, 5)
    found = whole(made)
    assert found.measures == [rmse, LOSS]
    assert all(row.main == row.scores["rmse"] > 0 < row.scores["loss"] for row in found.members)
    assert all(value is not None for value in made.display.overview.curves.as_dict()["figures"]["main"][-1])


def test_without_a_word_of_the_task_accuracy_is_the_main_score(made, clock):
    run(made, clock, 5)
    assert all(row.main == row.accuracy for row in whole(made).members)


def test_only_the_own_row_has_intervals_which_no_other_member_is_told(made, clock):
    """Of private rows even their number stays: what members tell each other has neither."""
    run(made, clock, 5)
    found = whole(made)
    own = next(row for row in found.members if row.name == found.node)
    low, high = own.intervals["accuracy"]
    assert low <= own.accuracy <= high
    assert all(row.intervals == {} for row in found.members if row is not own)
    assert not {"intervals", "test_samples"} & set(Vitals.__struct_fields__)


def test_where_models_are_hidden_a_row_tells_nothing_of_the_nodes_own_rows():
    made = Made(3)
    made.rounds[0] = 5.0
    assert made.display.vitals().loss is not None
    made.federation = replace(made.federation, hides=HideConfig())
    made.feed.stand("change-clipped", None, "90% of its change was clipped")
    row = made.display.vitals()
    assert (row.rounds, row.accuracy, row.loss, row.metrics, row.standing) == (5, None, None, (), ())
