"""Of calm members little is said; nobody of either version takes them for gone, and who vanishes is told as before."""

from __future__ import annotations

import time

import pytest
from calm_kit import Elsewhere, Federation, Host
from old_code import NEVER_CALM, take_out, why_not

from p2pfl.features.status import CALM_S, period_s

SHAPE = 6, "ring"
EVERYBODY = range(6)


@pytest.fixture
def new(monkeypatch):
    host = Host(*SHAPE)
    monkeypatch.setattr(time, "monotonic", lambda: host.now)
    return host


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    if (reason := why_not(NEVER_CALM)) is not None:
        pytest.skip(f"needs the code of the version before: {reason}")
    host = Elsewhere(take_out(NEVER_CALM, tmp_path_factory.mktemp("old")), *SHAPE)
    yield host
    host.process.communicate()


def test_while_a_member_goes_and_returns_with_either_version_nobody_calls_a_calm_one_quiet(new, old):
    federation = Federation()
    old.begin()

    def rest(seconds, *, returned=()):
        """Let seconds pass in which nobody is called gone; who has `returned` may be, in the first five."""
        for second, _ in enumerate(federation.pass_time(seconds)):
            for index in federation.host_of:
                gone, lines = federation.gone(index)
                assert set(gone) <= ({*returned} if second < 5 else set()), (second, index)
                assert set(lines) <= {"pi4"}, (second, index)

    federation.start(new, *EVERYBODY)
    rest(90)
    calm = new.members[0].display.spread.counter
    federation.stop(3)
    list(federation.pass_time(20))
    federation.start(old, 3)
    rest(100, returned=[3])
    assert new.members[0].display.spread.counter > calm + 30, "beside one of before, all tell as before"
    federation.stop(3)
    list(federation.pass_time(20))
    federation.start(new, 3)
    rest(20, returned=[3])
    calm = new.members[0].display.spread.counter
    rest(2 * CALM_S)
    assert new.members[0].display.spread.counter <= calm + 3


@pytest.mark.parametrize("vanishing", [[3], [2, 3, 4]], ids=["one", "three in a row"])
@pytest.mark.parametrize("pulled", [False, True], ids=["killed", "pulled"])
def test_calm_members_that_vanish_are_told_as_soon_as_by_the_version_before(new, old, vanishing, pulled):
    def told_after(host):
        federation = Federation()
        host.begin()
        federation.start(host, *EVERYBODY)
        list(federation.pass_time(100))
        federation.pulled = vanishing if pulled else []
        for member in [] if pulled else vanishing:
            federation.stop(member)
        told = (set(federation.gone(0)[0]) for _ in federation.pass_time(100))
        return next(second for second, gone in enumerate(told) if gone >= {*vanishing})

    assert told_after(new) <= told_after(old) + period_s(6), "of before, the last row may be a period old"


def test_an_idle_edge_carries_each_row_once_a_minute_and_one_that_joins_late_knows_all_at_once(new):
    federation = Federation()
    federation.start(new, *EVERYBODY[:-1])
    list(federation.pass_time(200))
    federation.start(new, 5)
    list(federation.pass_time(4))
    assert set(new.members[5].display.roster.rows) == {*EVERYBODY}
    assert federation.gone(5) == ([], [])
    list(federation.pass_time(60))
    federation.bytes.clear()
    list(federation.pass_time(10 * CALM_S))
    assert 0 < max(federation.bytes.values()) <= 10 * len(EVERYBODY) * 240
