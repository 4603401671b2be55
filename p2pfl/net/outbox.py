"""A session's outgoing messages: their queue, where a long body goes on, how large its chunks are, and at which rate.

On a slow line the queue keeps fewer and newer messages, rather than more. An edge has one transaction at a time, so the
older of two bodies is void, and at most one waits behind the one being sent. The core repeats unanswered requests. A
live session loses nothing, so a repeat is sent only if the body was sent long ago. Of messages that only say where a
node stands, only the latest counts.

A body that was cut off by the end of a session is kept by its receiver, one for each neighbor, and goes on in the next
session (`p2pfl.wire`). A chunk takes about as long as `CHUNK_S` at the rate that the receiver's receipts show: on a
slow line a larger one would hold up everything behind it, and the receiver would take the session for dead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from itertools import chain
from typing import Any

from p2pfl.core.limits import TokenBucket
from p2pfl.core.messages import Busy, Message, Ready, Reply, Request
from p2pfl.errors import PeerFault
from p2pfl.limits import CHUNK_BYTES, LEAST_CHUNK_BYTES
from p2pfl.wire import (
    FREE_SPLIT_VERSION,
    PartHeld,
    PartialBody,
    Receipt,
    SessionMessage,
    Side,
    begins_with,
    encode_known,
    split,
)

CHUNK_S = 1.5
"""How long a chunk should take."""
FIRST_CHUNK_BYTES = 16 * 1024
"""The size of chunks until the first receipt."""
SAMPLE_S = 0.2
"""The shortest time over which a rate is measured: receipts may arrive in a bunch."""
RECEIPT_S = 0.5
"""The time between two receipts for one body."""
RECEIPTS_PER_S, RECEIPTS_AT_ONCE = 4.0, 256.0
"""The receipts allowed from a neighbor: an honest end sends half as many, but a stalled line may hold some back."""

Work = Callable[[int, Callable[[], Any]], Awaitable[Any]]


class KeptParts:
    """The parts of bodies that ended sessions have left: one for each neighbor, `limit_bytes` in all."""

    def __init__(self, limit_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._parts: dict[int, PartialBody] = {}

    def keep(self, peer: int, part: PartialBody | None) -> None:
        """Keep what the latest session with a neighbor has left, in place of any older part; drop the oldest parts if
        there is no room.
        """
        self._parts.pop(peer, None)
        if part is not None:
            self._parts[peer] = part
        while self.size_bytes > self._limit_bytes():
            del self._parts[next(iter(self._parts))]

    def take(self, peer: int) -> PartialBody | None:
        """Hand over the part of a neighbor, for its new session."""
        return self._parts.pop(peer, None)

    @property
    def size_bytes(self) -> int:
        """The memory that the parts may take: each that of its whole body."""
        return sum(part.body_bytes for part in self._parts.values())


class ChunkPace:
    """The size of chunks, from the receipts of the other end. Times are the loop's, in seconds."""

    def __init__(self, bound_bytes_per_s: float | None = None) -> None:
        self._bound_bytes_per_s = bound_bytes_per_s
        self._rate: float | None = None
        """Bytes per second; None until the first receipt."""
        self._mark_s = 0.0
        self._mark_bytes = 0
        self._is_first = True
        self._sent = self._came = 0

    @property
    def chunk_bytes(self) -> int:
        size = FIRST_CHUNK_BYTES if self._rate is None else int(CHUNK_S * self._rate)
        if self._bound_bytes_per_s is not None:
            size = min(size, int(CHUNK_S * self._bound_bytes_per_s))
        return max(LEAST_CHUNK_BYTES, min(size, CHUNK_BYTES))

    def begin(self, now: float) -> None:
        """Record that a body is about to be sent."""
        self._mark_s, self._mark_bytes, self._is_first = now, self._sent, True

    def send(self, size: int) -> None:
        self._sent += size

    def hear(self, receipt: Receipt, now: float) -> bool:
        """Measure the rate; return True if more has arrived than before. Raises PeerFault if more is said to have
        arrived than was sent.
        """
        if receipt.size > self._sent:
            raise PeerFault(f"a receipt for {receipt.size} bytes of bodies, of {self._sent} that were sent")
        has_come, self._came = receipt.size > self._came, max(self._came, receipt.size)
        gained, took_s = receipt.size - self._mark_bytes, now - self._mark_s
        if gained <= 0 or not (self._is_first or took_s >= SAMPLE_S):
            return has_come
        rate = gained / max(took_s, 0.001)
        if self._rate is None:
            self._rate = rate
        elif self._is_first:
            # It contains the time of the way there and back.
            self._rate = max(self._rate, rate)
        else:
            self._rate = (self._rate + rate) / 2
        self._mark_s, self._mark_bytes, self._is_first = now, receipt.size, False
        return has_come


