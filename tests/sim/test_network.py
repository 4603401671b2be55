"""Sessions open, die and come back; partitions cut and heal; nodes and trace have the figures."""

from __future__ import annotations

from oracle import in_words
from square import LATENCY_NS, MS, READY_BYTES, SQUARE, Square

from p2pfl.core import SessionClosed, SessionOpened
from sim import GOODBYE_BYTES, LinkSpec, TraceKind

# -- sessions -----------------------------------------------------------------------------------------------------


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
    assert square.network.sessions == 1


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


def test_only_the_session_named_is_closed_with_a_goodbye_from_both_ends_and_it_comes_back():
    square = Square()
    session = square.network.links[0, 1].session
    square.network.close(1, 0, session + 100)
    assert (0, 1) in square.up()
    before = square.network.traffic.bytes_sent
    square.network.close(1, 0, session)
    assert (0, 1) not in square.up()
    assert square.network.traffic.bytes_sent == before + 2 * GOODBYE_BYTES
    square.run()
    assert (0, 1) in square.up()


# -- partitions ---------------------------------------------------------------------------------------------------


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


def test_a_partition_shorter_than_the_redial_time_does_not_shorten_that():
    square = Square(LinkSpec(redial_s=0.25))
    square.network.separate(((0, 1),))
    square.run(100 * MS)
    square.network.rejoin()
    square.run(250 * MS - 1)
    assert square.up() == {(0, 1), (2, 3)}


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


# -- figures and trace --------------------------------------------------------------------------------------------


def test_edges_of_a_node_and_what_it_has_sent():
    square = Square()
    assert square.network.links_of(1) == ((0, 1), (1, 3))
    assert square.network.links_of(9) == ()
    before = [square.network.traffic_of(node) for node in range(4)]
    square.send(0, 1)
    square.send(1, 0)
    square.send(1, 3)
    sent = [square.network.traffic_of(node) for node in range(4)]
    assert [now[1] - then[1] for now, then in zip(sent, before, strict=True)] == [1, 2, 0, 0]
    assert [now[0] - then[0] for now, then in zip(sent, before, strict=True)] == [READY_BYTES, 2 * READY_BYTES, 0, 0]
    assert square.network.traffic == tuple(map(sum, zip(*sent, strict=True)))


def test_only_open_sessions_end_with_goodbyes():
    square = Square()
    square.network.cut((0, 1), redial=False)
    before = [square.network.traffic_of(node) for node in range(4)]
    square.network.count_goodbyes()
    more = [square.network.traffic_of(node)[0] - before[node][0] for node in range(4)]
    assert more == [GOODBYE_BYTES, GOODBYE_BYTES, 2 * GOODBYE_BYTES, 2 * GOODBYE_BYTES]
    assert square.up() == {(0, 2), (1, 3), (2, 3)}


def entries(square):
    return [in_words(entry).split(maxsplit=2)[2] for entry in square.entries]


def test_the_trace_tells_what_happened_to_messages_and_sessions():
    square = Square(LinkSpec(drop=1.0, duplication=1.0), edges=((0, 1),))
    square.send(0, 1, version=7)
    square.run()
    square.network.quiet = True
    square.send(1, 0, version=8)
    square.network.separate(((0,),))
    square.network.rejoin()
    assert entries(square) == [
        "SESSION_OPENED  a=0 b=1 n=1",
        f"SENT Ready  a=0 b=1 n={READY_BYTES}",
        "LOST Ready  a=0 b=1 n=7",
        "DUPLICATED Ready  a=0 b=1 n=7",
        "DELIVERED Ready  a=0 b=1 n=7",
        f"SENT Ready  a=1 b=0 n={READY_BYTES}",
        "SEPARATED  a=0 b=0 n=1",
        "SESSION_CUT  a=0 b=1 n=1",
        "REJOINED  a=0 b=0 n=0",
    ]
    assert TraceKind.SENT + 4 == 36
