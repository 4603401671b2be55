"""What a message says is on disk before it leaves, in order; other messages do not wait."""

from __future__ import annotations

import asyncio

import pytest

from p2pfl.core import Done, Ready, Request, Send
from p2pfl.node import DurableOutbox


def send(seq):
    request = Request(
        incarnation=0, seq=seq, version=seq, echo=None, weight=1.0, staleness=1.0, pace_s=0.0, audit=b"", body=b""
    )
    return Send(peer=1, session=1, message=request)


@pytest.fixture
def sent():
    return []


@pytest.fixture
def held(sent):
    return DurableOutbox(sent.append)


def test_a_message_leaves_with_the_flush_that_was_asked_for_before_it(held, sent):
    first, second, third = map(send, (1, 2, 3))
    held.put(first)
    assert sent == [first], "nothing was asked for"
    held.promise(1)
    held.put(second)
    held.promise(2)
    held.put(third)
    held.release(1)
    assert sent == [first, second]
    held.release(2)
    assert sent == [first, second, third]
    held.put(first)
    assert sent[-1] is first


def test_what_is_repeated_while_it_waits_leaves_once(held, sent):
    held.promise(1)
    asked = send(1)
    for effect in (asked, send(2), asked):
        held.put(effect)
    held.release(1)
    assert [effect.message.seq for effect in sent] == [1, 2]


def test_a_flush_may_be_done_before_it_is_known_to_be_needed(held, sent):
    held.release(3)
    held.promise(3)
    held.put(send(1))
    assert len(sent) == 1


def test_other_messages_overtake_what_waits_and_a_refusing_disk_drops_it(held, sent):
    ready = Send(peer=1, session=1, message=Ready(version=3))
    held.promise(1)
    held.put(send(1))
    held.put(ready)
    assert sent == [ready]
    held.forget()
    held.release(1)
    assert sent == [ready]


def test_done_comes_after_the_reply_that_waits_and_once(held, sent):
    """A neighbor that has heard Done waits for no reply any more: half of an exchange would be lost."""
    held.promise(1)
    held.put(send(1))
    for version in (3, 4):
        held.put(Send(peer=1, session=1, message=Done(version=version)))
    assert sent == []
    held.release(1)
    assert [type(effect.message) for effect in sent] == [Request, Done]


async def test_the_end_waits_for_what_is_held(held, sent):
    held.promise(1)
    held.put(send(1))
    asyncio.get_running_loop().call_later(0.01, held.release, 1)
    await held.drain()
    assert len(sent) == 1
