"""A slow line gets newer and fewer messages, never a longer line."""

from __future__ import annotations

import asyncio

import pytest
from message_kit import HELLO, REPLY, REQUEST
from msgspec.structs import replace

from p2pfl.core import Busy, Ready, Resync
from p2pfl.net import Outbox
from p2pfl.wire import Side

NEXT = replace(REQUEST, seq=3, digest=b"2")


async def take(box, now=0.0):
    message = await asyncio.wait_for(box.take(now), 5)
    box.begin(message, now)
    return message


async def everything(box):
    return [await take(box) for _ in range(len(box))]


def put(box, *messages, now=0.0, hearing=False):
    return [box.put(message, now, hearing=hearing) for message in messages]


async def test_messages_leave_in_the_order_in_which_they_came():
    box = Outbox(9)
    put(box, HELLO, REQUEST, Ready(version=1), Resync(incarnation=1), Resync(incarnation=2))
    assert await everything(box) == [
        HELLO,
        REQUEST,
        Ready(version=1),
        Resync(incarnation=1),
        Resync(incarnation=2),
    ]


@pytest.mark.parametrize("message", [HELLO, REQUEST, REPLY, Ready(version=1), Resync(incarnation=1)])
async def test_what_waits_is_not_put_in_line_again(message):
    box = Outbox(9)
    assert put(box, message, message) == [True, True]
    assert await everything(box) == [message]


async def test_of_two_bodies_only_the_newer_waits():
    """The edge has begun anew, or a transaction is through: nobody would read the older one."""
    box = Outbox(9)
    put(box, REQUEST, Resync(incarnation=1), NEXT)
    assert await everything(box) == [Resync(incarnation=1), NEXT]


async def test_at_most_one_body_waits_behind_the_one_under_way():
    box = Outbox(9)
    put(box, REQUEST)
    await take(box)
    for seq in range(3, 50):
        put(box, replace(REQUEST, seq=seq))
        assert len(box) == 1
    assert (await take(box)).seq == 49


async def test_a_body_under_way_is_not_queued_behind_itself():
    """A line that takes a minute for it hears the core's repeats after 1, 3, 7, 15, 31 s."""
    box = Outbox(9)
    put(box, REQUEST)
    await take(box)
    for second in (1.0, 3.0, 7.0, 15.0, 31.0):
        put(box, REQUEST, now=second)
    assert not len(box)


async def sent(took_s):
    """A request that was sent within that time, and the outbox waiting for more."""
    box = Outbox(9)
    put(box, REQUEST)
    await take(box)
    waiting = asyncio.ensure_future(box.take(took_s))
    await asyncio.sleep(0)
    return box, waiting


@pytest.mark.parametrize(("now", "repeated"), [(61.0, False), (299.0, False), (300.0, True)])
async def test_a_body_that_has_been_sent_is_repeated_only_after_the_answer_had_time_to_come(now, repeated):
    box, waiting = await sent(took_s=60.0)
    put(box, REQUEST, now=now)
    assert len(box) == repeated
    waiting.cancel()


@pytest.mark.parametrize("now", [1.0, 3.0, 7.0, 15.0, 29.0])
async def test_a_peer_that_computes_for_long_behind_a_fast_line_is_not_sent_the_same_again(now):
    box, waiting = await sent(took_s=0.01)
    put(box, REQUEST, now=now)
    assert not len(box)
    waiting.cancel()


async def test_a_body_is_not_repeated_while_the_answer_is_coming():
    box, waiting = await sent(took_s=0.0)
    put(box, REQUEST, now=31.0, hearing=True)
    assert not len(box)
    put(box, REQUEST, now=31.0)
    assert await waiting == REQUEST


async def test_a_body_is_repeated_at_once_where_the_peer_has_asked_for_it():
    box, waiting = await sent(took_s=60.0)
    box.allow_repeat(Busy(incarnation=1, seq=2, retry_after_s=1.0))
    put(box, REQUEST, now=61.0)
    assert await waiting == REQUEST


@pytest.mark.parametrize(("body", "seq"), [(REPLY, 2), (REQUEST, 1)])
async def test_a_word_of_being_busy_brings_no_answer_and_no_other_request_again(body, seq):
    """Who asks says it before each repeat: a word of 60 bytes would bring a model each time."""
    box = Outbox(9)
    put(box, body)
    await take(box)
    for _ in range(100):
        box.allow_repeat(Busy(incarnation=1, seq=seq, retry_after_s=0.0))
        put(box, body)
    assert not len(box)


async def test_another_body_of_the_same_number_is_not_taken_for_a_repeat():
    box, waiting = await sent(took_s=60.0)
    other = replace(REQUEST, digest=b"other")
    put(box, other, now=61.0)
    assert await waiting == other


async def test_only_the_latest_news_wait():
    """Rounds go on while a body takes its minute, and each is told of; nobody needs to hear of each."""
    box = Outbox(9)
    assert all(put(box, *(Ready(version=version) for version in range(1000))))
    assert await everything(box) == [Ready(version=version) for version in (996, 997, 998, 999)]


async def test_a_full_box_says_so_and_a_closed_one_drops_everything():
    box = Outbox(2)
    messages = [Resync(incarnation=incarnation) for incarnation in range(3)]
    assert put(box, *messages) == [True, True, False]
    box.close()
    assert put(box, *messages) == [True] * 3
    assert await box.take(0.0) is None
    assert box.idle.is_set()


@pytest.mark.parametrize("message", [REQUEST, Side(channel="vitals/1", body=b"row")])
async def test_it_is_idle_once_the_last_message_has_gone(message):
    box = Outbox(2)
    assert box.idle.is_set()
    assert box.put_extension(message, 1) if isinstance(message, Side) else put(box, message)
    assert not box.idle.is_set()
    await take(box)
    assert not box.idle.is_set()
    waiting = asyncio.ensure_future(box.take(1.0))
    await asyncio.wait_for(box.idle.wait(), 5)
    waiting.cancel()
