"""Links do what their spec says, to the nanosecond or in the long run; sessions die, partitions cut and heal."""

from __future__ import annotations

from functools import partial

import pytest

from p2pfl.core.events import MessageReceived, SessionClosed, SessionOpened
from p2pfl.core.messages import Ready
from sim.kernel import NS, Kernel
from sim.links import Bandwidth
from sim.network import Network
from sim.trace import Kind, Trace
from sim.worlds.model import LinkSpec, SlowNodes, Spread

MS = NS // 1000
LATENCY_NS = 2 * MS
SQUARE = ((0, 1), (0, 2), (1, 3), (2, 3))


class Square:
    """Four nodes that note what reaches them: (nanosecond, node, event)."""

    def __init__(self, links=None, *, edges=SQUARE, opened=True, **options):
        self.kernel = Kernel()
        self.heard = []
        self.dead = set()
        self.trace = Trace()
        plan = {"seed": 1, "max_body_bytes": 100, "trace": self.trace} | options
        self.network = Network(
            kernel=self.kernel,
            edges=edges,
            links=links or LinkSpec(),
            deliver=lambda node, event: self.heard.append((self.kernel.now_ns, node, event)),
            alive=lambda node: node not in self.dead,
            **plan,
        )
        if opened:
            for edge in edges:
                self.network.open(edge)
            self.run()
            self.heard.clear()

    def run(self, for_ns=10 * NS):
        self.kernel.run(self.kernel.now_ns + for_ns)

    def send(self, source, target, version=1, session=None):
        link = self.network.links[min(source, target), max(source, target)]
        self.network.send(source, target, session or link.session, Ready(version=version))

    def versions(self, node=None):
        return [e.message.version for _, at, e in self.heard if type(e) is MessageReceived and node in (None, at)]

    def kinds(self):
        return [(node, type(event)) for _, node, event in self.heard]

    def up(self):
        return {edge for edge, link in self.network.links.items() if link.session}


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_both_ends_hear_of_a_session_and_of_its_end_a_latency_later():
    square = Square(opened=False)
    square.network.open((0, 1))
    square.run()
    opened = [(LATENCY_NS, 0, SessionOpened(peer=1, session=1)), (LATENCY_NS, 1, SessionOpened(peer=0, session=1))]
    assert square.heard == opened
    began = square.kernel.now_ns
    square.network.cut((0, 1), redial=False)
    square.run()
    at = began + LATENCY_NS
    assert square.heard[2:] == [(at, 0, SessionClosed(peer=1, session=1)), (at, 1, SessionClosed(peer=0, session=1))]
    assert square.up() == set()


def test_no_session_opens_where_an_end_is_down_or_one_is_open():
    square = Square(opened=False)
    square.dead.add(1)
    square.network.open((0, 1))
    assert square.up() == set()
    square.dead.clear()
    square.network.open((0, 1))
    square.network.open((0, 1))
    square.run()
    assert len(square.heard) == 2


def test_a_session_that_died_is_tried_again_after_its_time():
    square = Square(LinkSpec(redial_s=0.3))
    began = square.kernel.now_ns
    square.network.cut((0, 1))
    square.run(300 * MS - 1)
    assert (0, 1) not in square.up()
    square.kernel.run(began + 300 * MS)
    assert (0, 1) in square.up()


def test_what_is_on_the_way_ends_with_its_session():
    square = Square()
    square.send(0, 1)
    square.run(LATENCY_NS - 1)
    square.network.cut((0, 1))
    square.run()
    assert square.versions() == []
    assert square.up() == set(SQUARE)


def test_a_message_for_another_session_is_not_sent_and_not_counted():
    square = Square()
    before = square.network.traffic
    square.send(0, 1, session=99)
    square.run()
    assert square.heard == []
    assert square.network.traffic == before


def test_only_the_session_named_is_closed_and_it_comes_back():
    square = Square()
    session = square.network.links[0, 1].session
    square.network.close(1, 0, session + 100)
    assert (0, 1) in square.up()
    square.network.close(1, 0, session)
    assert (0, 1) not in square.up()
    square.run()
    assert (0, 1) in square.up()


def test_a_link_that_does_not_exist_is_our_bug():
    with pytest.raises(KeyError):
        Square().send(0, 3)


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_message_takes_its_links_latency_and_what_slow_ends_add():
    slow = (SlowNodes(nodes=(1, 3), far_s=0.010), SlowNodes(nodes=(1,), far_s=0.1))
    square = Square(slow=slow)
    began = square.kernel.now_ns
    for source, target in ((0, 2), (0, 1), (1, 0), (3, 1)):
        square.send(source, target)
    square.run()
    took = {(event.peer, node): time_ns - began for time_ns, node, event in square.heard}
    assert took == {(0, 2): 2 * MS, (0, 1): 112 * MS, (1, 0): 112 * MS, (3, 1): 122 * MS}


