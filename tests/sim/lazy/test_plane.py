"""Operations that were put off are done in an order that each node, and each message, allows."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.aggregate import make_rule
from p2pfl.compress import make_compressor
from p2pfl.core.effects import Mix
from p2pfl.core.tick import UNMOVED_ROUNDS
from p2pfl.methods.plain import Plain
from sim.lazy.operations import BeginOp, CommitOp, FreezeOp, MixOp, ReplyOp, RequestOp
from sim.lazy.plane import Plane
from sim.lazy.rows import EdgeCodecs, MisjudgedError

D = 6


class Adding:
    """A local round adds the node's number plus one to every entry; calls are remembered."""

    def __init__(self):
        self.calls = []

    def train(self, nodes, rounds, starts, out):
        self.calls.append(sorted(zip(nodes.tolist(), rounds.tolist(), strict=True)))
        out[:] = starts.models + (nodes + 1)[:, None]
        return np.zeros(len(nodes))


def plane_of(nodes, edges, *, crashing=frozenset(), rule=None, learners=None):
    return Plane(
        nodes=nodes,
        edges=edges,
        initial=np.zeros(D, np.float32),
        learners=learners or Adding(),
        codecs=EdgeCodecs.same(make_compressor("none"), len(edges)),
        method=Plain(),
        crashing=crashing,
        rules=[make_rule(rule) for _ in range(nodes)] if rule else (),
    )


def begin(index):
    return BeginOp(index=index, accompanied=False, samples=1)


def exchange(plane, edge, ends, *, ticket, factor=0.5, after=0):
    """One transaction, as its two ends note it."""
    low, high = ends
    plane.put(low, FreezeOp(edge, edge, after, -1, ticket))
    plane.put(high, RequestOp(edge, edge, ticket, -1, factor, 1, ()))
    plane.put(low, ReplyOp(edge, edge, ticket, factor, 1, ()))


def test_two_nodes_that_trained_meet_in_the_middle():
    plane = plane_of(2, [(0, 1)])
    for node in (0, 1):
        plane.put(node, begin(0))
        plane.put(node, CommitOp(1, 0.1, 1, 1.0))
    exchange(plane, 0, (0, 1), ticket=1)
    np.testing.assert_array_equal(plane.models(), np.full((2, D), 1.5))


def test_what_was_noted_first_at_a_node_is_done_first_although_another_kind_is_more_common():
    plane = plane_of(3, [(0, 1), (0, 2)])
    plane.put(0, begin(0))
    plane.put(0, CommitOp(1, 0.1, 1, 1.0))
    exchange(plane, 0, (0, 1), ticket=1)  # node 0 has 1, node 1 has 0: both 0.5
    exchange(plane, 1, (0, 2), ticket=1)  # node 0 has 0.5, node 2 has 0: both 0.25
    np.testing.assert_array_equal(plane.models()[:, 0], [0.25, 0.5, 0.25])


def test_all_rounds_in_flight_are_trained_in_one_call_once_one_is_needed():
    plane = plane_of(4, [])
    for node in range(4):
        plane.put(node, begin(7))
    plane.drain()
    assert plane.learners.calls == []
    plane.put(2, CommitOp(1, 0.1, 1, 1.0))
    plane.drain()
    assert plane.learners.calls == [[(node, 7) for node in range(4)]]
    np.testing.assert_array_equal(plane.models()[:, 0], [0, 0, 3, 0])


def test_mixing_during_a_local_round_neither_waits_for_it_nor_enters_it():
    plane = plane_of(2, [(0, 1)])
    plane.put(1, begin(0))
    plane.put(1, CommitOp(1, 0.1, 1, 1.0))  # node 1: 2
    plane.put(0, begin(0))  # from 0
    exchange(plane, 0, (0, 1), ticket=1)  # both 1
    plane.put(0, CommitOp(1, 0.1, 1, 1.0))  # node 0: 1 + 1
    np.testing.assert_array_equal(plane.models()[:, 0], [2, 1])


def test_a_request_keeps_its_place_until_it_is_applied():
    """The initiator gave up and froze anew before the responder's half of the old transaction was done."""
    plane = plane_of(2, [(0, 1)])
    plane.put(0, begin(0))
    plane.put(0, CommitOp(1, 0.1, 1, 1.0))
    plane.put(1, begin(0))
    plane.put(1, CommitOp(1, 0.1, 1, 1.0))
    plane.put(0, FreezeOp(0, 0, 0, -1, 1))
    plane.put(1, RequestOp(0, 0, 1, -1, 0.0, 1, ()))
    plane.put(0, begin(1))
    plane.put(0, CommitOp(1, 0.1, 1, 1.0))
    plane.put(0, FreezeOp(0, 0, 1, -1, 2))
    plane.drain()
    assert plane.rows.own[0, 0] == 1.0
    assert plane.rows.requests.of(np.array([0]), drop=False)[0, 0] == 1.0  # 2 less the 1 that the replica has


