"""The lines about a node's start say for whom it waits."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from p2pfl.core import Phase
from p2pfl.node import ProgressLines

RING = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5))
WARD = SimpleNamespace(edges=RING, gossip=SimpleNamespace(start_wait_s=60.0))


@pytest.fixture
def said(caplog):
    """What node 0 of a ring of six logs, on each of its levels and with these levels of its neighbors in turn."""
    caplog.set_level(logging.WARNING)

    def said(*looks, phase=Phase.WAITING):
        core = SimpleNamespace(phase=phase)
        status = SimpleNamespace(core=core, name_of="pi{}".format, runner=SimpleNamespace())
        lines = ProgressLines(lambda _: None, status, None, lambda: False, sketched=False)
        for own_level, levels in looks:
            core.facts = SimpleNamespace(level=own_level)
            core.edges = {
                peer: SimpleNamespace(
                    is_open=level is not None,
                    line=SimpleNamespace(is_shut=False),
                    progress=SimpleNamespace(level=level),
                    peer=peer,
                )
                for peer, level in levels.items()
            }
            lines.say_who_is_missing(WARD, 0)
        return [record.getMessage() for record in caplog.records]

    return said


def test_a_missing_neighbor_is_named(said):
    assert said((0, {1: 0, 5: None})) == ["no session yet with pi5; starts without them after at most 60 s"]


def test_without_any_neighbor_all_are_named(said):
    (line,) = said((0, {1: None, 5: None}))
    assert line == "no neighbor is connected yet (pi1, pi5): training starts once one is"


@pytest.mark.parametrize(
    ("own_level", "levels", "names"),
    [(1, {1: 0, 5: 1}, "pi2"), (1, {1: 0, 5: 0}, "pi2, pi4"), (2, {1: 1, 5: 1}, "pi3")],
)
def test_a_member_that_only_others_miss_is_named(said, own_level, levels, names):
    (line,) = said((own_level, levels))
    assert line.startswith("all neighbors are connected, but a member farther away is not")
    assert line.endswith(f"one or more of these: {names}; starts without it after at most 60 s")


def test_each_line_comes_once_and_the_next_kind_of_wait_has_its_own(said):
    assert len(said((0, {1: 0, 5: None}), (0, {1: 0, 5: None}), (1, {1: 0, 5: 0}), (1, {1: 0, 5: 0}))) == 2


def test_a_node_that_waits_for_nobody_says_nothing(said):
    assert said((1, {1: 1, 5: 1}), (0, {1: 0, 5: 0})) == []
    assert said((0, {1: 0, 5: None}), phase=Phase.TRAINING) == []