def test_each_link_draws_its_latency_once_from_a_stream_of_its_own():
    latency = LinkSpec(latency_s=Spread(kind="log-uniform", low=0.001, high=0.1))
    all_four, two = Square(latency).network.links, Square(latency, edges=SQUARE[2:]).network.links
    drawn = [link.latency_ns for link in all_four.values()]
    assert len(set(drawn)) == 4
    assert all(MS <= each <= 100 * MS for each in drawn)
    assert [link.latency_ns for link in two.values()] == drawn[2:]
    assert [link.latency_ns for link in Square(latency, seed=2).network.links.values()] != drawn


def test_jitter_lets_messages_overtake_each_other_and_never_exceeds_its_bound():
    square = Square(LinkSpec(jitter_s=0.05))
    began = square.kernel.now_ns
    for version in range(200):
        square.send(0, 1, version)
    square.run()
    assert square.versions() != sorted(square.versions())
    assert sorted(square.versions()) == list(range(200))
    took = [time_ns - began for time_ns, _, _ in square.heard]
    assert LATENCY_NS <= min(took) < 3 * MS
    assert 50 * MS < max(took) < 52 * MS


SIZE = 18 + 4 + 17
"""of a Ready, as it is counted."""


def test_a_message_leaves_when_the_one_before_has_left_to_the_nanosecond():
    square = Square(LinkSpec(bandwidth=7000.0))
    began = square.kernel.now_ns
    for _ in range(3):
        square.send(0, 1)
    square.send(1, 0)
    square.send(0, 2)
    square.run()
    one_ns = -(-SIZE * NS // 7000)
    arrivals = [(event.peer, node, time_ns - began - LATENCY_NS) for time_ns, node, event in square.heard]
    assert sorted(arrivals) == [(0, 1, k * one_ns) for k in (1, 2, 3)] + [(0, 2, one_ns), (1, 0, one_ns)]


def test_a_way_that_was_idle_starts_at_once():
    square = Square(LinkSpec(bandwidth=7000.0))
    square.send(0, 1)
    square.run()
    began = square.kernel.now_ns + 12345
    square.kernel.at_ns(began, partial(square.send, 0, 1))
    square.run()
    assert square.heard[-1][0] == began + -(-SIZE * NS // 7000) + LATENCY_NS


def test_what_waited_in_a_session_that_died_does_not_delay_the_next():
    square = Square(LinkSpec(bandwidth=100.0, redial_s=0.001))
    for _ in range(50):
        square.send(0, 1)
    square.network.cut((0, 1))
    square.run(20 * MS)
    began = square.kernel.now_ns
    square.send(0, 1)
    square.run()
    assert square.heard[-1][0] == began + SIZE * NS // 100 + LATENCY_NS


def test_the_narrowest_of_link_and_ends_decides():
    slow = (SlowNodes(nodes=(0,), bandwidth=500.0), SlowNodes(nodes=(1,), bandwidth=200.0), SlowNodes(nodes=(3,)))
    square = Square(LinkSpec(bandwidth=1000.0), slow=slow)
    second = {edge: link.bandwidth.transfer_ns(1000) / NS for edge, link in square.network.links.items()}
    assert second == {(0, 1): 5.0, (0, 2): 2.0, (1, 3): 5.0, (2, 3): 1.0}


@pytest.mark.parametrize("rate", [0.1, 1e9 / 3, 3.0, 1e15])
def test_a_transfer_takes_size_over_bandwidth_exactly_rounded_up(rate):
    numerator, denominator = rate.as_integer_ratio()
    for size in (1, 17, 10**6, 10**12 + 1):
        ns = Bandwidth(rate).transfer_ns(size)
        assert (ns - 1) * numerator < size * denominator * NS <= ns * numerator


# -- chance -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "duplication"), [(0.05, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_messages_are_lost_and_doubled_at_their_rates_and_counted_once(loss, duplication):
    square = Square(LinkSpec(loss=loss, duplication=duplication))
    before = square.network.traffic
    for version in range(8000):
        square.send(0, 1, version)
    square.run()
    copies = [0] * 8000
    for version in square.versions():
        copies[version] += 1
    shares = [copies.count(n) / 8000 for n in range(3)]
    expected = [loss * (1 - duplication), (1 - loss) * (1 - duplication) + loss * duplication, (1 - loss) * duplication]
    assert shares == pytest.approx(expected, abs=0.02)
    traffic = square.network.traffic
    assert traffic.messages_sent - before.messages_sent == 8000
    sizes = 8000 * SIZE + sum(1 if version > 127 else 0 for version in range(8000))
    sizes += sum(1 if version > 255 else 0 for version in range(8000))
    assert traffic.bytes_sent - before.bytes_sent == sizes


def test_a_quiet_network_only_delays():
    square = Square(LinkSpec(loss=0.5, duplication=0.5, jitter_s=0.1))
    square.network.quiet = True
    began = square.kernel.now_ns
    for version in range(100):
        square.send(0, 1, version)
    square.run()
    assert square.versions() == list(range(100))
    assert {time_ns for time_ns, _, _ in square.heard} == {began + LATENCY_NS}


def history(seed, sends):
    square = Square(LinkSpec(loss=0.2, duplication=0.2, jitter_s=0.01), seed=seed)
    for version, (source, target) in enumerate(sends):
        square.send(source, target, version)
    square.run()
    return square


def test_the_same_seed_gives_the_same_events_and_another_gives_others():
    sends = [SQUARE[k % 4] for k in range(200)]
    first, second, other = (history(seed, sends) for seed in (3, 3, 4))
    assert first.heard == second.heard
    assert first.trace.digest == second.trace.digest
    assert first.heard != other.heard
    assert first.trace.digest != other.trace.digest


def test_what_happens_on_one_link_moves_nothing_on_another():
    alone = history(3, [(0, 1) for _ in range(100)]).versions(1)
    busy = history(3, [edge for _ in range(100) for edge in ((0, 1), (2, 3), (2, 3))])
    assert [version // 3 for version in busy.versions(1)] == alone


# -- partitions -------------------------------------------------------------------------------------------------------


def test_a_partition_cuts_what_it_divides_and_both_ends_notice():
    square = Square()
    square.network.separate(((0, 1),))
    square.run()
    assert square.up() == {(0, 1), (2, 3)}
    assert sorted(square.kinds()) == [(node, SessionClosed) for node in range(4)]


def test_nothing_opens_across_until_it_is_over_and_then_after_the_redial_time():
    square = Square(LinkSpec(redial_s=0.25))
    square.network.separate(((0, 1), (2, 3)))
    square.network.cut((0, 2))
    square.network.open((1, 3))
    square.run()
    assert square.up() == {(0, 1), (2, 3)}
    square.network.rejoin()
    square.run(250 * MS - 1)
    assert square.up() == {(0, 1), (2, 3)}
    square.run(1)
    assert square.up() == set(SQUARE)


def test_who_is_in_no_group_is_in_one_more_with_all_others_that_are_in_none():
    square = Square()
    square.network.separate(((1,),))
    assert square.up() == {(0, 2), (2, 3)}


def test_the_end_of_one_separation_leaves_what_another_divides():
    square = Square()
    square.network.separate(((0, 1),))
    square.network.separate(((0, 2),))
    assert square.up() == set()
    square.network.rejoin(((0, 1),))
    square.run()
    assert square.up() == {(0, 2), (1, 3)}
    square.network.rejoin(((0, 2),))
    square.run()
    assert square.up() == set(SQUARE)


def test_a_node_that_is_down_when_a_partition_ends_is_not_connected():
    square = Square()
    square.network.separate(((0, 1),))
    square.dead.add(2)
    square.network.rejoin()
    square.run()
    assert square.up() == {(0, 1), (2, 3), (1, 3)}


# -- figures and trace ------------------------------------------------------------------------------------------------


def test_edges_of_a_node_and_what_it_has_sent():
    square = Square()
    assert square.network.links_of(1) == ((0, 1), (1, 3))
    assert square.network.links_of(9) == ()
    before = [square.network.traffic_of(node) for node in range(4)]
    link = square.network.links[0, 1]
    link_before = link.bytes_sent, link.messages_sent
    square.send(0, 1)
    square.send(1, 0)
    square.send(1, 3)
    sent = [square.network.traffic_of(node) for node in range(4)]
    assert [now[1] - then[1] for now, then in zip(sent, before, strict=True)] == [1, 2, 0, 0]
    assert [now[0] - then[0] for now, then in zip(sent, before, strict=True)] == [SIZE, 2 * SIZE, 0, 0]
    assert (link.bytes_sent - link_before[0], link.messages_sent - link_before[1]) == (2 * SIZE, 2)
    assert square.network.traffic == tuple(map(sum, zip(*sent, strict=True)))


def entries(square):
    lines = [line.split(maxsplit=2) for line in square.trace.tail(1000)]
    return [text for _, _, text in lines]


def test_the_trace_tells_what_happened_to_messages_and_sessions():
    square = Square(LinkSpec(loss=1.0, duplication=1.0), edges=((0, 1),))
    square.send(0, 1, version=7)
    square.run()
    square.network.quiet = True
    square.send(1, 0, version=8)
    square.network.separate(((0,),))
    square.network.rejoin()
    assert entries(square) == [
        "SESSION_OPENED  a=0 b=1 n=1",
        f"SENT Ready  a=0 b=1 n={SIZE}",
        "LOST Ready  a=0 b=1 n=7",
        "DUPLICATED Ready  a=0 b=1 n=7",
        "DELIVERED Ready  a=0 b=1 n=7",
        f"SENT Ready  a=1 b=0 n={SIZE}",
        "SEPARATED  a=0 b=0 n=1",
        "SESSION_CUT  a=0 b=1 n=1",
        "REJOINED  a=0 b=0 n=0",
    ]
    assert Kind.SENT + 4 == 36


def test_a_network_without_a_trace_does_the_same():
    with_trace, without = (
        Square(LinkSpec(loss=0.3, duplication=0.3)),
        Square(LinkSpec(loss=0.3, duplication=0.3), trace=None),
    )
    for square in (with_trace, without):
        for version in range(100):
            square.send(0, 1, version)
        square.run()
    assert with_trace.heard == without.heard