class BodySender:
    """Cuts a session's messages into chunks, in the protocol version of the session."""

    def __init__(self, bound_bytes_per_s: float | None) -> None:
        self._pace = ChunkPace(bound_bytes_per_s)
        self._held: PartHeld | None = None
        """The part that the other end has, until a body is sent."""
        self._has_begun = self._has_heard = False
        self._receipts = TokenBucket(RECEIPTS_PER_S, tokens=RECEIPTS_AT_ONCE, burst=RECEIPTS_AT_ONCE)
        self.applied = b""
        """The digest of the last request that the other end had applied when the session began."""
        self.draining: asyncio.Timeout | None = None
        """The deadline of the chunk that the line is accepting; progress at the other end puts it off."""

    async def cut(self, message: SessionMessage, version: int, work: Work) -> Iterable[bytes | memoryview]:
        """Return the message's chunks; those of a long body are sized one by one, as they are taken."""
        if not isinstance(message, Request | Reply):
            return split(message, version)
        held, self._held, self._has_begun = self._held, None, True
        if version < FREE_SPLIT_VERSION:
            return split(message, version)
        if isinstance(message, Request) and message.digest and message.digest == self.applied:
            return [encode_known(message, version)]
        goes_on = held is not None and await work(held.size, lambda: begins_with(message, held))
        return self._pace_out(message, version, held.size if held is not None and goes_on else 0)

    def hear(self, message: PartHeld | Receipt, now: float, put_off_s: float) -> None:
        """Take what the other end says about bodies. Raises PeerFault if no honest end says it."""
        if isinstance(message, PartHeld):
            if self._has_heard:
                raise PeerFault("parts of two bodies, where a session leaves one")
            self._has_heard = True
            # After the beginning of another long body, the other end no longer has the part.
            self._held = None if self._has_begun else message
            return
        if self._receipts.take(now) > 0.0:
            raise PeerFault("more receipts than an honest end sends")
        has_come = self._pace.hear(message, now)
        if has_come and self.draining is not None and not self.draining.expired():
            self.draining.reschedule(now + put_off_s)

    def _pace_out(self, message: Message, version: int, start: int) -> Iterator[bytes | memoryview]:
        self._pace.begin(asyncio.get_running_loop().time())
        chunks = split(message, version, start=start, chunk_bytes=lambda: self._pace.chunk_bytes)
        yield next(chunks)
        for chunk in chunks:
            self._pace.send(len(chunk))
            yield chunk


class ReceiptClock:
    """When to tell the other end how much has arrived: after a body's first chunk, but at most every `RECEIPT_S`.

    The bound holds over all bodies of a session: on a fast line many arrive in that time, and the other end takes
    receipts at a bounded rate.
    """

    def __init__(self) -> None:
        self._due_s = 0.0
        self._told = 0

    def due(self, came: int, now: float, *, under_way: bool) -> Receipt | None:
        """Return the receipt for `came` bytes, if it is due."""
        if not under_way:
            # The next receipt is about the next body.
            self._told = came
            return None
        if came == self._told or now < self._due_s:
            return None
        self._due_s, self._told = now + RECEIPT_S, came
        return Receipt(size=came)