def test_a_crash_takes_back_what_the_disk_did_not_know():
    plane = plane_of(2, [(0, 1)], crashing=frozenset({1}))
    plane.put(1, begin(0))
    plane.put(1, CommitOp(1, 0.1, 1, 1.0))
    exchange(plane, 0, (0, 1), ticket=1)  # flushes node 1: both 1
    plane.put(1, begin(1))
    plane.put(1, CommitOp(1, 0.1, 1, 1.0))
    np.testing.assert_array_equal(plane.models()[:, 0], [1, 3])
    plane.lose(1, 1)
    np.testing.assert_array_equal(plane.models()[:, 0], [1, 1])


def test_a_round_under_way_dies_with_the_node():
    plane = plane_of(1, [], crashing=frozenset({0}))
    plane.put(0, begin(3))
    plane.lose(0, 0)
    plane.put(0, begin(3))
    plane.put(0, CommitOp(1, 0.1, 1, 1.0))
    plane.drain()
    assert plane.learners.calls == [[(0, 3)]]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e12])
def test_a_vector_that_the_engine_might_refuse_ends_the_run(value):
    plane = plane_of(2, [(0, 1)])
    plane.rows.models[0] = value
    exchange(plane, 0, (0, 1), ticket=1)
    with np.errstate(all="ignore"), pytest.raises(MisjudgedError):
        plane.drain()


def test_an_operation_that_waits_for_nothing_noted_is_our_own_mistake():
    plane = plane_of(2, [(0, 1)])
    plane.put(1, RequestOp(0, 0, 1, -1, 0.5, 1, ()))
    with pytest.raises(AssertionError, match="never noted"):
        plane.drain()


THREE = [(0, 1), (0, 2), (0, 3)]


def mix(pairs):
    return MixOp(Mix(peers=(1, 2, 3), weights=(0.25, 0.25, 0.25), progress=0.5), pairs)


def robust_plane(**options):
    """Node 0 has had an exchange with each of three others, whose models are 1, 2 and 9; its own is 1."""
    plane = plane_of(4, THREE, rule="trimmed-mean:b=1", **options)
    plane.rows.models[:] = np.array([1, 1, 2, 9], np.float32)[:, None]
    for edge, ends in enumerate(THREE):
        exchange(plane, edge, ends, ticket=1, factor=0.0)
    plane.drain()
    return plane


def test_a_rule_mixes_with_what_the_node_itself_has_heard_of_its_neighbors():
    plane = robust_plane()
    plane.rows.models[2] = 7
    plane.put(0, FreezeOp(1, 1, 1, -1, 2))
    plane.put(2, RequestOp(1, 1, 2, -1, 0.0, 1, ()))  # its reply is still on its way
    plane.drain()
    plane.put(0, mix((-1, -2, -3)))
    assert plane.models()[0, 0] == 1.5  # the mean of what is between the least and the largest of 1, 1, 2, 9
    plane.put(0, ReplyOp(1, 1, 2, 0.0, 1, ()))
    plane.put(0, mix((-1, -2, -3)))
    assert plane.models()[0, 0] == 4.25  # of 1, 1.5, 7, 9


def test_neighbors_see_the_model_before_the_mix_until_the_next_round():
    plane = robust_plane()
    plane.put(0, mix((-1, -2, -3)))
    plane.put(0, FreezeOp(0, 0, 1, -1, 2, unmixed=True))
    plane.put(1, RequestOp(0, 0, 2, -1, 0.0, 1, ()))
    plane.drain()
    assert plane.rows.own[0, 0] == 1.0
    plane.put(0, FreezeOp(0, 0, 2, -1, 3))
    plane.put(1, RequestOp(0, 0, 3, -1, 0.0, 1, ()))
    plane.drain()
    assert plane.rows.own[0, 0] == 1.5


def test_a_crash_takes_back_a_mix_and_what_the_last_reply_said():
    plane = robust_plane(crashing=frozenset({0}))
    plane.put(0, FreezeOp(0, 0, 1, -1, 2))  # flushes node 0
    plane.rows.models[1] = 5
    plane.put(1, RequestOp(0, 0, 2, -1, 0.0, 1, ()))
    plane.put(0, ReplyOp(0, 0, 2, 0.0, 1, ()))
    plane.put(0, mix((-1, -2, -3)))
    assert plane.models()[0, 0] == 3.5
    plane.lose(0, 2)
    plane.put(0, mix((-1, -2, -3)))
    assert plane.models()[0, 0] == 1.5


def test_a_rule_that_moves_nothing_for_long_is_left_to_the_engine():
    plane = robust_plane()
    for _ in range(UNMOVED_ROUNDS):
        plane.drain()
        plane.rows.models[0] = 2  # as the rule makes it, too
        plane.put(0, mix((-1, -2, -3)))
    with pytest.raises(MisjudgedError, match="keeps nothing"):
        plane.drain()
