"""Real nodes with a robust rule that are broken off or stopped: what was mixed is on the disk, bit for bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from p2pfl.aggregate import Mixture

PACED = {"step_s": 0.02}
RULE = {"rule": "trimmed-mean:b=1"}


def four(ward, **tables):
    return ward(4, federation={"topology": "complete"}, gossip=RULE, task=PACED, **tables)


class Held:
    """A rule that moves every coordinate by one, and that waits for `let_go` first."""

    spec, liars, least = "held", 1, 3

    def __init__(self):
        self.mixes, self.let_go = threading.Event(), threading.Event()

    def mix(self, around):
        self.mixes.set()
        self.let_go.wait(20)
        self.mixed = around.own + around.own.dtype.type(1)
        return Mixture(model=self.mixed)


def remember_models(node):
    """Every model that the node has from now on, by its bytes."""
    engine = node.application.thread.engine
    had, run = {engine.state.model.astype(np.float64).tobytes()}, engine.run

    def note(operation):
        outcome = run(operation)
        had.add(engine.state.model.astype(np.float64).tobytes())
        return outcome

    engine.run = note
    return had


@pytest.mark.long
async def test_a_node_that_was_broken_off_goes_on_from_the_very_bits_of_a_model_that_it_had(ward, start, finish):
    """The latest, or one before it whose successor was not on the disk yet."""
    field = four(ward, training={"rounds": 25})
    nodes = start(field)
    for at in (5, 12):
        await nodes[0].until(lambda: nodes[0].status)
        had = remember_models(nodes[0])
        await nodes[0].until(lambda at=at: nodes[0].rounds >= at and nodes[0].status.rounds_mixed > 2)
        await nodes[0].break_off()
        assert field.model(0).tobytes() in had
        nodes[0] = start(field, 0)[0]
        await nodes[0].until(lambda: nodes[0].status)
        assert nodes[0].rounds >= at - 1
    for result in await finish(nodes, rounds=25):
        assert [neighbor.resyncs for neighbor in result.neighbors] == [0, 0, 0]
        assert [neighbor.faults for neighbor in result.neighbors] == [{}, {}, {}]


async def test_a_node_that_is_stopped_while_it_mixes_keeps_what_it_has_mixed(ward, start):
    field = four(ward, training={"rounds": 40})
    nodes = start(field)
    await nodes[0].until(lambda: nodes[0].rounds >= 5)
    rule = nodes[0].application.thread.engine.mixer.rule = Held()
    try:
        await nodes[0].until(rule.mixes.is_set)
        nodes[0].application.stop()
        await nodes[0].until(lambda: nodes[0].application.driver.local.closed)
    finally:
        rule.let_go.set()
    result = await nodes[0].result()
    assert (result.finished, "mixing-failed" in result.alarms) == (False, False)
    np.testing.assert_array_equal(field.model(0), rule.mixed.astype(np.float64))


@pytest.mark.long
async def test_no_round_begins_while_a_node_mixes_and_the_others_do_not_wait_for_it(ward, start, finish):
    field = four(ward, training={"rounds": 12})
    nodes = start(field)
    await nodes[0].until(lambda: nodes[0].rounds >= 5)
    rule = nodes[0].application.thread.engine.mixer.rule = Held()
    try:
        await nodes[0].until(rule.mixes.is_set)
        begun = nodes[0].rounds
        await nodes[1].until(lambda: nodes[1].rounds >= 12)
        assert nodes[0].rounds == begun
    finally:
        rule.let_go.set()
    for result in await finish(nodes, rounds=12):
        assert {kind for kind in result.alarms if kind in {"quarantine", "mixing-failed"}} == set()
        assert all(neighbor.faults == {} for neighbor in result.neighbors)