REPEAT_MULTIPLE = 4.0
"""A body is repeated after this many times its sending time: the answer may take as long."""
LEAST_REPEAT_S = 30.0
"""The earliest repeat: on a fast line the answer waits for the peer's processor or disk, which it would burden."""
MOST_WAITING: dict[type[SessionMessage], int] = {Request: 1, Reply: 1, Ready: 4}
"""The maximum number of queued messages per kind. In a schedule an earlier Ready may ask for an exchange where the
latest does not.
"""

Name = tuple[object, ...]


class Outbox:
    """The queue of outgoing messages, at most `limit` of them. Times are the loop's, in seconds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Message] = deque()
        self._extensions: deque[Side] = deque()
        """Extension messages, sent when no gossip is waiting."""
        self._receipt: Receipt | None = None
        self._filled = asyncio.Event()
        self._closed = False
        self._latest: Name | None = None
        """The name of the body that was most recently begun."""
        self._begun_s = 0.0
        self._repeat_at = float("inf")
        self.idle = asyncio.Event()
        """Set while nothing is waiting or being sent, and from `close` on."""
        self.idle.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message, now: float, *, hearing: bool) -> bool:
        """Queue a message; return False if there is no room.

        `hearing` says that a body is arriving from the peer, which may be the answer.
        """
        if self._closed or self._is_needless(message, now, hearing=hearing):
            return True
        self._make_room(message)
        if len(self._waiting) >= self._limit:
            return False
        self._waiting.append(message)
        self._filled.set()
        self.idle.clear()
        return True

    def put_extension(self, message: Side, most: int) -> bool:
        """Queue a extension message; return False if `most` messages of its channel are already waiting."""
        if self._closed or sum(other.channel == message.channel for other in self._extensions) >= most:
            return False
        self._extensions.append(message)
        self._filled.set()
        self.idle.clear()
        return True

    def put_receipt(self, receipt: Receipt) -> None:
        """Send the latest receipt before anything else; it replaces one that waits."""
        if not self._closed:
            self._receipt = receipt
            self._filled.set()

    async def take(self, now: float) -> Message | Side | Receipt | None:
        """Wait for the next message; None once closed. `now` is when the previous message had been sent."""
        if self._repeat_at == float("inf"):
            self._repeat_at = now + max(LEAST_REPEAT_S, REPEAT_MULTIPLE * (now - self._begun_s))
        if not (self._waiting or self._extensions or self._receipt or self._closed):
            self.idle.set()
            self._filled.clear()
            await self._filled.wait()
        if self._receipt is not None:
            receipt, self._receipt = self._receipt, None
            return receipt
        if self._waiting:
            return self._waiting.popleft()
        return self._extensions.popleft() if self._extensions else None

    def begin(self, message: Message | Side | Receipt, now: float) -> None:
        """Record that the message is being sent."""
        name = name_of(message)
        if name is not None:
            self._latest, self._begun_s, self._repeat_at = name, now, float("inf")

    def allow_repeat(self, busy: Busy) -> None:
        """Allow the request that the peer was too busy for to be sent again; never a reply, or each costs it a word."""
        if (self._latest or ())[:3] == (Request, busy.incarnation, busy.seq):
            self._latest = None

    def close(self) -> None:
        """Drop the queued messages."""
        self._closed = True
        self._waiting.clear()
        self._extensions.clear()
        self._receipt = None
        self._filled.set()
        self.idle.set()

    def _is_needless(self, message: Message, now: float, *, hearing: bool) -> bool:
        name = name_of(message)
        if name is None:
            return message in self._waiting
        if any(name == name_of(other) for other in self._waiting):
            return True
        return name == self._latest and (hearing or now < self._repeat_at)

    def _make_room(self, message: Message) -> None:
        """Drop the oldest message of a kind that already fills its share of the queue."""
        most = MOST_WAITING.get(type(message))
        alike = [place for place, other in enumerate(self._waiting) if type(other) is type(message)]
        if most is not None and len(alike) >= most:
            del self._waiting[alike[0]]


def name_of(message: SessionMessage) -> Name | None:
    """Return a name unique to a message with a body on its edge; it does not keep the body alive."""
    match message:
        case Request(incarnation=incarnation, seq=seq, digest=digest):
            return Request, incarnation, seq, digest
        case Reply(incarnation=incarnation, seq=seq, request_digest=digest):
            return Reply, incarnation, seq, digest
    return None


BYTES_PER_KBIT = 125.0
SHORT_BYTES = 4096
"""The most bytes of a message that says where a node stands: others wait for it."""

Say = Callable[..., Coroutine[Any, Any, None]]


class SendingRate:
    """The bytes per second that all sessions together may send, on average; None if there is no bound.

    A chunk goes out at once, and the next one waits as long as this one should have taken. Sessions send their messages
    one after the other, each at the whole rate, because a peer demands a minimum pace of a message that has begun.
    Beside them go those to a neighbor that reads more slowly than the rate allows: the others do not wait for it.
    """

    def __init__(self, all_kbit_s: float | None = None) -> None:
        self.bytes_per_s = None if all_kbit_s is None else all_kbit_s * BYTES_PER_KBIT
        self._free_at = 0.0
        """When the next chunk may go, on the loop's clock."""
        self._turn = asyncio.Lock()

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next chunk may go; it may go now if that is not above 0."""
        return self._free_at - now

    def book(self, size: int, now: float) -> None:
        """Record that `size` bytes are sent."""
        if self.bytes_per_s is not None:
            self._free_at = max(self._free_at, now) + size / self.bytes_per_s

    async def carry(
        self, chunks: Iterable[bytes | memoryview], say: Say, beat_s: float, *, is_over: Callable[[], bool]
    ) -> None:
        """Send a message by `say`, chunk by chunk, none before its time; a short message does not wait, and later ones
        make up for it. Meanwhile, an empty chunk goes out every `beat_s`, which shows the other end that this one is
        there.
        """
        clock, chunks = asyncio.get_running_loop().time, iter(chunks)
        first, second = next(chunks), next(chunks, None)
        if second is None and len(first) <= SHORT_BYTES:
            await say(first)
            return
        own_turn = asyncio.ensure_future(self._turn.acquire())
        turn: asyncio.Future[Any] | None = own_turn
        try:
            await _beat_until(own_turn, say, beat_s)
            for chunk in chain([first], [] if second is None else [second], chunks):
                while (wait_s := self.wait_s(clock())) > 0.0:
                    await _beat_until(asyncio.ensure_future(asyncio.sleep(wait_s)), say, beat_s)
                if is_over():
                    return
                sending = asyncio.ensure_future(say(chunk))
                try:
                    if turn is not None and not await self._is_quick(sending, len(chunk)):
                        self._turn.release()
                        turn = None
                    await sending
                finally:
                    sending.cancel()
        finally:
            if turn is not None and not turn.cancel():  # it was this message's turn
                self._turn.release()

    async def _is_quick(self, sending: asyncio.Future[None], size: int) -> bool:
        """Wait until a chunk is sent; return False if it takes longer than the rate of all asks for."""
        usual_s = None if self.bytes_per_s is None else size / self.bytes_per_s
        return sending in (await asyncio.wait({sending}, timeout=usual_s))[0]


async def _beat_until(done: asyncio.Future[Any], say: Say, beat_s: float) -> None:
    try:
        while not (await asyncio.wait({done}, timeout=beat_s))[0]:
            await say(b"")
    finally:
        done.cancel()
