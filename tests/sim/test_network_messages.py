"""Messages are late, wait for each other, get lost and are doubled as their links say: exactly, or in the long run."""

from __future__ import annotations

from functools import partial

import pytest
from square import LATENCY_NS, MS, READY_BYTES, SQUARE, Square

from p2pfl.core import SessionClosed, SessionOpened
from sim import NS, RESEND_NS, Bandwidth, LinkSpec, SlowNodes, Spread

# -- time ---------------------------------------------------------------------------------------------------------


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


def test_a_message_leaves_when_the_one_before_has_left_to_the_nanosecond():
    square = Square(LinkSpec(bandwidth=7000.0))
    began = square.kernel.now_ns
    for _ in range(3):
        square.send(0, 1)
    square.send(1, 0)
    square.send(0, 2)
    square.run()
    one_ns = -(-READY_BYTES * NS // 7000)
    arrivals = [(event.peer, node, time_ns - began - LATENCY_NS) for time_ns, node, event in square.heard]
    assert sorted(arrivals) == [(0, 1, k * one_ns) for k in (1, 2, 3)] + [(0, 2, one_ns), (1, 0, one_ns)]


def test_a_way_that_was_idle_starts_at_once():
    square = Square(LinkSpec(bandwidth=7000.0))
    square.send(0, 1)
    square.run()
    began = square.kernel.now_ns + 12345
    square.kernel.at_ns(began, partial(square.send, 0, 1))
    square.run()
    assert square.heard[-1][0] == began + -(-READY_BYTES * NS // 7000) + LATENCY_NS


def test_what_waited_in_a_session_that_died_does_not_delay_the_next():
    square = Square(LinkSpec(bandwidth=100.0, redial_s=0.001))
    for _ in range(50):
        square.send(0, 1)
    square.network.cut((0, 1))
    square.run(20 * MS)
    began = square.kernel.now_ns
    square.send(0, 1)
    square.run()
    assert square.heard[-1][0] == began + READY_BYTES * NS // 100 + LATENCY_NS


def test_the_narrowest_of_link_and_ends_decides():
    slow = tuple(SlowNodes(nodes=(node,), bandwidth=rate) for node, rate in ((0, 500), (1, 200), (1, 900), (3, None)))
    square = Square(LinkSpec(bandwidth=1000.0), slow=slow)
    second = {edge: link.bandwidth.transfer_ns(1000) / NS for edge, link in square.network.links.items()}
    assert second == {(0, 1): 5.0, (0, 2): 2.0, (1, 3): 5.0, (2, 3): 1.0}


@pytest.mark.parametrize("rate", [0.1, 1e9 / 3, 3.0, 1e15])
def test_a_transfer_takes_size_over_bandwidth_exactly_rounded_up(rate):
    numerator, denominator = rate.as_integer_ratio()
    for size in (1, 17, 10**6, 10**12 + 1):
        ns = Bandwidth(rate).transfer_ns(size)
        assert (ns - 1) * numerator < size * denominator * NS <= ns * numerator


# -- chance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "duplication"), [(0.05, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_messages_are_lost_and_doubled_at_their_rates_and_counted_once(loss, duplication):
    square = Square(LinkSpec(drop=loss, duplication=duplication))
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
    sizes = 8000 * READY_BYTES + sum(1 if version > 127 else 0 for version in range(8000))
    sizes += sum(1 if version > 255 else 0 for version in range(8000))
    assert traffic.bytes_sent - before.bytes_sent == sizes


@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_where_packets_are_lost_every_message_arrives_once_in_order_and_late_as_often(loss):
    square = Square(LinkSpec(loss=loss, jitter_s=0.01))
    sent_at, late = [], 0
    for version in range(1000):
        sent_at.append(square.kernel.now_ns)
        square.send(0, 1, version)
        square.run(60 * NS)  # one after the other, so that none waits for another
    assert square.versions() == list(range(1000))
    waits = [at - began - LATENCY_NS for (at, _, _), began in zip(square.heard, sent_at, strict=True)]
    late = sum(wait >= RESEND_NS for wait in waits)
    twice = sum(wait >= 3 * RESEND_NS for wait in waits)
    assert [late / 1000, twice / 1000] == pytest.approx([loss, loss * loss], abs=0.05)


def test_what_follows_a_lost_packet_waits_for_it_as_in_tcp():
    square = Square(LinkSpec(loss=0.3, jitter_s=0.01))
    for version in range(200):
        square.send(0, 1, version)
    square.run(60 * NS)
    assert square.versions() == list(range(200))


def test_a_session_over_which_nothing_passes_ends_and_is_dialed_again():
    square = Square(LinkSpec(loss=1.0), edges=((0, 1),))
    began = square.kernel.now_ns
    square.send(0, 1)
    square.run(60 * NS)
    assert square.kinds() == [(0, SessionClosed), (1, SessionClosed), (0, SessionOpened), (1, SessionOpened)]
    assert square.heard[0][0] - began == 255 * RESEND_NS + LATENCY_NS


def test_a_quiet_network_only_delays():
    square = Square(LinkSpec(loss=0.5, drop=0.5, duplication=0.5, jitter_s=0.1))
    square.network.quiet = True
    began = square.kernel.now_ns
    for version in range(100):
        square.send(0, 1, version)
    square.run()
    assert square.versions() == list(range(100))
    assert {time_ns for time_ns, _, _ in square.heard} == {began + LATENCY_NS}


def history(seed, sends):
    square = Square(LinkSpec(drop=0.2, duplication=0.2, jitter_s=0.01), seed=seed)
    for version, (source, target) in enumerate(sends):
        square.send(source, target, version)
    square.run()
    return square


def test_the_same_seed_gives_the_same_events_and_another_gives_others():
    sends = [SQUARE[k % 4] for k in range(200)]
    first, second, other = (history(seed, sends) for seed in (3, 3, 4))
    assert first.heard == second.heard
    assert first.entries == second.entries
    assert first.heard != other.heard
    assert first.entries != other.entries


def test_what_happens_on_one_link_moves_nothing_on_another():
    alone = history(3, [(0, 1) for _ in range(100)]).versions(1)
    busy = history(3, [edge for _ in range(100) for edge in ((0, 1), (2, 3), (2, 3))])
    assert [version // 3 for version in busy.versions(1)] == alone
